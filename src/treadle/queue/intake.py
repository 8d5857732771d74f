"""Concurrent enqueues share one transaction.

A group never fails because of one of its jobs. If the group fails, or needs a key that another open transaction has
locked, its jobs are inserted one by one in separate transactions, and the next group goes ahead. Of the jobs that need
the same key, only one is inserted at a time; the others wait for it and for nothing else.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from treadle.model.errors import Refused, StoreBusy, StoreUnavailable
from treadle.queue.batcher import Batcher
from treadle.store.protocol import Store
from treadle.store.values import Inserted, NewJob

MOST = 500
# How long a job may wait for a key.
KEY_SECONDS = 5.0
# Average pause between two tries.
PAUSE_SECONDS = 0.1
# Single inserts in flight; the store's other connections stay free for other work.
SINGLES = 2


class _InsertAlone:
    """The answer for a job of a failed group: it has to be inserted alone."""


class _Turn:
    """The jobs that need one key."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.jobs = 0


class Intake:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._together: Batcher[NewJob, Inserted | Refused | _InsertAlone] = Batcher(self._insert, MOST)
        self._singles = asyncio.Semaphore(SINGLES)
        self._turns: dict[Hashable, _Turn] = {}
        """By key, for jobs that are inserted alone."""

    async def add(self, job: NewJob) -> Inserted:
        apart = bool(self._turns) and any(key in self._turns for key in job.keys)
        answer = _InsertAlone() if apart else await self._together(job)
        if isinstance(answer, _InsertAlone):
            answer = await self._alone(job)
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def _insert(self, jobs: Sequence[NewJob]) -> Sequence[Inserted | Refused | _InsertAlone]:
        try:
            return await self._store.insert(jobs, atomic=False, patient=False)
        except StoreBusy:
            return [_InsertAlone()] * len(jobs)
        except StoreUnavailable:
            raise  # they may have been stored, and the next try would fail as well
        except Exception:
            if len(jobs) == 1:
                raise
            return [_InsertAlone()] * len(jobs)

    async def _alone(self, job: NewJob) -> Inserted | Refused:
        deadline = time.monotonic() + KEY_SECONDS
        async with self._turn(job, deadline):
            while True:
                try:
                    async with self._singles:
                        return (await self._store.insert([job], atomic=False, patient=False))[0]
                except StoreBusy as busy:
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(busy.message) from None
                await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))

    @asynccontextmanager
    async def _turn(self, job: NewJob, deadline: float) -> AsyncIterator[None]:
        async with AsyncExitStack() as turns:
            try:
                for key in sorted(job.keys, key=repr):
                    await turns.enter_async_context(self._turn_at(key, deadline))
            except TimeoutError:
                raise StoreUnavailable("jobs with the same key wait for another transaction; try again") from None
            yield

    @asynccontextmanager
    async def _turn_at(self, key: Hashable, deadline: float) -> AsyncIterator[None]:
        turn = self._turns.setdefault(key, _Turn())
        turn.jobs += 1
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await turn.lock.acquire()
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.jobs -= 1
            if not turn.jobs:
                del self._turns[key]
