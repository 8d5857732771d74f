"""Stores what steps have done before the next step begins; the steps of many jobs share a write, like their endings."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from treadle.model.errors import LeaseLost, StoreBusy, StoreUnavailable
from treadle.queue.backoff import StoreRetry
from treadle.store.protocol import Store
from treadle.store.values import Checkpoint
from treadle.worker.attempt import Attempt
from treadle.worker.metrics import Metrics

BATCH = 200
# While one write is on its way, the next one follows: the steps of other jobs have ended meanwhile.
WRITES_AT_A_TIME = 2
# Before a follow-up job that needs a locked key is tried again.
BUSY_PAUSE_S = 0.02


class _Waiting(NamedTuple):
    attempt: Attempt
    checkpoint: Checkpoint
    written: asyncio.Future[None]


class StepWriter:
    def __init__(self, store: Store, metrics: Metrics, on_lost: Callable[[Attempt], None]) -> None:
        self._store = store
        self._metrics = metrics
        self._on_lost = on_lost
        self._waiting: dict[Attempt, deque[_Waiting]] = {}
        """By job: one with thousands of steps must not hold up the others."""
        self._under_way: set[Attempt] = set()
        """A job's writes keep their order: the next one waits for the one before."""
        self._wake = asyncio.Event()
        self._retry = StoreRetry(store.outage, "writing steps")

    async def write(self, attempt: Attempt, checkpoint: Checkpoint) -> None:
        """Returns when it is stored; LeaseLost if the job belongs to another worker by now, Refused if one of its
        follow-up jobs is refused."""
        if attempt.lost:
            raise LeaseLost(attempt.lost_interrupt().reason)
        await self._add(attempt, checkpoint)
        if not checkpoint.flagged and attempt.steps is not None:
            attempt.steps.stored()

    def post(self, attempt: Attempt, checkpoint: Checkpoint) -> None:
        """News that no caller waits for. It takes the same path, or an older state could overtake a newer one."""
        if not attempt.lost:
            self._add(attempt, checkpoint).add_done_callback(_ignore)

    def _add(self, attempt: Attempt, checkpoint: Checkpoint) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(attempt)
        if waiting is None:
            waiting = self._waiting[attempt] = deque()
        waiting.append(_Waiting(attempt, checkpoint, written))
        self._wake.set()
        return written

    async def run(self) -> None:
        """One round of writing; as many of these as `WRITES_AT_A_TIME` run concurrently."""
        await self._wake.wait()
        batch = self._next_batch()
        if not batch:
            self._wake.clear()
            return
        mine = {one.attempt for one in batch}
        self._under_way |= mine
        try:
            for lease in {one.attempt.lease.id for one in batch}:
                await self._write_all(lease, [one for one in batch if one.attempt.lease.id == lease])
        finally:
            self._under_way -= mine
            if self._waiting:
                self._wake.set()

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        for attempt in list(self._waiting):
            if attempt in self._under_way:
                continue
            waiting = self._waiting.pop(attempt)
            while waiting and len(batch) < BATCH:
                batch.append(waiting.popleft())
            if waiting:
                self._waiting[attempt] = waiting  # last in the line
            if len(batch) == BATCH:
                break
        return batch

    async def _write_all(self, lease: int, batch: list[_Waiting]) -> None:
        """The ones with follow-up jobs alone, because a refused job undoes its whole transaction."""
        with_jobs = [one for one in batch if one.checkpoint.jobs]
        if len(with_jobs) < len(batch):
            await self._write(lease, [one for one in batch if not one.checkpoint.jobs] if with_jobs else batch)
        for one in with_jobs:
            await self._write(lease, [one])

    async def _write(self, lease: int, batch: list[_Waiting]) -> None:
        try:
            lost = await self._when_available(lease, batch)
        except StoreBusy:  # a follow-up job needs a locked key: other jobs don't wait for it
            asyncio.get_running_loop().call_later(BUSY_PAUSE_S, self._again, batch)
            return
        except Exception as error:  # drivers have many errors for "this value can't be stored"
            if len(batch) > 1:
                for one in batch:
                    await self._write(lease, [one])
            elif not batch[0].written.done():
                batch[0].written.set_exception(error)
            return
        for one in batch:
            if one.written.done():
                continue  # its step no longer waits for it
            if (one.checkpoint.n, one.checkpoint.token) in lost:
                self._on_lost(one.attempt)
                one.written.set_exception(LeaseLost(one.attempt.lost_interrupt().reason))
            else:
                one.written.set_result(None)

    def _again(self, batch: list[_Waiting]) -> None:
        for one in batch:
            if one.attempt.lost and not one.written.done():
                one.written.set_exception(LeaseLost(one.attempt.lost_interrupt().reason))
            elif not one.written.done():
                self._waiting.setdefault(one.attempt, deque()).append(one)
                self._wake.set()

    async def _when_available(self, lease: int, batch: list[_Waiting]) -> set[tuple[int, int]]:
        """The lost ones. Waits for the store as long as the lease may be alive."""
        while True:
            asked = time.monotonic()
            try:
                lost = await self._store.checkpoint(lease, [one.checkpoint for one in batch])
            except StoreBusy:
                raise
            except StoreUnavailable as error:
                self._metrics.store_errors += 1
                self._retry.failed(error)
                if all(one.attempt.lost for one in batch):
                    return {(one.checkpoint.n, one.checkpoint.token) for one in batch}
                await self._retry.pause()
            else:
                self._metrics.settles.observe(time.monotonic() - asked)
                self._retry.worked()
                return set(lost)


def _ignore(written: asyncio.Future[None]) -> None:
    """A lost lease is reported by other writes, too."""
    if not written.cancelled():
        written.exception()
