"""The columns of the list of jobs that a person can add; the choice is part of the address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from treadle.insights.error_text import read_error
from treadle.model.job import Job


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    css: str
    value: Callable[[Job], str | datetime | None]

    @property
    def numeric(self) -> bool:
        return self.name in ("priority", "attempt")


def _error(job: Job) -> str:
    error = read_error(job.last_error, job.error_type)
    return error.line if error else ""


COLUMNS = (
    Column("error", "Error", "c-176", _error),
    Column("priority", "Priority", "c-80", lambda job: str(job.priority)),
    Column("attempt", "Attempt", "c-80", lambda job: f"{job.attempt} / {job.max_attempts}"),
    Column("createdAt", "Created", "c-88", lambda job: job.created_at),
    Column("startedAt", "Started", "c-88", lambda job: job.started_at),
    Column("endedAt", "Ended", "c-88", lambda job: job.ended_at),
    Column("worker", "Worker", "c-128", lambda job: job.locked_by or job.last_worker),
    Column("capability", "Capability", "c-112", lambda job: job.capability),
    Column("scopeId", "Scope", "c-144", lambda job: " ".join(filter(None, (job.scope, job.scope_id)))),
    Column("createdBy", "Created by", "c-144", lambda job: job.created_by),
    Column("scheduleId", "Schedule", "c-144", lambda job: job.schedule_id),
    Column("idempotencyKey", "Idempotency key", "c-144", lambda job: job.idempotency_key),
)


def chosen(given: Iterable[str]) -> Sequence[Column]:
    """From `cols=error,priority` or `cols=error&cols=priority`; unknown names are left out."""
    names = {name.strip() for text in given for name in text.split(",")}
    return [column for column in COLUMNS if column.name in names]


def as_query(columns: Sequence[Column]) -> str:
    return ",".join(column.name for column in columns)
