"""One job as a row of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from treadle.dashboard import words
from treadle.dashboard.columns import Column
from treadle.insights.delays import why_late
from treadle.insights.error_text import read_error
from treadle.insights.overview import Now
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.model.steps import StepState

# A pending job that is this late shows the reason.
LATE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class SecondLine:
    text: str
    since: datetime | None = None
    """From when on it has been due; the text goes on after that."""
    bad: bool = False
    progress: int | None = None
    step: str = ""
    """The step that the text is about."""
    until: datetime | None = None
    """When its wait gives up."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    at: datetime | None
    numeric: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    id: str
    tail: str
    status: str
    topic: str
    payload: Sequence[tuple[str, str]]
    run_at: datetime
    took: str
    since: datetime | None
    """When the current wait or run began."""
    retries: str
    second: SecondLine | None
    actions: Sequence[str]
    extra: Sequence[Cell] = ()
    """One for each column that was added."""

    @property
    def ticking(self) -> bool:
        return self.since is not None


def job_row(job: Job, queue: Now, now: datetime, columns: Sequence[Column] = ()) -> JobRow:
    since, took = _took(job, now)
    return JobRow(
        job.id,
        job.id[-8:],
        job.status.value,
        job.topic,
        words.excerpt(job.payload),
        job.run_at,
        took,
        since,
        f"{job.retries} / {job.max_attempts}" if job.retries else "",
        _second(job, queue, now),
        actions(job),
        [_cell(job, column) for column in columns],
    )


def _cell(job: Job, column: Column) -> Cell:
    value = column.value(job)
    if isinstance(value, datetime):
        return Cell("", value, False)
    return Cell(value or "", None, column.numeric)


def actions(job: Job) -> list[str]:
    """The actions possible in the job's state."""
    match job.status:
        case Status.PENDING:
            return ["edit", "cancel", "delete"]
        case Status.PROCESSING:
            return ["cancel", "release"]
        case Status.WAITING:
            return ["cancel"]
        case Status.CANCELLING:
            return []
        case _:
            return ["requeue", "delete"]


def _took(job: Job, now: datetime) -> tuple[datetime | None, str]:
    """How long it ran, or has waited or run so far; nothing for a job that is not due yet."""
    if job.ended:
        return None, words.span(job.started_at, job.ended_at) if job.started_at else ""
    since = job.started_at if job.started_at else max(job.run_at, job.created_at)
    return (since, words.span(since, now)) if since <= now else (None, "")


def _second(job: Job, queue: Now, now: datetime) -> SecondLine | None:
    error = read_error(job.last_error, job.error_type)
    if job.status is Status.FAILED or job.status is Status.EXPIRED:
        return SecondLine(error.line, bad=True) if error else None
    if job.status in (Status.PROCESSING, Status.CANCELLING):
        shows = job.progress or job.progress_message
        return SecondLine(job.progress_message or "", progress=job.progress) if shows else None
    if job.status is Status.WAITING:
        waits = next((step["id"] for step in job.steps if step["status"] == StepState.WAITING), job.step)
        return SecondLine("waits for an answer.", step=waits or "?", until=job.waits_until)
    if job.status is Status.PENDING:
        return _late(job, queue, now, error.line if error else "")
    return None


def _late(job: Job, queue: Now, now: datetime, error: str) -> SecondLine | None:
    if job.run_at > now:
        return SecondLine(f"Tries again. Last error: {error}") if job.attempt and error else None
    late = now - max(job.run_at, job.created_at)
    if late < LATE:
        return None
    return SecondLine(why_late(queue, job), since=max(job.run_at, job.created_at))
