"""Everything Treadle raises, in one small tree.

Each error has a stable `code` (the HTTP API and the CLI show it) and a message that says
what was wrong, with what, and what to do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any


class TreadleError(Exception):
    """Base of every error that Treadle raises itself."""

    code = "error"

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class InvalidInput(TreadleError, ValueError):
    """An argument, option or setting that can't be used; `data["field"]` names it where there is one."""

    code = "invalid_input"


class InvalidPayload(InvalidInput):
    """A payload or result that is not plain JSON, or that its type refuses."""

    code = "invalid_payload"


class PayloadTooLarge(InvalidPayload):
    """A payload of more than 1 MiB of compact JSON."""

    code = "payload_too_large"


class JobNotFound(TreadleError, LookupError):
    """No job has this id."""

    code = "not_found"


class WrongState(TreadleError):
    """The job's state does not allow what was asked."""

    code = "wrong_state"


class NotCancelable(WrongState):
    """The job runs and its template says that a running job can't be cancelled."""

    code = "not_cancelable"


class LeaseLost(TreadleError):
    """The right to run this job is gone: its lease ran out or another worker has it."""

    code = "lease_lost"


class Refused(TreadleError):
    """An enqueue that a policy turned down."""

    code = "refused"


class KeyReused(Refused):
    """The idempotency key belongs to a job with another payload."""

    code = "idempotency_key_reused"


class ConcurrencyRejected(Refused):
    """`reject_same_scope`: a job with the same key is still live; `data["jobId"]` is its id."""

    code = "concurrency_rejected"


class NotRepeatable(Refused):
    """A job with the same dedupe keys has completed, and its template is not repeatable."""

    code = "not_repeatable"


class TemplateDisabled(Refused):
    """The topic's template is switched off."""

    code = "template_disabled"


class StoreUnavailable(TreadleError):
    """The database can't be reached or can't write just now; the same call may work later."""

    code = "store_unavailable"


class SchemaMismatch(TreadleError):
    """The database's schema is newer than this code, or is not there yet."""

    code = "schema_mismatch"


class JobFailed(TreadleError):
    """`Job.result()` of a job that ended without completing; `data["status"]` says how."""

    code = "job_failed"


class ResultTimeout(TreadleError, TimeoutError):
    """`Job.result()` waited long enough."""

    code = "result_timeout"


# What a handler may raise to choose its own ending.


class Fail(Exception):
    """Raised by a handler: fail now, whatever attempts are left."""


class RetryAfter(Exception):
    """Raised by a handler: try again after this delay (it costs the attempt)."""

    def __init__(self, delay: str | float | timedelta, message: str = "") -> None:
        super().__init__(message or f"retry after {delay}")
        self.delay = delay


class Snooze(Exception):
    """Raised by a handler: come back after this delay; it costs no attempt."""

    def __init__(self, delay: str | float | timedelta, message: str = "") -> None:
        super().__init__(message or f"snoozed for {delay}")
        self.delay = delay


class JobCancelled(BaseException):
    """Raised inside a handler at its next checkpoint once a cancel was asked.

    A BaseException like asyncio's own, so that `except Exception` does not swallow it.
    """
