"""All exceptions of Treadle.

Each error has a stable `code` (shown by the HTTP API and the CLI) and a message that says what was wrong, with what,
and what to do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from treadle.model.error_line import error_line


class TreadleError(Exception):
    """Base class of every error that Treadle raises."""

    code = "error"

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class InvalidInput(TreadleError, ValueError):
    """An invalid argument, option or setting; `data["field"]` names it if there is one."""

    code = "invalid_input"

    def name_item(self, item: str) -> None:
        """The message also names the item of a list that it is about."""
        self.message = f"{item}: {self.message}"
        self.args = (self.message,)


class InvalidPayload(InvalidInput):
    """A payload or result that is not plain JSON or does not match its type."""

    code = "invalid_payload"


class PayloadTooLarge(InvalidPayload):
    """A payload of more than 1 MiB of compact JSON."""

    code = "payload_too_large"


class InvalidCron(InvalidInput):
    """A cron expression that can't be read or never fires."""

    code = "invalid_cron"


class UnknownTimezone(InvalidInput):
    """A time zone that the time zone database does not have."""

    code = "unknown_timezone"


class JobNotFound(TreadleError, LookupError):
    """No job has this id."""

    code = "not_found"


class WrongState(TreadleError):
    """The job's state does not allow the action."""

    code = "wrong_state"


class NotCancelable(WrongState):
    """The job is running, and its template does not allow cancelling a running job."""

    code = "not_cancelable"


class LeaseLost(TreadleError):
    """This worker may no longer run the job: its lease expired or another worker has it."""

    code = "lease_lost"


class Refused(TreadleError):
    """A policy refused the enqueue."""

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
    """The topic's template is disabled."""

    code = "template_disabled"


class NotSchedulable(Refused):
    """The topic's template does not allow schedules."""

    code = "not_schedulable"


class ScheduleNotFound(TreadleError, LookupError):
    """No schedule has this id."""

    code = "not_found"


class TemplateNotFound(TreadleError, LookupError):
    """No process has saved a template for this topic, or it has no such version."""

    code = "not_found"


class VersionConflict(TreadleError):
    """Changed since it was read; read it again."""

    code = "version_conflict"


class CodeDefined(TreadleError):
    """Defined in the application's code and changed there."""

    code = "code_defined"


class EndpointNotFound(TreadleError, LookupError):
    """No webhook endpoint has this id."""

    code = "not_found"


class DeliveryNotFound(TreadleError, LookupError):
    """No delivery of this endpoint has this id; deliveries go with their jobs."""

    code = "not_found"


class UnknownStep(TreadleError, LookupError):
    """The job has no step with this name, or none that takes an answer."""

    code = "unknown_step"


class StepEnded(TreadleError):
    """The step has been answered already, or it is over."""

    code = "step_ended"


class InvalidAnswer(InvalidInput):
    """An answer that does not match the type its step asks for."""

    code = "invalid_answer"


class DoubledStep(InvalidInput):
    """The same step ran twice in one attempt; give the runs different keys."""

    code = "doubled_step"


class TooManySteps(InvalidInput):
    """More step names or runs of steps than a job may have."""

    code = "too_many_steps"


class TooDeep(InvalidInput):
    """A job with more jobs waiting for it, one for the other, than are allowed."""

    code = "too_deep"


class HasChildren(WrongState):
    """The job waits for children that have not ended."""

    code = "has_children"


class StoreUnavailable(TreadleError):
    """The database can't be reached or can't write at the moment; the same call may work later."""

    code = "store_unavailable"


class QueryTooSlow(TreadleError):
    """A list, count or search that took longer than the store allows; the message says what to narrow."""

    code = "query_too_slow"


class StoreBusy(StoreUnavailable):
    """Another transaction holds a key that this call needs. Nothing was changed; the same call may work later."""


class SchemaMismatch(TreadleError):
    """The database's schema is newer than this code, or does not exist yet."""

    code = "schema_mismatch"


class JobFailed(TreadleError):
    """`Job.result()` of a job that ended without completing; `data["status"]` says how."""

    code = "job_failed"


class ResultTimeout(TreadleError, TimeoutError):
    """`Job.result()` timed out."""

    code = "result_timeout"


class RemoteError(Exception):
    """Passed to hooks for an exception raised in a handler's child process; the exception itself stays there."""

    def __init__(self, type: str, text: str) -> None:
        super().__init__(text)
        self.type = type
        """The name of the exception's class."""
        self.text = text
        """The traceback."""


class StepExited(Exception):
    """A step in a task of its own raised SystemExit or KeyboardInterrupt, which ends its job and not the worker."""


# What a handler may raise to choose how its attempt ends.


class Fail(Exception):
    """Raised by a handler: fail now, even if attempts are left."""


class FollowUpRefused(Fail):
    """Raised in a handler: a job that a step made `with_outcome` may not be created, so the step has failed."""


class WaitTimeout(Exception):
    """No answer came in time. Unless the handler catches this, the attempt fails, and the next one waits again."""


class ChildFailed(Exception):
    """A child that a handler waited for did not complete: `job_id` names it, None if it was never made.

    Unless the handler catches this, the attempt fails, and the next one makes another child.
    """

    def __init__(self, message: str, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class AnswerError(Exception):
    """The answer was an error. Unless the handler catches this, the attempt fails, and the next one waits again."""


class RetryAfter(Exception):
    """Raised by a handler: try again after this delay. This attempt counts.

    With `topic=True` the whole topic is paused that long, because every other job of it would hear the same answer (429
    Too Many Requests). Then this attempt does not count. A longer pause stays.
    """

    def __init__(self, delay: str | float | timedelta, message: str = "", *, topic: bool = False) -> None:
        super().__init__(message or f"retry after {delay}")
        self.delay = delay
        self.topic = topic


class Snooze(Exception):
    """Raised by a handler: run again after this delay. This attempt does not count."""

    def __init__(self, delay: str | float | timedelta, message: str = "") -> None:
        super().__init__(message or f"snoozed for {delay}")
        self.delay = delay


class JobCancelled(BaseException):
    """Raised inside a handler at its next checkpoint after a cancel request.

    A BaseException like asyncio's CancelledError, so that `except Exception` does not swallow it.
    """


class Suspend(BaseException):
    """Leaves a handler that waits for an answer or for a time; it is called again from its start when that has come.

    A BaseException, so that `except Exception` does not swallow it.
    """

    def __init__(self, kind: Literal["park", "snooze"], message: str, delay_ms: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.delay_ms = delay_ms


class StepFailed(Exception):
    """A step that runs in another process raised an exception there; `error_type` names its class."""

    def __init__(self, raised: Any) -> None:
        super().__init__(error_line(raised.text, raised.type))
        self.raised = raised
        self.error_type: str = raised.type


def suspend_in(error: BaseException) -> Suspend | None:
    """The Suspend that an error is, or that a group of errors has among others."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := suspend_in(one))), None)
    return error if isinstance(error, Suspend) else None
