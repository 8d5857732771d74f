"""From what a handler did to an outcome: returned, raised, was interrupted. `lifecycle` decides the rest.

A handler may run in another process, where its exception stays. So an exception is first described
(`Raised`, plain data), then judged by the worker that owns the job.
"""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from treadle.errors import Fail, InvalidInput, JobCancelled, RetryAfter, Snooze
from treadle.handler import Handler
from treadle.lifecycle import (
    CancelAcknowledged,
    Completed,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Status,
    Transition,
    decide,
)
from treadle.policy import duration_ms
from treadle.store.base import Claimed, RowState
from treadle.worker.run import Interrupt, Run

MAX_ERROR_CHARACTERS = 32_000
_OWN_FILES = str(Path(__file__).parent)


def transition_for(job: Claimed, outcome: Outcome) -> Transition:
    if isinstance(outcome, CancelAcknowledged):
        return decide(RowState(Status.CANCELLING, job.attempt, job.max_attempts), outcome)
    return decide(job, outcome)


# -- it returned -------------------------------------------------------------------------------------


def stored(handler: Handler, result: Any) -> Completed | Failed:
    """A result that can't be stored now never can: no retry."""
    try:
        return Completed(handler.result_text(result))
    except Exception as error:  # a serialiser of the user's may raise anything
        return final(error)


def of_return(run: Run, outcome: Completed | Failed) -> Outcome | None:
    """Done is done, even after a cancel; but over its limit is a failure. None: the job is no longer ours."""
    if run.lost:
        return None
    if run.interrupt is Interrupt.TIMEOUT:
        return of_error(run, run.interruption())
    return outcome


# -- it raised ---------------------------------------------------------------------------------------


class Raised(NamedTuple):
    """An exception as plain data."""

    kind: Literal["stop", "snooze", "retry", "fatal", "error"]
    text: str
    type: str
    delay_ms: int | None = None
    families: tuple[str, ...] = ()
    """Qualified names of its classes, nearest first: what a retry policy looks at."""


def describe(error: BaseException) -> Raised:
    try:
        match error:
            case asyncio.CancelledError() | JobCancelled():
                return _raised("stop", error)
            case Snooze():
                return _raised("snooze", error, duration_ms(error.delay))
            case RetryAfter():
                return _raised("retry", error, duration_ms(error.delay))
            case Fail():
                return _raised("fatal", error)
            case _:
                return _raised("error", error)
    except InvalidInput as mistake:  # the delay is not one: no attempt will mend that
        mistake.__cause__ = error
        return _raised("fatal", mistake)


def _raised(
    kind: Literal["stop", "snooze", "retry", "fatal", "error"], error: BaseException, delay_ms: int | None = None
) -> Raised:
    text = storable(str(error)) if kind == "snooze" else error_text(error)
    families = tuple(full_name(family) for family in type(error).__mro__)
    return Raised(kind, text, type_name(type(error)), delay_ms, families)


def of_error(run: Run, error: BaseException) -> Outcome | None:
    return judge(run, describe(error), error)


def judge(run: Run, raised: Raised, error: BaseException) -> Outcome | None:
    """What it means for the job; `error` (or one like it) is for the retry policy."""
    if run.lost:
        return None
    match run.interrupt:
        case Interrupt.SHUTDOWN:
            return Released("the worker stopped")
        case Interrupt.CANCEL if raised.kind == "stop":
            return CancelAcknowledged(run.reason)
        case Interrupt.TIMEOUT:
            error = run.interruption()
            raised = _blamed_on(error, raised)
    if raised.kind == "snooze":
        return Snoozed(raised.delay_ms or 0, raised.text)
    return Failed(raised.text, raised.type, _retry_in_ms(run, raised, error))


def _blamed_on(limit: BaseException, raised: Raised) -> Raised:
    """Whatever it raised on the way out, it failed because its time was over."""
    last = f"TimeoutError: {limit}"
    text = raised.text if raised.type == "TimeoutError" else f"{raised.text.rstrip()}\n\n{last}\n"
    return Raised("error", text, "TimeoutError")


def _retry_in_ms(run: Run, raised: Raised, error: BaseException) -> int | None:
    if raised.kind == "fatal":
        return None
    if raised.kind == "retry":
        return raised.delay_ms
    return run.recipe.handler.template.retry.decide(error, failures=run.job.attempt)


def final(error: BaseException) -> Failed:
    """A failure that another attempt can't mend."""
    return Failed(error_text(error), type_name(type(error)))


# -- texts -------------------------------------------------------------------------------------------


def full_name(kind: type) -> str:
    # A child process knows the program's main module by another name.
    return f"{kind.__module__}.{kind.__qualname__}".replace("__mp_main__", "__main__")


def type_name(kind: type) -> str:
    own = kind.__module__ == "builtins" or kind.__module__.startswith("treadle.")
    return kind.__qualname__ if own else full_name(kind)


def error_text(error: BaseException) -> str:
    """The traceback from the handler's own frame on."""
    frames = _from_handler(error.__traceback__)
    return storable("".join(traceback.format_exception(type(error), error, frames)))


def _from_handler(frames: TracebackType | None) -> TracebackType | None:
    while frames and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        frames = frames.tb_next
    return frames


def storable(text: str, most: int = MAX_ERROR_CHARACTERS) -> str:
    """Text that every database takes: no NUL, no lone surrogate, not too long (the middle goes)."""
    if len(text) > most:
        text = f"{text[: most // 2]}\n…\n{text[-most // 2 :]}"
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
