"""Waiting for jobs. Time only runs out when something is wrong."""

from datetime import datetime, timedelta

from tests.waiting import until
from treadle import Job, Queue
from treadle.model.job import from_ms

__all__ = ["after_failures", "in_status", "lease_is", "until"]


async def in_status(queue: Queue, job: Job, status: str) -> Job:
    async def look() -> Job | None:
        now = await queue.get(job.id)
        return now if now.status == status else None

    found: Job = await until(look)
    return found


async def after_failures(queue: Queue, job: Job, failures: int) -> Job:
    """The job once it waits after so many failures, or has failed for good."""

    async def look() -> Job | None:
        now = await queue.get(job.id)
        return now if now.retries == failures and now.locked_by is None else None

    found: Job = await until(look)
    return found


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
