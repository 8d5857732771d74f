"""Workers that are not Python and not here: they claim jobs and report on them by id and token.

Each claimed job has a lease of its own, so that the heartbeat for one job keeps no other. What a
worker in this process does through its lease keeper and settler happens here at once, one job at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import JobNotFound, LeaseLost
from treadle.job import Job, checked_topic, short_text
from treadle.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Released, Status, decide
from treadle.payload import dumps
from treadle.store.base import Claimed, Holding, RowState, Settlement, Store, Touch
from treadle.store.hints import LATER, READY
from treadle.template import checked_capability

if TYPE_CHECKING:
    from treadle.queue import Queue

MAX_CLAIM = 100
MAX_WAIT_S = 60.0
# A lease that is no older need not be renewed for the job that it gets.
FRESH_S = 0.1
MOST_LOST = 3


class ExternalError(Exception):
    """What an external worker reported: retry policies look at exceptions."""


class ExternalWorkers:
    def __init__(self, queue: Queue, on_ended: Callable[[str, str], None]) -> None:
        """`on_ended` is told the topic and the status of every job that ends."""
        self._queue = queue
        self._on_ended = on_ended
        self._lease_ms = queue.settings.lease_ms

    # -- claiming ----------------------------------------------------------------------------------

    async def claim(
        self,
        worker: str,
        topics: Sequence[str],
        capabilities: Sequence[str],
        limit: int = 1,
        wait_s: float = 0.0,
        gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> list[tuple[Job, int]]:
        """Up to `limit` jobs with their tokens; waits until there is one, `wait_s` is over or the worker is `gone`."""
        name = short_text(worker, "worker_id") or ""
        serves = {
            "topics": [checked_topic(topic) for topic in topics],
            "capabilities": [checked_capability(one) for one in capabilities],
            "slots": 0,
        }
        store = (await self._queue.open()).store
        deadline = time.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
        news = asyncio.Event()
        leases = _Leases(store, name, self._lease_ms, serves)
        unsubscribe = store.subscribe(lambda hint: news.set() if hint in (READY, LATER) else None)
        try:
            while not (claimed := await self._take(leases, min(max(limit, 1), MAX_CLAIM))):
                left = deadline - time.monotonic()
                if left <= 0 or (gone and await gone()):
                    return []
                await self._pause(store, news, left)
            jobs = await store.get([one.id for one in claimed])
            leases.hand_over()
        finally:
            unsubscribe()
            await leases.close()
        return [(job, one.token) for one, job in zip(claimed, jobs, strict=True) if job]

    async def _take(self, leases: _Leases, limit: int) -> list[Claimed]:
        store, serves = leases.store, leases.serves
        await store.promote()
        claimed: list[Claimed] = []
        lost = 0
        while len(claimed) < limit:
            lease = await leases.spare()
            try:
                got = (await store.claim(lease, serves["topics"], serves["capabilities"], 1, 1)).jobs
            except LeaseLost:  # the database's clock was set, or this machine slept
                leases.drop()
                lost += 1
                if lost == MOST_LOST:
                    raise
                continue
            if not got:
                break
            await leases.use()
            await store.touch(lease, [Touch(got[0].n, got[0].token, 0, None, None)])
            claimed += got
        return claimed

    async def _pause(self, store: Store, news: asyncio.Event, most_s: float) -> None:
        """Until a hint, the next delayed job, or the poll."""
        _, due_ms = await store.promote()
        poll_ms = self._queue.settings.poll_interval_ms
        wait_s = min(poll_ms, poll_ms if due_ms is None else max(due_ms, 1)) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, most_s)):
                await news.wait()
        news.clear()

    # -- while it runs -----------------------------------------------------------------------------

    async def heartbeat(self, job_id: str, token: int) -> tuple[Holding, int]:
        """Renew the job's lease; what is known of it, and until when it is held now."""
        store, held = await self._held(job_id, token)
        if not await store.extend(held.job.lease, self._lease_ms):
            raise _lost(job_id)
        return held, await store.now() + self._lease_ms

    async def progress(self, job_id: str, token: int, percent: float, message: str | None) -> tuple[Holding, int]:
        """How far it is; renews the lease as well."""
        store, held = await self._held(job_id, token)
        if message is not None:
            dumps(message, "message")
        touch = Touch(held.job.n, token, held.ran_ms, int(percent), message)
        if await store.touch(held.job.lease, [touch]):
            raise _lost(job_id)
        return await self.heartbeat(job_id, token)

    # -- its end -----------------------------------------------------------------------------------

    async def complete(self, job_id: str, token: int, result: Any) -> Job:
        text = None if result is None else dumps(result, "result")
        return await self._settle(job_id, token, Completed(text))

    async def fail(self, job_id: str, token: int, error: str, fatal: bool = False) -> Job:
        """Another attempt if its template allows one, unless the error is fatal."""
        dumps(error, "error")
        _, held = await self._held(job_id, token)
        retry = (await self._queue.template(held.job.topic)).retry
        wait = None if fatal else retry.decide(ExternalError(error), failures=held.job.attempt)
        return await self._settle(job_id, token, Failed(error, "ExternalError", wait))

    async def release(self, job_id: str, token: int, reason: str = "") -> Job:
        dumps(reason, "reason")
        return await self._settle(job_id, token, Released(reason or "released by its worker"))

    async def acknowledge_cancel(self, job_id: str, token: int) -> Job:
        return await self._settle(job_id, token, CancelAcknowledged())

    async def _settle(self, job_id: str, token: int, outcome: Outcome) -> Job:
        store, held = await self._held(job_id, token)
        status = Status.CANCELLING if held.cancel_requested else Status.PROCESSING
        transition = decide(RowState(status, held.job.attempt, held.job.max_attempts), outcome)
        if await store.settle([Settlement(held.job, transition, held.ran_ms)]):
            raise _lost(job_id)
        await store.close_lease(held.job.lease)
        job = await self._queue.get(job_id)
        if job.ended:
            self._on_ended(job.topic, job.status.value)
        return job

    async def _held(self, job_id: str, token: int) -> tuple[Store, Holding]:
        store = (await self._queue.open()).store
        held = (await store.holdings([job_id]))[0]
        if held is None and (await store.get([job_id]))[0] is None:
            raise JobNotFound(f"no job has the id {job_id[:60]!r}", id=job_id[:60])
        if held is None or held.job.token != token:
            raise _lost(job_id)
        return store, held


