"""External workers, in any language: they claim jobs and report on them by id and token.

Each claimed job has a separate lease, so a heartbeat for one job does not keep any other. A claim takes its jobs under
one lease and splits it. A worker in this process batches the calls that follow in its lease keeper and settler; here
they run immediately, one job at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_core import from_json

from treadle.model.durations import Duration, duration_ms, shown
from treadle.model.errors import InvalidInput, JobNotFound, LeaseLost
from treadle.model.job import Job, checked_topic, short_text
from treadle.model.output import check_channels, check_room, checked_channel, value_text
from treadle.model.payload import dumps
from treadle.model.retry import families_of
from treadle.model.status import Status
from treadle.model.steps import DONE
from treadle.model.template import checked_capability
from treadle.policy.flow import UNSERVED_MS, unserved
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Released, RowState, Snoozed, decide
from treadle.policy.output import EMPTY, Chunk
from treadle.store.protocol import Store
from treadle.store.values import HAS_STEPS, Claimed, Holding, OutputWrite, Settlement, Touch, Wants
from treadle.store.wakeups import LATER, READY

if TYPE_CHECKING:
    from treadle.queue import Queue

MAX_CLAIM = 100
MAX_WAIT_S = 60.0
MIN_LEASE_MS = 5_000
MAX_LEASE_MS = 3_600_000
MOST_LOST = 3


Proof: TypeAlias = Callable[[int], bool]
"""Whether what a worker sent proves the claim with this token. The number itself never leaves the server."""


class ExternalError(Exception):
    """An error that an external worker reported, as an exception because retry policies look at exceptions."""


class ExternalWorkers:
    def __init__(self, queue: Queue, on_ended: Callable[[str, str], None]) -> None:
        """`on_ended` is called with the topic and the status of every job that ends."""
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
        lease: Duration | None = None,
        gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> list[tuple[Job, int]]:
        """Up to `limit` jobs with their tokens. Waits until there is one, `wait_s` is over or the worker is `gone`."""
        lease_ms = self._lease_ms if lease is None else _checked_lease(lease)
        name = short_text(worker, "worker_id") or ""
        serves = {
            "topics": await self._claimable([checked_topic(topic) for topic in topics]),
            "capabilities": [checked_capability(one) for one in capabilities],
            "slots": 0,
        }
        store = (await self._queue.open()).store
        deadline = time.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
        news = asyncio.Event()
        leases = _Leases(store, name, self._lease_ms, lease_ms, serves)
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
        return [(_with_payload(job, one), one.token) for one, job in zip(claimed, jobs, strict=True) if job]

    async def _claimable(self, topics: Sequence[str]) -> list[str]:
        """The topics without declared steps: a flow's steps are Python code, or wait for an answer."""
        return [topic for topic in topics if not (await self._queue.template(topic)).steps]

    async def _take(self, leases: _Leases, limit: int) -> list[Claimed]:
        store, serves = leases.store, leases.serves
        await store.advance()
        claimed: list[Claimed] = []
        lost = 0
        while len(claimed) < limit:
            lease = await leases.spare()
            try:
                left = limit - len(claimed)
                wants = Wants(serves["topics"], serves["capabilities"], limit=left, free=left)
                got, again_in_ms, _ = await store.claim(lease, wants)
            except LeaseLost:  # the database's clock was changed, or this machine slept
                leases.drop()
                lost += 1
                if lost == MOST_LOST:
                    raise
                continue
            if not got:
                if again_in_ms == 0:
                    continue
                break
            if flows := await self._put_back_flows(store, got):
                serves["topics"] = [topic for topic in serves["topics"] if topic not in {job.topic for job in flows}]
                got = [job for job in got if job not in flows]
            if got:
                await store.touch(lease, [Touch(job.n, job.token, 0, None, None) for job in got])
                await leases.split(got)
                claimed += got
        return claimed

    async def _put_back_flows(self, store: Store, got: Sequence[Claimed]) -> list[Claimed]:
        """Jobs with declared steps, if their topic became a flow just now or no longer is one."""
        found = await store.claimed_steps([job.n for job in got if job.flags & HAS_STEPS])
        flows = []
        for job in got:
            known = found.get(job.n)
            steps = sorted(known.steps, key=lambda step: step.place) if known else []
            pending = next((step.name for step in steps if step.declared and step.state not in DONE), None)
            if pending is None:
                continue
            put_back = Snoozed(UNSERVED_MS, unserved(pending))
            transition = decide(RowState(Status.PROCESSING, job.attempt, job.max_attempts), put_back)
            await store.settle([Settlement(job, transition, None)])
            flows.append(job)
        return flows

    async def _pause(self, store: Store, news: asyncio.Event, most_s: float) -> None:
        """Wait for a hint, the next delayed job, or the next poll."""
        due_ms = (await store.advance()).next_in_ms
        poll_ms = self._queue.settings.poll_interval_ms
        wait_s = min(poll_ms, poll_ms if due_ms is None else max(due_ms, 1)) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, most_s)):
                await news.wait()
        news.clear()

    # -- while it runs -----------------------------------------------------------------------------

    async def heartbeat(self, job_id: str, proves: Proof, lease: Duration | None = None) -> tuple[Holding, int]:
        """Renew the job's lease, by default for as long as the last time; returns its state and its new end."""
        lease_ms = None if lease is None else _checked_lease(lease)
        store, held = await self._held(job_id, proves)
        renewed = await store.renew(held.job.lease, lease_ms)
        if renewed is None:
            raise _lost(job_id)
        return held, renewed.until

    async def progress(self, job_id: str, proves: Proof, percent: float, message: str | None) -> tuple[Holding, int]:
        """Report progress; also renews the lease."""
        store, held = await self._held(job_id, proves)
        if message is not None:
            dumps(message, "message")
        touch = Touch(held.job.n, held.job.token, held.ran_ms, int(percent), message)
        if await store.touch(held.job.lease, [touch]):
            raise _lost(job_id)
        return await self.heartbeat(job_id, proves)

    async def output(self, job_id: str, proves: Proof, channel: str, values: Sequence[Any]) -> tuple[Holding, int]:
        """Append values to a channel of the job's output; also renews the lease."""
        store, held = await self._held(job_id, proves)
        chunk = Chunk(checked_channel(channel), f"[{','.join(map(value_text, values))}]", len(values), held.job.attempt)
        state = (await store.output_states([job_id])).get(job_id)
        known = state.channels if state else {}
        if channel not in known:
            check_channels(channel, len(known))
        check_room(channel, known.get(channel, EMPTY).bytes, chunk.size)
        if await store.write_output(held.job.lease, [OutputWrite(held.job.n, held.job.token, held.ran_ms, (chunk,))]):
            raise _lost(job_id)
        return await self.heartbeat(job_id, proves)

    # -- its end -----------------------------------------------------------------------------------

    async def complete(self, job_id: str, proves: Proof, result: Any) -> Job:
        """Complete the job. A repeated call, after a lost answer, succeeds as well."""
        text = None if result is None else dumps(result, "result")
        try:
            return await self._settle(job_id, proves, Completed(text))
        except LeaseLost:
            job = await self._queue.get(job_id)
            if job.status is Status.COMPLETED and job.token is not None and proves(job.token):
                return job
            raise

    async def fail(self, job_id: str, proves: Proof, error: str, fatal: bool = False) -> Job:
        """Report a failure. The job is retried if its template allows it, unless the error is fatal."""
        dumps(error, "error")
        _, held = await self._held(job_id, proves)
        retry = (await self._queue.template(held.job.topic)).retry
        wait = None if fatal else retry.decide(families_of(ExternalError(error)), failures=held.job.attempt)
        return await self._settle(job_id, proves, Failed(error, "ExternalError", wait))

    async def release(self, job_id: str, proves: Proof, reason: str = "") -> Job:
        dumps(reason, "reason")
        return await self._settle(job_id, proves, Released(reason or "released by its worker"))

    async def acknowledge_cancel(self, job_id: str, proves: Proof) -> Job:
        return await self._settle(job_id, proves, CancelAcknowledged())

    async def _settle(self, job_id: str, proves: Proof, outcome: Outcome) -> Job:
        store, held = await self._held(job_id, proves)
        status = Status.CANCELLING if held.cancel_requested else Status.PROCESSING
        transition = decide(RowState(status, held.job.attempt, held.job.max_attempts), outcome)
        if await store.settle([Settlement(held.job, transition, held.ran_ms)]):
            raise _lost(job_id)
        await store.close_lease(held.job.lease)
        job = await self._queue.get(job_id)
        if job.ended:
            self._on_ended(job.topic, job.status.value)
        return job

    async def _held(self, job_id: str, proves: Proof) -> tuple[Store, Holding]:
        store = (await self._queue.open()).store
        held = (await store.held_by([job_id]))[0]
        if held is None and (await store.get([job_id]))[0] is None:
            raise JobNotFound(f"no job has the id {job_id[:60]!r}", id=job_id[:60])
        if held is None or not proves(held.job.token):
            raise _lost(job_id)
        return store, held


