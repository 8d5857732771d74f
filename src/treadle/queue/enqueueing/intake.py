"""Concurrent enqueues share one transaction.

A group never fails because of one of its jobs. If it needs a key that another open transaction has locked, its jobs
without keys are stored immediately, and the others are split into smaller groups until the locked ones are found, while
the next group goes ahead. The locked ones wait, for at most 5 seconds from their call, in a room where they hold up no
other job. Later jobs with the same keys go there directly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from treadle.model.errors import Refused, StoreBusy, StoreUnavailable
from treadle.queue.enqueueing.batcher import Batcher
from treadle.store.protocol import Store
from treadle.store.values import Inserted, NewJob
from treadle.store.waiting_room import WaitingRoom

MOST = 500
# A failed group is split into this many parts: few tries if one job is to blame, and hardly more if all are.
PARTS = 8
# Parts in flight; the store's other connections stay free for other work.
PARTS_TOGETHER = 2


class _Locked:
    """The answer for a job that needs a locked key."""


LOCKED = _Locked()
Answer = Inserted | Exception | _Locked
Sifted = asyncio.Task[dict[str, Answer]]
"""The answers for the jobs of a failed group, by id."""


class Intake:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._together: Batcher[NewJob, Answer | Sifted] = Batcher(self._insert, MOST)
        self._parts = asyncio.Semaphore(PARTS_TOGETHER)
        self._waiting = WaitingRoom()

    async def add(self, job: NewJob) -> Inserted:
        since = time.monotonic()
        apart = bool(self._waiting.locked) and self._waiting.knows(job.keys)
        answer = LOCKED if apart else await self._together(job)
        if isinstance(answer, asyncio.Task):
            answer = (await asyncio.shield(answer))[job.id]
        if isinstance(answer, _Locked):
            answer = await self._waiting.wait(job.keys, lambda: self._alone(job), since)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _insert(self, jobs: Sequence[NewJob]) -> Sequence[Answer | Sifted]:
        try:
            return await self._store.insert(jobs, atomic=False, patient=False)
        except StoreBusy:
            if len(jobs) == 1:
                return [self._locked(jobs[0])]
            stored = await self._part([job for job in jobs if not job.keys])
            sifting = self._start_sifting([job for job in jobs if job.id not in stored])
            return [stored.get(job.id, sifting) for job in jobs]
        except StoreUnavailable:
            raise  # they may have been stored, and the next try would fail as well
        except Exception:
            if len(jobs) == 1:
                raise
            return [self._start_sifting(jobs)] * len(jobs)

    async def _alone(self, job: NewJob) -> Inserted | Refused:
        return (await self._store.insert([job], atomic=False, patient=False))[0]

    # -- the jobs of a failed group ------------------------------------------------------------

    def _start_sifting(self, jobs: Sequence[NewJob]) -> Sifted:
        return asyncio.get_running_loop().create_task(self._sift(jobs))

    async def _sift(self, jobs: Sequence[NewJob]) -> dict[str, Answer]:
        size = -(-len(jobs) // PARTS)
        parts = [self._limited_part(jobs[i : i + size]) for i in range(0, len(jobs), size)]
        answers: dict[str, Answer] = {}
        for some in await asyncio.gather(*parts):
            answers |= some
        return answers

    async def _limited_part(self, jobs: Sequence[NewJob]) -> dict[str, Answer]:
        async with self._parts:
            answers = await self._part(jobs)
        return answers or await self._sift(jobs)

    async def _part(self, jobs: Sequence[NewJob]) -> dict[str, Answer]:
        """The answers; none if the part has to be split further."""
        try:
            stored = await self._store.insert(jobs, atomic=False, patient=False) if jobs else []
        except StoreBusy:
            return {jobs[0].id: self._locked(jobs[0])} if len(jobs) == 1 else {}
        except StoreUnavailable as error:
            return dict.fromkeys((job.id for job in jobs), error)
        except Exception as error:
            return {jobs[0].id: error} if len(jobs) == 1 else {}
        return {job.id: answer for job, answer in zip(jobs, stored, strict=True)}

    def _locked(self, job: NewJob) -> _Locked:
        self._waiting.remember(job.keys)
        return LOCKED