class _Leases:
    """A lease for each job to come. The next one is open while the worker waits, which makes it a live worker."""

    def __init__(self, store: Store, name: str, lease_ms: int, serves: dict[str, Any]) -> None:
        self.store = store
        self.serves = serves
        self._name = name
        self._lease_ms = lease_ms
        self._spare: int | None = None
        self._used: list[int] = []
        self._begun = 0.0

    async def spare(self) -> int:
        """One without a job, with most of its time before it."""
        if self._spare is not None and time.monotonic() < self._begun + self._lease_ms / 3000:
            return self._spare
        begun = time.monotonic()
        if self._spare is None or not await self.store.extend(self._spare, self._lease_ms):
            self._spare = await self.store.open_lease(self._name, self._lease_ms, self.serves)
        self._begun = begun
        return self._spare

    async def use(self) -> None:
        """A job has it now, for the whole of its time."""
        lease, self._spare = self._spare, None
        if lease is not None:
            self._used.append(lease)
            if time.monotonic() > self._begun + FRESH_S:
                await self.store.extend(lease, self._lease_ms)

    def drop(self) -> None:
        self._spare = None

    def hand_over(self) -> None:
        """The worker is told of its jobs, and keeps their leases from now on."""
        self._used.clear()

    async def close(self) -> None:
        """Those that nobody was told of: their jobs go to whoever asks next."""
        for lease in [*self._used, *([] if self._spare is None else [self._spare])]:
            await self.store.close_lease(lease)


def _lost(job_id: str) -> LeaseLost:
    return LeaseLost(f"job {job_id} is not yours any more: its lease ran out, or the token is of an older claim")
