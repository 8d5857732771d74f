"""The full history of a job: stored events, and the plain path derived from its timestamps."""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from treadle.model import events
from treadle.model.errors import JobNotFound
from treadle.model.events import Event
from treadle.model.job import Job, from_ms, rfc3339, to_ms
from treadle.model.status import Status
from treadle.store.protocol import Store

# How often to read again the history of a job that keeps moving.
LOOKS = 5


async def timeline(store: Store, id: str) -> list[Event]:
    """The full history: the plain path from timestamps, the rest from stored events."""
    told: list[Event] = []
    for _ in range(LOOKS):
        job = (await store.get([id]))[0]
        stored = await store.events(id)
        if job is None or stored is None:
            raise JobNotFound(f"no job has the id {id}", id=id)
        told = _Story(job, stored).told
        if len(told) == job.events_count:
            break
        # Otherwise the job moved between the two reads, and their results don't match.
    return told


class _Story:
    """Inserts the plain path between the stored events, which are in chronological order.

    The job's timestamps describe its last attempt. For an earlier attempt, the event that ended it has the start time
    (if it was started), and the requeue of a completed job has its outcome.
    """

    def __init__(self, job: Job, stored: Sequence[Event]) -> None:
        self._id = job.id
        self.told = [Event(None, job.id, events.ENQUEUED, None, Status.PENDING, "", {}, to_ms(job.created_at))]
        self._begin_attempt()
        for event in stored:
            self._add(event)
        self._start(None if job.started_at is None else to_ms(job.started_at), job.last_worker)
        if job.completed_at:
            self._complete(to_ms(job.completed_at), job.last_worker)
        if job.stale_at:
            self._mark_stale(to_ms(job.stale_at), job.status)

    def _begin_attempt(self) -> None:
        self._since = len(self.told)
        self._started = False

    def _add(self, event: Event) -> None:
        self._start(event.metadata.get("startedAt"), event.metadata.get("worker"))
        if event.from_status == Status.COMPLETED:
            outcome = event.metadata["outcome"]
            self._start(outcome["startedAt"], outcome.get("worker"))
            self._complete(outcome["endedAt"], outcome.get("worker"))
        if stale_at := event.metadata.get("outcome", {}).get("staleAt"):
            self._mark_stale(stale_at, Status(event.metadata["outcome"]["status"]))
        self.told.append(event._replace(metadata=_readable(event.metadata)))
        if event.to_status == Status.PENDING:
            self._begin_attempt()

    def _start(self, at: int | None, worker: str | None) -> None:
        """Insert the start before every other event of its attempt, as streams report it.

        The store learns about a short run at its end, slightly late, so a cancel may seem to have been requested
        earlier.
        """
        if at is not None and not self._started:
            self._started = True
            at = min([at, *(event.created_at for event in self.told[self._since :])])
            self.told.insert(self._since, self._plain(events.STARTED, Status.PENDING, Status.PROCESSING, at, worker))

    def _complete(self, at: int, worker: str | None) -> None:
        completed = self._plain(events.COMPLETED, Status.PROCESSING, Status.COMPLETED, at, worker)
        insort_right(self.told, completed, self._since, key=lambda event: event.created_at)

    def _mark_stale(self, at: int, status: Status) -> None:
        stale = Event(None, self._id, events.STALE, status, status, "", {}, at)
        insort_right(self.told, stale, self._since, key=lambda event: event.created_at)

    def _plain(self, type_: str, source: Status, to: Status, at: int, worker: str | None) -> Event:
        metadata = {} if worker is None else {"worker": worker}
        return Event(None, self._id, type_, source, to, "", metadata, at)


def _readable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Converts to JSON form: times in RFC 3339, results parsed. Stores keep milliseconds and text."""
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
