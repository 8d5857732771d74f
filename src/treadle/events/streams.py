"""The events of a queue inside a process, for `queue.stream()` and `job.watch()`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from treadle.events.feed import RESYNC, Feed, FeedStopped, Listener
from treadle.events.frames import PING_S, SNAPSHOT, frame, ping, snapshot_listing, snapshot_of
from treadle.events.ring import FeedEvent
from treadle.model.job import Job
from treadle.model.told_job import without_step_results
from treadle.store.views import Listing


async def events(
    feed: Feed, topic: str | None, job_id: str | None, *, snapshot: bool, whole: bool = False
) -> AsyncGenerator[dict[str, Any]]:
    """`whole` keeps large payloads and results in the events, and the results of steps."""
    async with contextlib.aclosing(_told(feed, topic, job_id, snapshot, whole=whole)) as told:
        async for one in told:
            if one is not None:
                yield {"event": SNAPSHOT, **one.payload} if one.event == SNAPSHOT else _event(one, whole)


def _event(told: FeedEvent, whole: bool) -> dict[str, Any]:
    event: dict[str, Any] = from_json(told.data)
    if whole and "job" in event:
        event["job"] = from_json(to_json(told.facts))
    return event


async def frames(feed: Feed, topic: str | None, job_id: str | None, *, snapshot: bool) -> AsyncGenerator[bytes]:
    """The same as server-sent events, and a `ping` when nothing has happened for a while."""
    async with contextlib.aclosing(_told(feed, topic, job_id, snapshot, quiet_s=PING_S)) as told:
        async for one in told:
            if one is None:
                yield ping()
            elif one.event == SNAPSHOT:
                yield frame(SNAPSHOT, to_json(one.payload), one.id)
            else:
                yield frame(one.event, one.data, None if one.event == RESYNC else one.id)


async def _told(
    feed: Feed,
    topic: str | None,
    job_id: str | None,
    snapshot: bool,
    *,
    quiet_s: float | None = None,
    whole: bool = False,
) -> AsyncGenerator[FeedEvent | None]:
    """Events and snapshots until the feed stops; None each time that nothing has happened for `quiet_s`."""

    def wanted(job: Mapping[str, Any]) -> bool:
        return topic in (None, job["topic"]) and job_id in (None, job["id"])

    listener = await feed.listener(match=wanted)
    jobs = [job_id] if job_id else snapshot_listing(topic=topic)
    try:
        if snapshot:
            yield await _snapshot(listener, jobs, whole=whole)
        while True:
            told = await listener.next(quiet_s)
            yield told
            if snapshot and told is not None and told.event == RESYNC:
                yield await _snapshot(listener, jobs, whole=whole)
    except FeedStopped:
        return
    finally:
        await listener.close()


async def _snapshot(listener: Listener, wanted: Listing | Sequence[str], *, whole: bool) -> FeedEvent:
    last, jobs = await listener.snapshot(wanted)
    documents = (job.as_json() if whole else without_step_results(job.as_json()) for job in jobs)
    return FeedEvent(last, SNAPSHOT, snapshot_of(documents), {}, b"")


async def states(feed: Feed, job_id: str) -> AsyncGenerator[Job]:
    """One job now, and after each of its events until it has ended or is deleted."""
    async with contextlib.aclosing(events(feed, None, job_id, snapshot=True, whole=True)) as told:
        async for event in told:
            if event["event"] == RESYNC:
                continue
            found = event["jobs"] if event["event"] == SNAPSHOT else [event["job"]] if "job" in event else []
            for one in found:
                job = Job.from_json(one)
                yield job
            if not found or job.ended:
                return
