"""Waiting for a condition. Time only runs out when something is wrong, so the limits are generous."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from treadle import Job, Queue
from treadle.model.errors import StoreUnavailable
from treadle.model.job import from_ms


async def until(
    condition: Callable[[], Any], seconds: float = 60.0, explain: Callable[[], str] = lambda: "", every: float = 0.01
) -> Any:
    """What the condition, a function or a coroutine function, returns once that is true."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds} s\n{explain()}"
        await asyncio.sleep(every)


async def job_where(queue: Queue, job: Job, holds: Callable[[Job], bool], seconds: float = 60.0) -> Job:
    """The job once this holds of it."""

    async def look() -> Job | None:
        now = await queue.get(job.id)
        return now if holds(now) else None

    found: Job = await until(look, seconds)
    return found


async def ended(queue: Queue, job: Job, seconds: float = 60.0) -> Job:
    return await job_where(queue, job, lambda now: now.ended, seconds)


async def in_status(queue: Queue, job: Job, status: str, seconds: float = 60.0) -> Job:
    return await job_where(queue, job, lambda now: now.status == status, seconds)


async def after_failures(queue: Queue, job: Job, failures: int) -> Job:
    """The job once it waits after this many failures, or has failed for good."""
    return await job_where(queue, job, lambda now: now.retries == failures and now.locked_by is None)


async def nothing_live(queue: Queue) -> bool:
    """Whether all jobs have ended; not so if the store can't say."""
    try:
        stats = await queue.stats()
    except StoreUnavailable:
        return False
    return not (stats.pending or stats.processing or stats.cancelling)


async def event_types(queue: Queue, job: Job) -> list[str]:
    return [event.type for event in await queue.events(job.id)]


async def lease_is(queue: Queue, job: Job, long: timedelta) -> None:
    """The job is locked for exactly so long after its worker's last heartbeat. The claim counts as the job's first."""
    job, renewed_at = await until(lambda: _between_heartbeats(queue, job))
    assert job.locked_until - renewed_at == long
    assert job.last_heartbeat_at == max(renewed_at, job.claimed_at)


async def _between_heartbeats(queue: Queue, job: Job) -> tuple[Job, datetime | None] | None:
    """The job and its worker's last heartbeat, unless one came between the two looks."""
    before = await _heartbeats(queue)
    job = await queue.get(job.id)
    return (job, from_ms(before[job.locked_by])) if await _heartbeats(queue) == before else None


async def _heartbeats(queue: Queue) -> dict[str | None, int]:
    return {worker.name: worker.renewed_at for worker in await queue.store.workers()}
