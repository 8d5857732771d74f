"""Waiting for a condition. Time only runs out when something is wrong, so the limits are generous."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from treadle import Context, Job, Queue
from treadle.model.errors import StoreUnavailable
from treadle.model.job import from_ms
from treadle.testing.workbench import eventually as until

__all__ = [
    "after_failures",
    "certainly",
    "deaf_until",
    "ended",
    "event_types",
    "for_ever",
    "give_way",
    "in_status",
    "job_where",
    "lease_is",
    "nothing_live",
    "stays",
    "until",
    "until_blocking",
    "work_until_told",
]

T = TypeVar("T")


def until_blocking(
    condition: Callable[[], T], seconds: float = 120.0, explain: Callable[[], str] = lambda: "", every: float = 0.01
) -> T:
    """`until` for threads, processes and tests without an event loop."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds} s\n{explain()}"
        time.sleep(every)
    return answer


async def stays(condition: Callable[[], Any], seconds: float) -> None:
    """Nothing happens: this holds all that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition()
        await asyncio.sleep(0.01)
    assert condition()


async def give_way(turns: int = 1) -> None:
    """Let every task that can run do so, as any real await would."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def for_ever() -> None:
    """The work of a handler that ends only if it is stopped."""
    await asyncio.Event().wait()


def work_until_told(ctx: Context) -> NoReturn:
    """The work of a thread or a process that asks at every turn whether to stop."""
    while True:
        ctx.check_cancelled()
        time.sleep(0.005)


async def deaf_until(let_go: asyncio.Event) -> None:
    """The work of a handler that swallows every cancel."""
    while not let_go.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await let_go.wait()


async def certainly(call: Callable[..., Awaitable[T]], *values: Any, **options: Any) -> T:
    """The answer to a call that is made again while the store is away, as a careful client does it."""
    while True:
        try:
            return await call(*values, **options)
        except StoreUnavailable:
            await asyncio.sleep(0.02)


async def job_where(queue: Queue, job: Job, holds: Callable[[Job], bool], seconds: float = 120.0) -> Job:
    """The job once this holds of it."""

    async def look() -> Job | None:
        now = await queue.get(job.id)
        return now if holds(now) else None

    found: Job = await until(look, seconds)
    return found


async def ended(queue: Queue, job: Job, seconds: float = 120.0) -> Job:
    return await job_where(queue, job, lambda now: now.ended, seconds)


async def in_status(queue: Queue, job: Job, status: str, seconds: float = 120.0) -> Job:
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
