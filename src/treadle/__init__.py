"""Treadle: a durable job queue for Python that lives in the database you already have."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.insights.stats import QueueStats
    from treadle.model.caller import Caller
    from treadle.model.errors import (
        AnswerError,
        ChildFailed,
        CodeDefined,
        ConcurrencyRejected,
        DoubledStep,
        Fail,
        InvalidAnswer,
        InvalidCron,
        InvalidInput,
        InvalidPayload,
        JobCancelled,
        JobFailed,
        JobNotFound,
        KeyReused,
        LeaseLost,
        NotCancelable,
        NotRepeatable,
        NotSchedulable,
        PayloadTooLarge,
        RemoteError,
        ResultTimeout,
        RetryAfter,
        ScheduleNotFound,
        SchemaMismatch,
        Snooze,
        StepEnded,
        StoreUnavailable,
        TemplateDisabled,
        TemplateNotFound,
        TreadleError,
        UnknownStep,
        UnknownTimezone,
        VersionConflict,
        WaitTimeout,
        WrongState,
    )
    from treadle.model.events import Event
    from treadle.model.job import Job
    from treadle.model.retry import Retry
    from treadle.model.status import Status
    from treadle.model.template import CancelPolicy, Concurrency, Rate, Template
    from treadle.policy.schedule import Schedule
    from treadle.queue import ArgumentsTask, EnqueueOptions, JobRequest, PayloadTask, Queue, SyncJob, Task
    from treadle.queue.handlers.context import current_context
    from treadle.queue.handlers.flows import Flow
    from treadle.worker import Context, Worker

__version__ = "0.1.0"


__all__ = [
    "AnswerError",
    "ArgumentsTask",
    "Caller",
    "CancelPolicy",
    "ChildFailed",
    "CodeDefined",
    "Concurrency",
    "ConcurrencyRejected",
    "Context",
    "DoubledStep",
    "EnqueueOptions",
    "Event",
    "Fail",
    "Flow",
    "InvalidAnswer",
    "InvalidCron",
    "InvalidInput",
    "InvalidPayload",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobRequest",
    "KeyReused",
    "LeaseLost",
    "NotCancelable",
    "NotRepeatable",
    "NotSchedulable",
    "PayloadTask",
    "PayloadTooLarge",
    "Queue",
    "QueueStats",
    "Rate",
    "RemoteError",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Schedule",
    "ScheduleNotFound",
    "SchemaMismatch",
    "Snooze",
    "Status",
    "StepEnded",
    "StoreUnavailable",
    "SyncJob",
    "Task",
    "Template",
    "TemplateDisabled",
    "TemplateNotFound",
    "TreadleError",
    "UnknownStep",
    "UnknownTimezone",
    "VersionConflict",
    "WaitTimeout",
    "Worker",
    "WrongState",
    "current_context",
]

# A program that only enqueues loads neither the worker nor anything of the server: each name is imported at its first
# use. A test compares this table with the imports above.
_HOMES = {
    "treadle.insights.stats": "QueueStats",
    "treadle.model.caller": "Caller",
    "treadle.model.errors": (
        "AnswerError ChildFailed CodeDefined ConcurrencyRejected DoubledStep Fail InvalidAnswer InvalidCron "
        "InvalidInput InvalidPayload JobCancelled JobFailed JobNotFound KeyReused LeaseLost NotCancelable "
        "NotRepeatable NotSchedulable PayloadTooLarge RemoteError ResultTimeout RetryAfter ScheduleNotFound "
        "SchemaMismatch Snooze StepEnded StoreUnavailable TemplateDisabled TemplateNotFound TreadleError "
        "UnknownStep UnknownTimezone VersionConflict WaitTimeout WrongState"
    ),
    "treadle.model.events": "Event",
    "treadle.model.job": "Job",
    "treadle.model.retry": "Retry",
    "treadle.model.status": "Status",
    "treadle.model.template": "CancelPolicy Concurrency Rate Template",
    "treadle.policy.schedule": "Schedule",
    "treadle.queue": "ArgumentsTask EnqueueOptions JobRequest PayloadTask Queue SyncJob Task",
    "treadle.queue.handlers.context": "current_context",
    "treadle.queue.handlers.flows": "Flow",
    "treadle.worker": "Context Worker",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # type checkers would believe that the package has every name

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home), name)
        return found


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOME_OF.keys())
