"""Treadle: a durable job queue for Python that lives in the database you already have."""

from treadle.insights.stats import QueueStats
from treadle.model.errors import (
    CodeDefined,
    ConcurrencyRejected,
    Fail,
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
    StoreUnavailable,
    TemplateDisabled,
    TemplateNotFound,
    TreadleError,
    UnknownTimezone,
    VersionConflict,
    WrongState,
)
from treadle.model.events import Event
from treadle.model.job import Job
from treadle.model.retry import Retry
from treadle.model.status import Status
from treadle.model.template import CancelPolicy, Concurrency, Rate, Template
from treadle.policy.schedule import Schedule
from treadle.queue import ArgumentsTask, EnqueueOptions, JobRequest, PayloadTask, Queue, SyncJob, Task
from treadle.worker import Context, Worker

__version__ = "0.1.0"

__all__ = [
    "ArgumentsTask",
    "CancelPolicy",
    "CodeDefined",
    "Concurrency",
    "ConcurrencyRejected",
    "Context",
    "EnqueueOptions",
    "Event",
    "Fail",
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
    "StoreUnavailable",
    "SyncJob",
    "Task",
    "Template",
    "TemplateDisabled",
    "TemplateNotFound",
    "TreadleError",
    "UnknownTimezone",
    "VersionConflict",
    "Worker",
    "WrongState",
]
