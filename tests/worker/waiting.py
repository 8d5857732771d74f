"""Waiting for jobs."""

from tests.waiting import until
from treadle import Job, Queue

__all__ = ["ended", "event_types", "in_status", "until"]


async def ended(queue: Queue, job: Job, seconds: float = 15.0) -> Job:
    """The job once it has ended."""

    async def look() -> Job | None:
        now = await queue.get(job.id)
        return now if now.ended else None

    result: Job = await until(look, seconds)
    return result


async def in_status(queue: Queue, job: Job, status: str, seconds: float = 15.0) -> Job:
    async def look() -> Job | None:
        now = await queue.get(job.id)
        return now if now.status == status else None

    result: Job = await until(look, seconds)
    return result


async def event_types(queue: Queue, job: Job) -> list[str]:
    return [event.type for event in await queue.events(job.id)]
