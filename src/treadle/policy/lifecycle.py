"""The lifecycle of a job, as data. This is the only place that decides the result of an outcome.

A job has a status, and things happen to it: its handler ends, an operator cancels it, its lease
expires. `decide(job, outcome)` returns a `Transition`: the new status, whether the attempt
counts, and what goes into the history. Stores apply transitions; they never create one.

Two rules shape the whole table:

* An attempt is used up when a job is claimed. A release, a snooze or a wait gives it back; a failure
  and a lost lease don't. So "attempt == max_attempts" on a running job means that this is its last try.
* A cancel may be requested while the handler runs, and the worker that reports the outcome may
  not know about it yet. So the transition carries an alternative, `if_cancelling`. The store
  applies it if it finds the cancel mark in the statement that settles the job. A job that finished
  first stays completed; every other outcome becomes cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from treadle.model.error_line import error_line
from treadle.model.errors import InvalidInput, WrongState
from treadle.model.status import ENDED, Status

if TYPE_CHECKING:
    from treadle.policy.rules import Condition

LEAVES_TO: Mapping[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.PROCESSING, Status.CANCELLED, Status.EXPIRED}),
    Status.PROCESSING: frozenset(
        {
            Status.COMPLETED,
            Status.PENDING,
            Status.FAILED,
            Status.CANCELLING,
            Status.WAITING,
            Status.EXPIRED,
        }
    ),
    Status.WAITING: frozenset({Status.COMPLETED, Status.FAILED, Status.PENDING, Status.CANCELLING, Status.EXPIRED}),
    Status.CANCELLING: frozenset({Status.CANCELLED, Status.COMPLETED}),
    Status.COMPLETED: frozenset({Status.PENDING}),
    Status.FAILED: frozenset({Status.PENDING}),
    Status.CANCELLED: frozenset({Status.PENDING}),
    Status.EXPIRED: frozenset({Status.PENDING}),
}

WORKER_LOST = "worker lost"
# Of an error's line in a history.
SHOWN_CHARACTERS = 500
DEADLINE_PASSED = "deadline passed"


# What can happen to a job. The first group is reported by its owner, the second comes from outside.


# The two outcomes that every job has are named tuples, at a quarter of the cost of a frozen dataclass.
class Completed(NamedTuple):
    result: str | None = None
    """JSON text."""


@dataclass(frozen=True, slots=True)
class Failed:
    error: str
    error_type: str
    retry_in_ms: int | None = None
    """The delay chosen by the retry policy; None if this error ends the job."""


@dataclass(frozen=True, slots=True)
class Snoozed:
    delay_ms: int
    reason: str = ""
    pauses_topic: bool = False
    """No job of its topic starts during the delay."""


@dataclass(frozen=True, slots=True)
class Released:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """It waits for answers, and no worker holds it."""

    waits: str
    """The steps it waits for, for people; when a wait ends is on its step."""
    wake_in_ms: int = 0
    """When it goes on in any case, because a step is due for its next try; 0: never."""


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The time of a wait is over: its worker decides what that means."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The step it waited for has its answer."""


@dataclass(frozen=True, slots=True)
class CancelAcknowledged:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    pass


@dataclass(frozen=True, slots=True)
class CancelRequested:
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GraceOver:
    pass


@dataclass(frozen=True, slots=True)
class Requeued:
    force: bool = False
    stale: bool = False
    mode: str = ""
    """How a job with steps goes on; empty: it has none."""
    steps: tuple[str, ...] | None = None
    """The steps that run again, with all their keys. None: every one."""
    payload: str | None = None
    """A new payload, as JSON text."""
    runs: frozenset[tuple[str, str]] | None = None
    """If given, only these runs of them, by name and key."""
    may_replace: Condition = True
    """Which live jobs it may cancel if its limit says that it replaces some."""


@dataclass(frozen=True, slots=True)
class ReleasedByHand:
    reason: str = "released by hand"


class Patch(NamedTuple):
    """New values for a pending job; None keeps the old value."""

    run_at: int | None = None
    priority: int | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True)
class Rescheduled:
    patch: Patch


@dataclass(frozen=True, slots=True)
class Deleted:
    force: bool = False


Outcome = (
    Completed
    | Failed
    | Snoozed
    | Released
    | Parked
    | WaitOver
    | Answered
    | CancelAcknowledged
    | LeaseExpired
    | DeadlinePassed
    | CancelRequested
    | GraceOver
    | Requeued
    | ReleasedByHand
    | Rescheduled
    | Deleted
)

VERBS: Mapping[type[Outcome], str] = {
    Completed: "complete",
    Failed: "fail",
    Snoozed: "snooze",
    Released: "release",
    Parked: "park",
    WaitOver: "ending its wait",
    Answered: "answer",
    CancelAcknowledged: "ack-cancel",
    LeaseExpired: "reclaim",
    DeadlinePassed: "expire",
    CancelRequested: "cancel",
    GraceOver: "ending its grace",
    Requeued: "requeue",
    ReleasedByHand: "release",
    Rescheduled: "reschedule",
    Deleted: "delete",
}
"""The verbs for these outcomes in messages."""


