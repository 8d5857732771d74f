"""The result of a handler call as plain data, and what it means for the job.

A handler may run in another process, and its exception stays there. So a call ends in a `CallResult` that can be sent
over a socket, and the worker that owns the job judges it here. `lifecycle.decide` then determines the transition.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from treadle.model.durations import format_ms
from treadle.model.errors import JobCancelled, LeaseLost
from treadle.model.retry import Retry, families_of
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Parked, Released, Snoozed


class Cause(Enum):
    """Why a call was asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class Interrupt(NamedTuple):
    cause: Cause
    reason: str

    def error(self) -> BaseException:
        """The exception raised in the handler at its next checkpoint."""
        kinds: dict[Cause, type[BaseException]] = {Cause.TIMEOUT: TimeoutError, Cause.LOST: LeaseLost}
        return kinds.get(self.cause, JobCancelled)(self.reason)

    def beats(self, earlier: Interrupt | None) -> bool:
        """The first interrupt counts, except that a lost lease overrides every other."""
        return earlier is None or (self.cause is Cause.LOST and earlier.cause is not Cause.LOST)


class Returned(NamedTuple):
    text: str | None = None
    """The result as JSON; None if there is none."""


RaisedKind = Literal["stop", "snooze", "pause", "park", "retry", "fatal", "refused", "error"]
"""`stop`: it followed an interrupt. `pause`: a snooze of the whole topic. `park`: it waits for answers. `refused`:
its payload can't be read or its result can't be stored.
"""


class Raised(NamedTuple):
    """An exception as plain data."""

    kind: RaisedKind
    text: str
    type: str
    delay_ms: int | None = None
    families: tuple[str, ...] = ()
    """Qualified names of its classes, nearest first, for the retry policy."""


CallResult = Returned | Raised

NOTHING = Returned()
STOPPED = Raised("stop", "the handler was stopped", "JobCancelled")
_DONE = Completed()


def judge(
    result: CallResult,
    interrupt: Interrupt | None,
    retry: Retry,
    failures: int,
    suspended: Parked | Snoozed | None = None,
) -> Outcome | None:
    """The outcome of a call for its job; None if the lease is lost, because then there is nothing to report.

    A handler that finished counts as finished, even after a cancel. One that exceeded its time limit has failed, even
    if it returned or raised something else on the way out. One that was told to wait is set aside, even if it caught
    that and went on.
    """
    if interrupt is not None and interrupt.cause is Cause.LOST:
        return None
    if suspended is not None:
        return suspended
    if interrupt is not None and interrupt.cause is Cause.TIMEOUT:
        result = _timed_out(interrupt, result)
    if isinstance(result, Returned):
        return Completed(result.text) if result.text is not None else _DONE
    return _judge_error(result, interrupt, retry, failures)


def _judge_error(raised: Raised, interrupt: Interrupt | None, retry: Retry, failures: int) -> Outcome:
    if raised.kind == "refused":
        return Failed(raised.text, raised.type)
    if raised.kind == "park":
        return Parked(raised.text)
    if interrupt and interrupt.cause is Cause.SHUTDOWN:
        return Released("the worker stopped")
    if interrupt and interrupt.cause is Cause.CANCEL and raised.kind == "stop":
        return CancelAcknowledged(interrupt.reason)
    if raised.kind == "snooze":
        return Snoozed(raised.delay_ms or 0, raised.text)
    if raised.kind == "pause":
        delay_ms = raised.delay_ms or 0
        return Snoozed(delay_ms, f"{raised.text}; its topic is paused for {format_ms(delay_ms)}", pauses_topic=True)
    return Failed(raised.text, raised.type, _retry_in_ms(raised, retry, failures))


def _timed_out(interrupt: Interrupt, result: CallResult) -> Raised:
    last = f"TimeoutError: {interrupt.reason}\n"
    if isinstance(result, Raised) and result.type == "TimeoutError":
        text = result.text
    elif isinstance(result, Raised):
        text = f"{result.text.rstrip()}\n\n{last}"
    else:
        text = last
    return Raised("error", text, "TimeoutError", families=_TIMEOUT_FAMILIES)


_TIMEOUT_FAMILIES = families_of(TimeoutError())


def _retry_in_ms(raised: Raised, retry: Retry, failures: int) -> int | None:
    if raised.kind == "fatal":
        return None
    if raised.kind == "retry":
        return raised.delay_ms
    return retry.decide(raised.families, failures)


def follow_up_refused(reason: str) -> Failed:
    """What becomes of an attempt that completed with follow-up jobs, if one of them may not be created."""
    return Failed(f"a follow-up job was refused: {reason}", "FollowUpRefused")
