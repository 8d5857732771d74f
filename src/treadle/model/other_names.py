"""Other names for Treadle's terms: accepted where jobs are read, suggested in error messages elsewhere.

Request and response bodies use only our names: a second name in a body would be a way around a rule. `docs/words.md`
explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from treadle.model.status import Status


class StatusWord(NamedTuple):
    """A status, and a condition on one more field."""

    status: Status
    field: str = ""
    sign: str = ""
    value: str | int = ""


STALE = "stale"
"""Used like a status in queries, although it is a mark on an ended job."""

STATUS_WORDS: Mapping[str, StatusWord] = {
    **{status.value: StatusWord(status) for status in Status},
    "queued": StatusWord(Status.PENDING),
    "retry": StatusWord(Status.PENDING, "attempt", ">", 0),
    "claimed": StatusWord(Status.PROCESSING, "startedAt", "=", ""),
    "running": StatusWord(Status.PROCESSING),
    "active": StatusWord(Status.PROCESSING),
    "waiting_worker": StatusWord(Status.WAITING),
    "cancel_requested": StatusWord(Status.CANCELLING),
    "succeeded": StatusWord(Status.COMPLETED),
    "dead_letter": StatusWord(Status.FAILED),
}

FIELD_WORDS: Mapping[str, str] = {"phase": "step"}
"""Names of fields in filters, searches and sorts."""

RIGHT_WORDS: Mapping[str, str] = {
    "job_type": "topic",
    "type": "topic",
    "templateType": "topic",
    "job_id": "id",
    "jobId": "id",
    "phase": "step",
    "current_phase": "step",
    "args": "payload",
    "input": "payload",
    "scheduled_at": "runAt",
    "max_backoff": "the template's retry",
    "worker_capability": "capability",
    "workerType": "workerTypes",
    "worker": "workerId",
    "batch_size": "limit",
    "batchSize": "limit",
    "dry_run": "dryRun",
    "per_page": "perPage",
}
"""The name to suggest, for error messages."""


def unknown_status(word: str) -> str:
    """The error for a text that is not a status."""
    return f"{word[:60]!r} is not a status; use one of {', '.join([*Status, STALE])}"
