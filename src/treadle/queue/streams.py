"""The events of a queue inside a process, for `queue.stream()` and `job.watch()`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from pydantic_core import from_json

from treadle.insights.feed import RESYNC, Feed, FeedStopped, Listener
from treadle.model.job import Job
from treadle.store.views import Listing

SNAPSHOT = "snapshot"
SNAPSHOT_JOBS = 1000


async def events(
    feed: Feed, topic: str | None, job_id: str | None, *, snapshot: bool
) -> AsyncGenerator[dict[str, Any]]:
    def wanted(job: Mapping[str, Any]) -> bool:
        return topic in (None, job["topic"]) and job_id in (None, job["id"])

    listener = await feed.listener(match=wanted)
    jobs = job_id or Listing(topic=topic, limit=SNAPSHOT_JOBS)
    try:
        if snapshot:
            yield await _snapshot(listener, jobs)
        while told := await listener.next():
            yield from_json(told.data)
            if snapshot and told.event == RESYNC:
                yield await _snapshot(listener, jobs)
    except FeedStopped:
        return
    finally:
        await listener.close()


async def _snapshot(listener: Listener, wanted: Listing | str) -> dict[str, Any]:
    _, jobs = await listener.snapshot(wanted)
    return {"event": SNAPSHOT, "jobs": [job.as_json() for job in jobs]}


async def states(feed: Feed, job_id: str) -> AsyncGenerator[Job]:
    """One job now, and after each of its events until it has ended or is deleted."""
    async with contextlib.aclosing(events(feed, None, job_id, snapshot=True)) as told:
        async for event in told:
            if event["event"] == RESYNC:
                continue
            found = event["jobs"] if event["event"] == SNAPSHOT else [event["job"]] if "job" in event else []
            for one in found:
                job = Job.from_json(one)
                yield job
            if not found or job.ended:
                return
