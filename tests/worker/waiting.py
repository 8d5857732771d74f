"""Waiting for something to be so, with a deadline."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from treadle import Job, Queue


async def until(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """What the condition says once it says something true."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        await asyncio.sleep(0.01)


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
