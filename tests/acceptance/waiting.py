"""Waiting for jobs. Time only runs out when something is wrong."""

from tests.waiting import until
from treadle import Job, Queue

__all__ = ["after_failures", "in_status", "until"]


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
