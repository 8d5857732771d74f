"""Event names, the same in process, in the stored history, on streams and in webhooks."""

from __future__ import annotations

from typing import Any, NamedTuple

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

NAMES = frozenset(
    f"job:{name}"
    for name in (
        "enqueued started progress step:completed completed failed retrying snoozed released reclaimed waiting "
        "cancelling cancelled expired requeued stale deleted webhook:delivered webhook:failed"
    ).split()
)


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