class JobState(Protocol):
    """The parts of a job that `decide` needs."""

    @property
    def status(self) -> Status: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...


class RowState(NamedTuple):
    """A minimal job for `decide`."""

    status: Status
    attempt: int
    max_attempts: int


class Transition(NamedTuple):
    to: Status
    attempt: int
    """The job's attempt count afterwards."""
    delay_ms: int = 0
    """For `pending`: the delay until it is due; 0 keeps its place in the queue."""
    event: str | None = None
    """The event for the history; None if the job's timestamps already tell it."""
    message: str = ""
    result: str | None = None
    error: str | None = None
    error_type: str | None = None
    if_cancelling: Transition | None = None
    """Applied instead if a cancel was requested in the meantime."""
    patch: Patch | None = None
    """Other changes to a pending job."""
    deletes: bool = False
    """The job is deleted with all its dependent rows."""
    pauses_topic: bool = False
    """Its topic is paused for `delay_ms`, unless it is paused for longer."""
    then: Transition | None = None
    """A second transition that follows in the same transaction."""

    def given(self, cancel_requested: bool) -> Transition:
        """What applies to the job as the store finds it."""
        return self.if_cancelling if cancel_requested and self.if_cancelling else self

    def may_end_as(self, status: str | None) -> bool:
        """Whether an ending with its owner's token is the one that the owner asked for, so that only the answer was
        lost. An external worker may have sent two different ones."""
        return status == self.to or (self.if_cancelling is not None and status == self.if_cancelling.to)


GIVE_ATTEMPT_BACK = frozenset({"job:snoozed", "job:released", "job:waiting"})
"""The events of transitions that end an attempt without using it up."""


def decide(job: JobState, outcome: Outcome) -> Transition:
    """The transition of this job for this outcome; WrongState if the outcome is not possible."""
    allowed, rule = _RULES[type(outcome)]
    if job.status not in allowed:
        raise wrong_state(job.status, VERBS[type(outcome)])
    transition = rule(job, outcome)
    if transition.to != job.status and transition.to not in LEAVES_TO[job.status]:
        raise wrong_state(job.status, VERBS[type(outcome)])
    return transition


def wrong_state(status: Status, action: str) -> WrongState:
    return WrongState(f"the job is {status}: {action} is not possible", status=str(status))


# One function for each outcome. `_RULES` says for which statuses each may be called.


def _completed(job: JobState, outcome: Completed) -> Transition:
    return Transition(Status.COMPLETED, job.attempt, result=outcome.result)


def _failed(job: JobState, outcome: Failed) -> Transition:
    cancelled = Transition(
        Status.CANCELLED,
        job.attempt,
        event="job:cancelled",
        message="the handler failed after the cancel was asked",
        error=outcome.error,
        error_type=outcome.error_type,
    )
    if job.status is Status.CANCELLING:
        return cancelled
    if outcome.retry_in_ms is not None and job.attempt < job.max_attempts:
        to, event, delay_ms = Status.PENDING, "job:retrying", max(outcome.retry_in_ms, 1)
    else:
        to, event, delay_ms = Status.FAILED, "job:failed", 0
    return Transition(
        to,
        job.attempt,
        delay_ms,
        event,
        message=error_line(outcome.error, outcome.error_type)[:SHOWN_CHARACTERS],
        error=outcome.error,
        error_type=outcome.error_type,
        if_cancelling=cancelled,
    )


def _snoozed(job: JobState, outcome: Snoozed) -> Transition:
    snoozed = Transition(
        Status.PENDING,
        max(job.attempt - 1, 0),
        max(outcome.delay_ms, 1),
        "job:snoozed",
        outcome.reason,
        pauses_topic=outcome.pauses_topic,
    )
    return _unless_cancelling(job, snoozed)


def _released(job: JobState, outcome: Released | ReleasedByHand) -> Transition:
    return _unless_cancelling(
        job, Transition(Status.PENDING, max(job.attempt - 1, 0), event="job:released", message=outcome.reason)
    )


def _parked(job: JobState, outcome: Parked) -> Transition:
    message = f"waits for {outcome.waits}"
    return _unless_cancelling(
        job,
        Transition(Status.WAITING, max(job.attempt - 1, 0), outcome.wake_in_ms, "job:waiting", message),
    )


def _woken(job: JobState, _: WaitOver | Answered) -> Transition:
    return Transition(Status.PENDING, job.attempt)


def _cancel_acknowledged(job: JobState, outcome: CancelAcknowledged) -> Transition:
    return Transition(Status.CANCELLED, job.attempt, event="job:cancelled", message=outcome.reason or "cancelled")


