"""The job as an event left it. It is read a little later, so it may have moved on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.model.events import PROGRESS, STALE
from treadle.model.job import from_ms, rfc3339
from treadle.model.status import ENDED, Status
from treadle.policy.lifecycle import retries
from treadle.store.views import Change

_ENDINGS = {Status.COMPLETED: "completedAt", Status.FAILED: "failedAt", Status.CANCELLED: "cancelledAt"}
_OF_AN_END = ("staleAt", "endedAt", "completedAt", "failedAt", "cancelledAt", "result", "errorGroup")
_OF_A_RUN = ("claimedAt", "startedAt", "lastHeartbeatAt", "lockedBy", "lockedUntil", "progressMessage")
_OF_A_CANCEL = ("cancelRequestedAt", "cancelReason")


def job_after(change: Change) -> dict[str, Any]:
    """The job after this change, with later changes undone as far as they are known."""
    assert change.job
    job = change.job.as_json()
    if change.worker is not None:
        job["lastWorker"] = change.worker
    to = change.to or change.job.status
    attempt = job["attempt"] if change.attempt is None else change.attempt
    if change.event == STALE:
        job["staleAt"] = rfc3339(from_ms(change.at))
    if change.event == PROGRESS:
        job["progress"], job["progressMessage"] = change.progress or 0, change.message
    elif to != job["status"] or attempt != job["attempt"]:
        job |= _as_it_was(job, to, attempt, rfc3339(from_ms(change.at)))
    return job


def _as_it_was(job: Mapping[str, Any], to: Status, attempt: int, at: str | None) -> dict[str, Any]:
    was: dict[str, Any] = dict.fromkeys(_OF_AN_END)
    was |= {"status": to, "attempt": attempt, "retries": retries(to, attempt), "updatedAt": at}
    if to in ENDED:
        was |= {"lockedBy": None, "lockedUntil": None, "lastHeartbeatAt": None, "result": job["result"], "endedAt": at}
        if to in _ENDINGS:
            was[_ENDINGS[to]] = at
    if to is Status.COMPLETED:
        was["progress"] = 100
    elif job["steps"]:
        was["progress"] = _progress_of_steps(job["steps"], at) if job["progress"] == 100 else job["progress"]
    elif job["progress"] == 100 or to is Status.PENDING:
        was["progress"] = 0
    if to is Status.PENDING:
        was |= dict.fromkeys(_OF_A_RUN)
    if to in (Status.PENDING, Status.PROCESSING):
        was |= dict.fromkeys(_OF_A_CANCEL)
    if attempt == 0:
        was |= {"lastError": None, "errorType": None}
    return was


def _progress_of_steps(steps: Sequence[Mapping[str, Any]], at: str | None) -> int:
    """A job with steps goes on where it was: what had ended by then counts."""
    done = sum(1 for step in steps if step["completedAt"] and step["completedAt"] <= (at or ""))
    return done * 100 // len(steps) if done < len(steps) else 99
