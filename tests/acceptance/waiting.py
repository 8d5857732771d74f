"""Waiting for something to be so. Time only runs out when something is wrong."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from treadle import Job, Queue


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What the condition says once it says something true."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        answer = await answer if inspect.isawaitable(answer) else answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        await asyncio.sleep(0.005)


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