def _lease_expired(job: JobState, outcome: LeaseExpired) -> Transition:
    by = f"{WORKER_LOST}: {outcome.worker}" if outcome.worker else WORKER_LOST
    if job.attempt < job.max_attempts:
        return _unless_cancelling(job, Transition(Status.PENDING, job.attempt, event="job:reclaimed", message=by))
    return _unless_cancelling(job, _expired(job, by, WORKER_LOST, "WorkerLost"))


def _deadline_passed(job: JobState, _: DeadlinePassed) -> Transition:
    return _expired(job, DEADLINE_PASSED, DEADLINE_PASSED, "DeadlinePassed")


def _expired(job: JobState, message: str, error: str, error_type: str) -> Transition:
    return Transition(
        Status.EXPIRED, job.attempt, event="job:expired", message=message, error=error, error_type=error_type
    )


def _cancel_requested(job: JobState, outcome: CancelRequested) -> Transition:
    if job.status is Status.CANCELLING:
        return Transition(Status.CANCELLING, job.attempt)  # a second request changes nothing
    if job.status is Status.PENDING:
        return Transition(Status.CANCELLED, job.attempt, event="job:cancelled", message=outcome.reason)
    asked = Transition(Status.CANCELLING, job.attempt, event="job:cancelling", message=outcome.reason)
    if job.status is Status.WAITING:  # no worker holds it, so none has to be asked
        return asked._replace(then=_cancel_acknowledged(job, CancelAcknowledged(outcome.reason)))
    return asked


def _grace_over(job: JobState, _: GraceOver) -> Transition:
    message = "timeout: the handler did not stop within the grace period"
    return Transition(Status.CANCELLED, job.attempt, event="job:cancelled", message=message)


def _requeued(job: JobState, outcome: Requeued) -> Transition:
    if job.status is Status.COMPLETED and not (outcome.force or outcome.stale):
        raise WrongState("the job is completed: requeue it with force to run it again", status=str(job.status))
    how = "" if outcome.mode in ("", "unfinished") else f", mode {outcome.mode}"
    return Transition(Status.PENDING, 0, event="job:requeued", message=f"was {job.status}{how}")


def _rescheduled(job: JobState, outcome: Rescheduled) -> Transition:
    most = outcome.patch.max_attempts
    if most is not None and most <= job.attempt:
        raise InvalidInput(f"max_attempts: the job has used {job.attempt} attempts already", field="max_attempts")
    return Transition(job.status, job.attempt, patch=None if outcome.patch == Patch() else outcome.patch)


def _deleted(job: JobState, outcome: Deleted) -> Transition:
    if job.status is Status.COMPLETED and not outcome.force:
        message = "the job is completed: it is deleted only with force, which over HTTP is for superusers"
        raise WrongState(message, status=str(job.status))
    return Transition(job.status, job.attempt, deletes=True)


_OWNED = frozenset({Status.PROCESSING, Status.CANCELLING})
_PENDING = frozenset({Status.PENDING})
_CANCELLING = frozenset({Status.CANCELLING})
_WAITING = frozenset({Status.WAITING})
_RULES: Mapping[type[Outcome], tuple[frozenset[Status], Callable[[JobState, Any], Transition]]] = {
    Completed: (_OWNED | _WAITING, _completed),
    Failed: (_OWNED | _WAITING, _failed),
    Snoozed: (_OWNED, _snoozed),
    Released: (_OWNED, _released),
    ReleasedByHand: (_OWNED, _released),
    Parked: (_OWNED, _parked),
    WaitOver: (_WAITING, _woken),
    Answered: (_WAITING, _woken),
    CancelAcknowledged: (_CANCELLING, _cancel_acknowledged),
    LeaseExpired: (_OWNED, _lease_expired),
    DeadlinePassed: (_PENDING, _deadline_passed),
    CancelRequested: (frozenset(Status), _cancel_requested),
    GraceOver: (_CANCELLING, _grace_over),
    Requeued: (ENDED, _requeued),
    Rescheduled: (_PENDING, _rescheduled),
    Deleted: (ENDED | _PENDING, _deleted),
}
"""For each outcome, the statuses in which it is possible and the function that decides."""


def _unless_cancelling(job: JobState, transition: Transition) -> Transition:
    """The outcome becomes cancelled if a cancel was requested, even if the caller does not know about it."""
    cancelled = Transition(
        Status.CANCELLED, job.attempt, event="job:cancelled", message=transition.message or "cancelled"
    )
    if job.status is Status.CANCELLING:
        return cancelled
    return transition._replace(if_cancelling=cancelled)


def retries(status: Status, attempt: int) -> int:
    """Attempts that ended without success."""
    under_way = status in (Status.PROCESSING, Status.CANCELLING)
    return max(attempt - 1, 0) if under_way or status is Status.COMPLETED else attempt
