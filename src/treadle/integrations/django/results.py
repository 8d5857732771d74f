"""A job as `django.tasks` shows it."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.tasks.exceptions import TaskResultDoesNotExist
from django.utils.module_loading import import_string

import treadle
from treadle import Event, Job, Status

STATUSES = {
    Status.PENDING: TaskResultStatus.READY,
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.WAITING: TaskResultStatus.RUNNING,
    Status.CANCELLING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
    Status.EXPIRED: TaskResultStatus.FAILED,
}
# What ended a task that did not fail by itself.
ENDED_BY = {
    Status.CANCELLED: "treadle.integrations.django.JobCancelled",
    Status.EXPIRED: "treadle.integrations.django.JobExpired",
}


def task_of(job: Job, backend: str) -> Task:
    """The task that a job runs, as it was enqueued."""
    prefix, _, path = job.topic.partition(":")
    try:
        task = import_string(path) if prefix == "django" else None
    except ImportError:
        task = None
    if not isinstance(task, Task):
        raise TaskResultDoesNotExist(f"job {job.id} runs {job.topic}, which is no task of this project")
    return task.using(
        priority=max(min(job.priority - 50, 100), -100),  # an operator may have gone beyond Django's range
        queue_name=job.capability or "default",
        run_after=job.run_at if job.run_at > job.created_at else None,
        backend=backend,
    )


def result_of(job: Job, events: Sequence[Event], task: Task, backend: str) -> TaskResult:
    starts = [event for event in events if event.type == "job:started"]
    result = TaskResult(
        task=task,
        id=job.id,
        status=STATUSES[job.status],
        enqueued_at=job.created_at,
        started_at=_time(starts[0]) if starts else job.started_at,
        finished_at=job.ended_at,
        last_attempted_at=_time(starts[-1]) if starts else job.started_at,
        args=list(job.payload.get("args", ())),
        kwargs=dict(job.payload.get("kwargs", {})),
        backend=backend,
        errors=list(_errors(job, events)),
        worker_ids=[str(event.metadata.get("worker", "")) for event in starts],
    )
    object.__setattr__(result, "_return_value", job.result_value)
    return result


def _time(event: Event) -> datetime:
    return datetime.fromtimestamp(event.created_at / 1000, UTC)


def _errors(job: Job, events: Sequence[Event]) -> Iterator[TaskError]:
    """One for each attempt that raised, and one for what ended the job otherwise."""
    for event in events:
        kind = event.metadata.get("errorType")
        if kind and event.to_status not in ENDED_BY:
            yield TaskError(
                exception_class_path=_path(str(kind)), traceback=str(event.metadata.get("error") or event.message)
            )
    if path := ENDED_BY.get(job.status):
        yield TaskError(exception_class_path=path, traceback=job.cancel_reason or job.last_error or job.status.value)


def _path(kind: str) -> str:
    """Events name built-in exceptions and Treadle's without their module."""
    if "." in kind:
        return kind
    homes: tuple[tuple[str, Any], ...] = (("builtins", builtins), ("treadle", treadle))
    found = [module for module, home in homes if isinstance(getattr(home, kind, None), type)]
    return f"{found[0]}.{kind}" if found else "treadle.JobFailed"
