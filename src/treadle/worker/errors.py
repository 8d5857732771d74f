"""A handler's exception as plain data: its meaning, its name, and a text that every database can store."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from types import TracebackType

from treadle.model.durations import duration_ms
from treadle.model.errors import (
    Fail,
    InvalidInput,
    JobCancelled,
    RemoteError,
    RetryAfter,
    Snooze,
    StepFailed,
    Suspend,
    suspend_in,
)
from treadle.model.raised import is_ctrl_c
from treadle.model.retry import families_of, full_name
from treadle.policy.judgement import Raised, RaisedKind

MAX_ERROR_CHARACTERS = 32_000
MAX_MESSAGE_CHARACTERS = 1000
# Frames between a worker and the handler, or between the handler and the function of its step.
_OWN_FILES = tuple(str(Path(__file__).parent.parent / part) for part in ("worker", "queue/handlers"))


class ItemFailed(RemoteError):
    """A mapped step's function has raised in a child process."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.type, raised.text)
        self.raised = raised


def describe(error: BaseException) -> Raised:
    """It never raises: an exception may have a text, a delay or a cause that does."""
    try:
        return _described(error)
    except BaseException as worse:
        if is_ctrl_c(worse):
            raise
        kind = type_name(type(error))
        return Raised("error", f"{kind}: it can't be shown: {type_name(type(worse))}", kind, None, families_of(error))


def _described(error: BaseException) -> Raised:
    try:
        match error:
            case Suspend():
                return Raised(error.kind, str(error), "Suspend", error.delay_ms)
            case StepFailed():
                raised: Raised = error.raised
                return raised
            case BaseExceptionGroup() if suspended := suspend_in(error):
                return _described(suspended)
            case ItemFailed():
                return error.raised
            case asyncio.CancelledError() | JobCancelled():
                return _raised("stop", error)
            case Snooze():
                return _raised("snooze", error, duration_ms(error.delay))
            case RetryAfter(topic=True):
                return _raised("pause", error, duration_ms(error.delay))
            case RetryAfter():
                return _raised("retry", error, duration_ms(error.delay))
            case Fail():
                return _raised("fatal", error)
            case _:
                return _raised("error", error)
    except InvalidInput as mistake:  # the delay is not a duration, and another attempt would not change that
        mistake.__cause__ = error
        return _raised("fatal", mistake)


def refused(error: BaseException) -> Raised:
    """A payload that can't be read or a result that can't be stored; another attempt would end the same way."""
    described = describe(error)
    return Raised("refused", described.text, described.type, None, described.families)


def _raised(
    kind: RaisedKind,
    error: BaseException,
    delay_ms: int | None = None,
) -> Raised:
    text = storable(str(error)) if kind in ("snooze", "pause") else error_text(error)
    return Raised(kind, text, type_name(type(error)), delay_ms, families_of(error))


def type_name(kind: type) -> str:
    module = str(kind.__module__)  # a class may have said anything
    own = module == "builtins" or module.startswith("treadle.")
    return kind.__qualname__ if own else full_name(kind)


def error_text(error: BaseException) -> str:
    """The traceback, starting at the handler's frame."""
    frames = _from_handler(error.__traceback__)
    return storable("".join(traceback.format_exception(type(error), error, frames)))


def _from_handler(frames: TracebackType | None) -> TracebackType | None:
    while frames and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        frames = frames.tb_next
    return frames


def storable(text: str, most: int = MAX_ERROR_CHARACTERS) -> str:
    """Text that every database can store: no NUL, no lone surrogate, not too long (the middle is cut)."""
    if len(text) > most:
        text = f"{text[: most // 2]}\n…\n{text[-most // 2 :]}"
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
