"""What is kept when a job moves: its event, its outcome, what the statistics count, and what people see of it.

A store moves the job and knows where such data goes; what it says is decided here, the same for every store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from treadle.model import events
from treadle.model.error_group import error_group
from treadle.model.status import ENDED, Status
from treadle.policy.lifecycle import Transition

RETRYING = "retrying"
"""What the statistics call an attempt that failed and is tried again."""

TIMED = Status.COMPLETED
"""Whose runs the statistics keep: a job that failed or was stopped says nothing about how long the work takes."""


MOST_OF_AN_ERROR = 8192
"""Characters of an error's stack in the history and on a step."""


class EndedAttempt(Protocol):
    """What is known of an attempt when it ends."""

    @property
    def attempt(self) -> int: ...
    @property
    def claimed_at(self) -> int | None: ...
    @property
    def started_at(self) -> int | None: ...
    @property
    def cancel_at(self) -> int | None: ...
    @property
    def cancel_reason(self) -> str | None: ...
    @property
    def progress(self) -> int | None: ...
    @property
    def message(self) -> str | None: ...


class EndedJob(Protocol):
    """The outcome of an ended job, as it is stored."""

    @property
    def status(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def ended_at(self) -> int: ...
    @property
    def started_at(self) -> int | None: ...
    @property
    def result(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def error_type(self) -> str | None: ...
    @property
    def worker(self) -> str | None: ...


def end_of(error: str) -> str:
    """The end of a long stack: it names the exception."""
    return error[-MOST_OF_AN_ERROR:]


def ran_ms(started_at: int | None, ended_at: int) -> int:
    return 0 if started_at is None else max(ended_at - started_at, 0)


def has_run(attempt: EndedAttempt | None) -> bool:
    """Whether its handler was started."""
    return attempt is not None and attempt.started_at is not None


# -- events ----------------------------------------------------------------------------------------


def metadata(transition: Transition, attempt: EndedAttempt | None, worker: str | None) -> dict[str, Any]:
    """Of a move's event. `attempt`: the one that it ended, by this `worker`."""
    found: dict[str, Any] = {}
    if attempt is not None:
        found["attempt"] = attempt.attempt
        if attempt.started_at is not None:
            found["startedAt"] = attempt.started_at
    if transition.delay_ms:
        found["delayMs"] = transition.delay_ms
    if worker is not None:
        found["worker"] = worker
    if transition.error_type:
        found["errorType"] = transition.error_type
    if attempt is not None and transition.error:
        found["error"] = end_of(transition.error)
    return found


def requeue_metadata(ended: EndedJob, stale_at: int | None = None, old_payload: Any = None) -> dict[str, Any]:
    """Of a requeue: the outcome that it takes back, and the payload that a new one replaces."""
    outcome = {
        "status": ended.status,
        "attempt": ended.attempt,
        "endedAt": ended.ended_at,
        "startedAt": ended.started_at,
        "result": ended.result,
        "error": ended.error,
        "errorType": ended.error_type,
        "worker": ended.worker,
        **({} if stale_at is None else {"staleAt": stale_at}),
    }
    return {"outcome": outcome} if old_payload is None else {"outcome": outcome, events.OLD_PAYLOAD: old_payload}


def step_metadata(
    name: str, key: str, attempt: int, duration_ms: int | None, answered_by: str | None
) -> Mapping[str, Any]:
    """Of a step's completion."""
    found: dict[str, Any] = {"step": name, "stepAttempt": attempt}
    if key:
        found["key"] = key
    if duration_ms is not None:
        found["durationMs"] = duration_ms
    if answered_by is not None:
        found["answeredBy"] = answered_by
    return found


# -- outcomes, statistics, notes -------------------------------------------------------------------


class Ending(NamedTuple):
    """What is kept of an ended job."""

    status: Status
    attempt: int
    ended_at: int
    claimed_at: int | None
    started_at: int | None
    cancel_at: int | None
    cancel_reason: str | None
    progress: int | None
    message: str | None
    result: str | None
    error: str | None
    error_type: str | None
    error_group: str | None


def ending(transition: Transition, attempt: EndedAttempt | None, now: int) -> Ending:
    """A job that is cancelled without having been asked was cancelled now, for the reason of its transition."""
    cancelled = transition.to is Status.CANCELLED
    asked_at, reason = (attempt.cancel_at, attempt.cancel_reason) if attempt else (None, None)
    return Ending(
        transition.to,
        transition.attempt,
        now,
        attempt.claimed_at if attempt else None,
        attempt.started_at if attempt else None,
        asked_at or (now if cancelled else None),
        reason or (transition.message or None if cancelled else None),
        attempt.progress if attempt else None,
        attempt.message if attempt else None,
        transition.result,
        transition.error,
        transition.error_type,
        transition.error and error_group(transition.error_type or "", transition.error),
    )


def counted_as(transition: Transition) -> str | None:
    """The name under which the statistics count this move; None: they don't."""
    if transition.to in ENDED:
        return transition.to
    return RETRYING if transition.event == events.RETRYING else None


class Note(NamedTuple):
    """What people see of a job until it runs again."""

    error: str | None
    error_type: str | None
    progress: int | None
    message: str | None


def note(transition: Transition, attempt: EndedAttempt | None, has_steps: bool) -> Note | None:
    """None: nothing happened that a job which goes on would show. Without steps it starts anew, and so does its
    progress."""
    if transition.to in ENDED or (transition.error is None and not has_run(attempt)):
        return None
    kept = attempt if has_steps else None
    return Note(
        transition.error,
        transition.error_type,
        kept.progress if kept else None,
        kept.message if kept else None,
    )
