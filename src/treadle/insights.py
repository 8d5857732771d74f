"""The read side: statistics, timelines, and why a job is not running."""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from treadle import events
from treadle.errors import InvalidInput, JobNotFound
from treadle.events import Event
from treadle.job import Job, checked_topic, from_ms, rfc3339, short_text, to_ms
from treadle.lifecycle import Status
from treadle.rules import Condition, SortKey, always
from treadle.store.base import FOREVER, Listing, Stats, Store, Topic

MAX_LIMIT = 1000
MAX_OFFSET = 2**31
COUNT_CAP = 10_000
# How many of the newest completed jobs tell the average run time where the roll-ups can't.
AVERAGE_OF = 1000
# How often the history of a job that moves all the time is read again.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many jobs are in each state, and how well it goes."""

    pending: int = 0
    processing: int = 0
    waiting: int = 0
    cancelling: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    success_rate: float | None = None
    """completed / (completed + failed + expired); None when there is nothing."""
    avg_execution_time: float | None = None
    """Milliseconds, over completed jobs; None when there is nothing."""
    topics: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            **{status.value: getattr(self, status.value) for status in Status},
            "successRate": self.success_rate,
            "avgExecutionTime": self.avg_execution_time,
            "topics": self.topics,
        }


def summarise(stats: Stats) -> QueueStats:
    counts = stats.counts
    completed = counts[Status.COMPLETED]
    tried = completed + counts[Status.FAILED] + counts[Status.EXPIRED]
    return QueueStats(
        **{status.value: counts[status] for status in Status},
        success_rate=completed / tried if tried > 0 else None,
        avg_execution_time=stats.run_ms / completed if completed > 0 else None,
        topics={name: dict(c) for name, c in stats.topics.items()},
    )


def listing(
    topic: str | None,
    status: Status | str | None,
    scope: str | None,
    scope_id: str | None,
    limit: int,
    offset: int,
    condition: Condition = always,
    sort: Sequence[SortKey] = (),
) -> Listing:
    """Which jobs to list, everything checked; what is out of bounds is brought back into them."""
    stale = status == "stale"
    try:
        wanted = None if stale or status is None else Status(status)
    except ValueError:
        names = ", ".join([*Status, "stale"])
        raise InvalidInput(f"status: {status!r} is not one of {names}", field="status") from None
    return Listing(
        None if topic is None else checked_topic(topic),
        wanted,
        stale,
        short_text(scope, "scope"),
        short_text(scope_id, "scope_id"),
        min(max(limit, 1), MAX_LIMIT),
        min(max(offset, 0), MAX_OFFSET),
        condition,
        tuple(sort),
    )


async def stats_of(store: Store, condition: Condition, topic: str | None, since: datetime | None) -> QueueStats:
    """The same figures for a part of the jobs: counted (each up to 10,000) instead of read from the roll-ups."""
    start = None if since is None else to_ms(since, "since")

    def those(status: Status, limit: int = 1) -> Listing:
        return replace(listing(topic, status, None, None, limit, 0, condition), ended_since=start)

    counts: dict[str, int] = {one: min(await store.count(those(one), COUNT_CAP), COUNT_CAP) for one in Status}
    newest = await store.list(those(Status.COMPLETED, AVERAGE_OF))
    took = [
        (job.completed_at - job.started_at).total_seconds() * 1000
        for job in newest
        if job.completed_at and job.started_at
    ]
    average = sum(took) / len(took) if took else 0.0
    found = summarise(Stats(counts, 0))
    return replace(found, avg_execution_time=average if took else None)


async def topics_of(store: Store, condition: Condition, topics: Sequence[Topic]) -> list[Topic]:
    """The topics that a part of the jobs has, with the counts of that part."""

    async def count(topic: Topic, status: Status | None, most: int) -> int:
        return min(await store.count(listing(topic.topic, status, None, None, 1, 0, condition), most), most)

    return [
        replace(
            topic,
            # Where nobody has one, nothing needs to be counted.
            pending=await count(topic, Status.PENDING, COUNT_CAP) if topic.pending else 0,
            processing=await count(topic, Status.PROCESSING, COUNT_CAP) if topic.processing else 0,
        )
        for topic in topics
        if await count(topic, None, 1)
    ]


async def timeline(store: Store, id: str) -> list[Event]:
    """The whole history: the plain path from timestamps, the rest as it was stored."""
    told: list[Event] = []
    for _ in range(LOOKS):
        job = (await store.get([id]))[0]
        stored = await store.events(id)
        if job is None or stored is None:
            raise JobNotFound(f"no job has the id {id}", id=id)
        told = _Story(job, stored).told
        if len(told) == job.events_count:
            break
        # Else it moved between the two reads, and what the one says does not go with the other.
    return told


