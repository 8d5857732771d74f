"""Treadle: a durable job queue for Python that lives in the database you already have."""

from treadle.errors import (
    ConcurrencyRejected,
    Fail,
    InvalidInput,
    InvalidPayload,
    JobCancelled,
    JobFailed,
    JobNotFound,
    KeyReused,
    LeaseLost,
    NotCancelable,
    NotRepeatable,
    PayloadTooLarge,
    ResultTimeout,
    RetryAfter,
    SchemaMismatch,
    Snooze,
    StoreUnavailable,
    TemplateDisabled,
    TreadleError,
    WrongState,
)
from treadle.events import Event
from treadle.insights import QueueStats
from treadle.job import Job
from treadle.lifecycle import Status
from treadle.policy import Retry
from treadle.queue import JobRequest, Queue, Task
from treadle.template import CancelPolicy, Concurrency, Rate, Template
from treadle.worker import Context, Worker

__version__ = "0.1.0"

__all__ = [
    "CancelPolicy",
    "Concurrency",
    "ConcurrencyRejected",
    "Context",
    "Event",
    "Fail",
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
    "PayloadTooLarge",
    "Queue",
    "QueueStats",
    "Rate",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "SchemaMismatch",
    "Snooze",
    "Status",
    "StoreUnavailable",
    "Task",
    "Template",
    "TemplateDisabled",
    "TreadleError",
    "Worker",
    "WrongState",
]
