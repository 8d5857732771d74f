"""The audit log as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from treadle.model.job import is_job_id
from treadle.queue.audit import AuditEntry

WHAT = {
    "requeue": "Requeued",
    "answer": "Answered",
    "cancel": "Cancelled",
    "delete": "Deleted",
    "release": "Released",
    "patch": "Rescheduled",
    "edit": "Edited",
    "enqueue": "Enqueued",
    "pause": "Paused",
    "resume": "Resumed",
    "stop_operation": "Stopped the operation",
    "drain": "Asked to drain: worker",
    "undrain": "Asked to go on: worker",
    "run_schedule": "Ran the schedule",
    "enable_schedule": "Switched on the schedule",
    "disable_schedule": "Switched off the schedule",
    "create_schedule": "Made the schedule",
    "edit_schedule": "Edited the schedule",
    "delete_schedule": "Deleted the schedule",
    "enable_template": "Switched on the template",
    "disable_template": "Switched off the template",
    "use_template": "Changed the version of the template",
    "create_webhook": "Made the webhook",
    "edit_webhook": "Edited the webhook",
    "enable_webhook": "Switched on the webhook",
    "disable_webhook": "Switched off the webhook",
    "delete_webhook": "Deleted the webhook",
    "rotate_webhook": "Rotated the secret of the webhook",
    "test_webhook": "Sent a test to the webhook",
    "redeliver": "Sent again to the webhook",
    "redeliver_since": "Sent all again to the webhook",
    "settings": "Changed the settings",
    "api_key": "Made the API key",
    "revoke_api_key": "Revoked the API key",
    "revoke_sessions": "Signed out everywhere",
    "invite": "Made a link that invites a superuser",
    "accept_invitation": "Became a superuser by an invitation",
}


@dataclass(frozen=True, slots=True)
class AuditRow:
    at: datetime
    who: str
    kind: str
    what: str
    target: str
    url: str
    filter: str
    reason: str
    outcome: str


def audit_rows(entries: Sequence[AuditEntry]) -> list[AuditRow]:
    return [_row(entry) for entry in entries]


def _row(entry: AuditEntry) -> AuditRow:
    what = WHAT.get(entry.action, entry.action)
    target, url = entry.target, ""
    if is_job_id(target):
        what, target, url = f"{what} job", f"…{target[-8:]}", f"/jobs/{target}"
    elif entry.action in ("pause", "resume"):
        url = f"/jobs?topic={target}"
    elif target:
        what = f"{what} {target}"
    if entry.changed is not None:
        what = f"{what} {entry.changed:,} jobs"
    done = {"requeue": "requeued", "cancel": "cancelled", "delete": "deleted", "patch": "changed"}.get(
        entry.action, "done"
    )
    outcome = "" if entry.changed is None else f"{entry.changed:,} {done}"
    outcome += f", {entry.skipped:,} skipped" if entry.skipped else ""
    return AuditRow(entry.at, entry.who, entry.kind, what, target, url, entry.filter, entry.reason, outcome)
