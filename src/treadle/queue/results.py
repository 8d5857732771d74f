"""Waiting for a job's result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from treadle.model.errors import JobFailed, ResultTimeout
from treadle.model.status import Status
from treadle.store.wakeups import ENDED

if TYPE_CHECKING:
    from treadle.model.job import Job
    from treadle.queue.queue import Queue


async def ended(queue: Queue, job_id: str, seconds: float | None) -> Job:
    """The job once it has ended; ResultTimeout if that takes longer."""
    job = await queue.get(job_id)
    if job.ended:
        return job
    news = asyncio.Event()
    unsubscribe = queue.store.subscribe(lambda hint: news.set() if hint == ENDED else None)
    try:
        async with asyncio.timeout(seconds):
            return await _poll(queue, job_id, news)
    except TimeoutError:
        raise ResultTimeout(f"job {job_id} has not ended within {seconds:g} s", id=job_id) from None
    finally:
        unsubscribe()


async def _poll(queue: Queue, job_id: str, news: asyncio.Event) -> Job:
    """Wait for hints from this process, and poll for changes by other processes."""
    pause = 0.02
    while not (job := await queue.get(job_id)).ended:
        try:
            async with asyncio.timeout(pause):
                await news.wait()
        except TimeoutError:
            pause = min(pause * 1.5, 0.5)
        news.clear()
    return job


def completed(job: Job) -> Job:
    """The job if it completed; JobFailed otherwise."""
    if job.status is Status.COMPLETED:
        return job
    reason = f": {job.last_error}" if job.last_error else ""
    raise JobFailed(f"job {job.id} is {job.status}{reason}", status=str(job.status), id=job.id)