def _with_payload(job: Job, claimed: Claimed) -> Job:
    """With its secrets, which are not for readers but for the worker that runs it."""
    job.payload = from_json(claimed.payload)
    return job


class _Leases:
    """One lease per job, and a spare one for claims, open while the worker waits: it shows the worker as live."""

    def __init__(self, store: Store, name: str, lease_ms: int, job_lease_ms: int, serves: dict[str, Any]) -> None:
        self.store = store
        self.serves = serves
        self._name = name
        self._lease_ms = lease_ms
        self._job_lease_ms = job_lease_ms
        self._spare: int | None = None
        self._used: list[int] = []
        self._begun = 0.0

    async def spare(self) -> int:
        """A lease without a job and with most of its time left."""
        if self._spare is not None and time.monotonic() < self._begun + self._lease_ms / 3000:
            return self._spare
        begun = time.monotonic()
        if self._spare is None or not await self.store.renew(self._spare, self._lease_ms):
            self._spare = await self.store.open_lease(self._name, self._lease_ms, self.serves)
        self._begun = begun
        return self._spare

    async def split(self, jobs: Sequence[Claimed]) -> None:
        """Give each job a lease with the full duration; the spare one stays without a job."""
        assert self._spare is not None
        self._used += await self.store.split_lease(self._spare, jobs, self._job_lease_ms)

    def drop(self) -> None:
        self._spare = None

    def hand_over(self) -> None:
        """The worker knows about its jobs and is responsible for their leases from now on."""
        self._used.clear()

    async def close(self) -> None:
        """Close leases that were not handed over, so that the next worker can claim their jobs."""
        for lease in [*self._used, *([] if self._spare is None else [self._spare])]:
            await self.store.close_lease(lease)


def _checked_lease(lease: Duration) -> int:
    lease_ms = duration_ms(lease, "lease")
    if not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
        raise InvalidInput(f"lease: {shown(lease)} is out of range (5 s to 1 h)", field="lease")
    return lease_ms


def _lost(job_id: str) -> LeaseLost:
    return LeaseLost(f"job {job_id} is no longer yours: its lease ran out, or the token belongs to an older claim")
