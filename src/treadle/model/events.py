"""Event names, the same in process, in the stored history, on streams and in webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from treadle.model.errors import InvalidInput

ENQUEUED = "job:enqueued"
STARTED = "job:started"
COMPLETED = "job:completed"
RETRYING = "job:retrying"
PROGRESS = "job:progress"
STEP_COMPLETED = "job:step:completed"
WAITING = "job:waiting"
CANCELLING = "job:cancelling"
REQUEUED = "job:requeued"
STALE = "job:stale"
DELETED = "job:deleted"
WEBHOOK_DELIVERED = "job:webhook:delivered"
WEBHOOK_FAILED = "job:webhook:failed"

# In the metadata of a requeue: the payload that a new one replaced.
OLD_PAYLOAD = "payload"

DESCRIBED: Mapping[str, str] = {
    ENQUEUED: "the job was stored",
    STARTED: "a handler began an attempt",
    PROGRESS: "a handler reported progress; at most four times a second",
    STEP_COMPLETED: "a step completed; steps with keys at most four times a second",
    COMPLETED: "the job completed",
    "job:failed": "the job failed and has no attempt left",
    RETRYING: "an attempt failed and the job will be retried",
    "job:snoozed": "a handler put its job off; that costs no attempt",
    "job:released": "a worker gave the job back",
    "job:reclaimed": "the job was taken back from a worker that was lost",
    WAITING: "the job waits for an answer, without a worker",
    CANCELLING: "a cancel was requested of a job that runs",
    "job:cancelled": "the job was cancelled",
    "job:expired": "the job expired, or was lost with its last attempt",
    REQUEUED: "an ended job was put back",
    "job:stale": "the job ended long ago and will be deleted",
    DELETED: "the job was deleted",
    "job:webhook:delivered": "a webhook of the job was delivered",
    "job:webhook:failed": "a webhook of the job was given up",
}
"""Every event about a job."""

NAMES = frozenset(DESCRIBED)

EVENT_WORDS: Mapping[str, str] = {"job:phase:completed": STEP_COMPLETED}
"""Other names, accepted where listeners are registered."""


def checked_event(name: str) -> str:
    """Our name for the event; InvalidInput names the nearest."""
    found = EVENT_WORDS.get(name, name) if isinstance(name, str) else ""
    if found in NAMES:
        return found
    whole = name if str(name).startswith("job:") else f"job:{name}"
    near = [whole] if whole in NAMES else get_close_matches(whole, sorted({*NAMES, *EVENT_WORDS}), 1, 0.0)
    raise InvalidInput(f"{str(name)[:60]!r} is not an event; did you mean {near[0]}?", field="event")


class Event(NamedTuple):
    """One line of a job's history."""

    id: int | None
    """None for enqueued, started, completed and stale, which are not stored but derived from timestamps."""
    job_id: str
    type: str
    from_status: str | None
    to_status: str | None
    message: str
    metadata: dict[str, Any]
    created_at: int
    """Milliseconds since the epoch."""