class _Story:
    """Puts the plain path where it belongs among the stored events, which are in the order in which they happened.

    The job's own timestamps tell of its last attempt. Of an earlier one, the event that ended it knows when it was
    started (if it was), and the requeue of a completed job knows its outcome.
    """

    def __init__(self, job: Job, stored: Sequence[Event]) -> None:
        self._id = job.id
        self.told = [Event(None, job.id, events.ENQUEUED, None, Status.PENDING, "", {}, to_ms(job.created_at))]
        self._begin_attempt()
        for event in stored:
            self._add(event)
        self._start(None if job.started_at is None else to_ms(job.started_at))
        if job.completed_at:
            self._complete(to_ms(job.completed_at))

    def _begin_attempt(self) -> None:
        self._since = len(self.told)
        self._started = False

    def _add(self, event: Event) -> None:
        self._start(event.metadata.get("startedAt"))
        if event.from_status == Status.COMPLETED:
            outcome = event.metadata["outcome"]
            self._start(outcome["startedAt"])
            self._complete(outcome["endedAt"])
        self.told.append(event._replace(metadata=_readable(event.metadata)))
        if event.to_status == Status.PENDING:
            self._begin_attempt()

    def _start(self, at: int | None) -> None:
        """Before whatever else happened in its attempt, as streams tell it.

        The store learns of a short run at its end, a moment late, so a cancel may seem to have been asked before.
        """
        if at is not None and not self._started:
            self._started = True
            at = min([at, *(event.created_at for event in self.told[self._since :])])
            self.told.insert(self._since, self._plain(events.STARTED, Status.PENDING, Status.PROCESSING, at))

    def _complete(self, at: int) -> None:
        completed = self._plain(events.COMPLETED, Status.PROCESSING, Status.COMPLETED, at)
        insort_right(self.told, completed, self._since, key=lambda event: event.created_at)

    def _plain(self, type_: str, source: Status, to: Status, at: int) -> Event:
        return Event(None, self._id, type_, source, to, "", {}, at)


def _readable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has everything: times in RFC 3339, a result as what it is. Stores keep milliseconds and text."""
    found = {
        name: rfc3339(from_ms(value)) if name.endswith("At") and isinstance(value, int) else value
        for name, value in metadata.items()
    }
    if outcome := metadata.get("outcome"):
        result = outcome["result"]
        found["outcome"] = {**_readable(outcome), "result": None if result is None else from_json(result)}
    return found


def event_as_json(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "jobId": event.job_id,
        "type": event.type,
        "from": event.from_status,
        "to": event.to_status,
        "message": event.message,
        "metadata": event.metadata,
        "createdAt": rfc3339(from_ms(event.created_at)),
    }


async def why(store: Store, id: str) -> list[str]:
    """Why this job is not running, in sentences; empty when it runs or could start at once."""
    job = (await store.get([id]))[0]
    if job is None:
        raise JobNotFound(f"no job has the id {id}", id=id)
    if job.status is Status.PROCESSING or job.status is Status.CANCELLING:
        return []
    if job.status is not Status.PENDING:
        return [f"it has ended: {job.status}" + (f" ({job.last_error.splitlines()[-1]})" if job.last_error else "")]
    return [
        *_by_time(job, from_ms(await store.now())),
        *await _by_topic(store, job),
        *await store.obstacles(id),
    ]


def _by_time(job: Job, now: datetime | None) -> list[str]:
    now = now or datetime.now(UTC)
    if job.run_at <= now:
        return []
    seconds = (job.run_at - now).total_seconds()
    cause = f"attempt {job.attempt} of {job.max_attempts} failed; it is tried again" if job.attempt else "it is due"
    return [f"{cause} at {rfc3339(job.run_at)}, in {seconds:.0f} s"]


async def _by_topic(store: Store, job: Job) -> list[str]:
    reasons = []
    for topic in await store.topics():
        if topic.topic == job.topic and topic.paused_until is not None:
            until = (
                "until it is resumed"
                if topic.paused_until >= FOREVER
                else f"until {rfc3339(from_ms(topic.paused_until))}"
            )
            reasons.append(f"topic {job.topic} is paused {until}")
    workers = await store.workers()
    serving = [worker for worker in workers if job.topic in worker.topics]
    if not serving:
        reasons.append(f"no live worker serves topic {job.topic}")
    elif job.capability and not any(job.capability in worker.capabilities for worker in serving):
        reasons.append(f"no live worker that serves topic {job.topic} has the capability {job.capability!r}")
    return reasons
