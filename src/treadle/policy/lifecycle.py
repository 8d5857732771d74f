"""The lifecycle of a job, as data. This is the only place that decides the result of an outcome.

A job has a status, and things happen to it: its handler ends, an operator cancels it, its lease
expires. `decide(job, outcome)` returns a `Transition`: the new status, whether the attempt
counts, and what goes into the history. Stores apply transitions; they never create one.

Two rules shape the whole table:

* An attempt is used up when a job is claimed. A release or a snooze gives it back; a failure and a
  lost lease don't. So "attempt == max_attempts" on a running job means that this is its last try.
* A cancel may be requested while the handler runs, and the worker that reports the outcome may
  not know about it yet. So the transition carries an alternative, `if_cancelling`. The store
  applies it if it finds the cancel mark in the statement that settles the job. A job that finished
  first stays completed; every other outcome becomes cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, assert_never

from treadle.model.errors import InvalidInput, WrongState
from treadle.model.status import ENDED, Status

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


def decide(job: JobState, outcome: Outcome) -> Transition:
    """The transition of this job for this outcome; WrongState if the outcome is not possible."""
    transition = _decide(job, outcome)
    if transition.to != job.status and transition.to not in LEAVES_TO[job.status]:
        raise wrong_state(job.status, VERBS[type(outcome)])
    return transition


def wrong_state(status: Status, action: str) -> WrongState:
    return WrongState(f"the job is {status}: {action} is not possible", status=str(status))


def _decide(job: JobState, outcome: Outcome) -> Transition:
    status, attempt = job.status, job.attempt
    match outcome:
        case Completed():
            _require(job, outcome, Status.PROCESSING, Status.CANCELLING, Status.WAITING)
            return Transition(Status.COMPLETED, attempt, result=outcome.result)
        case Failed():
            _require(job, outcome, Status.PROCESSING, Status.CANCELLING, Status.WAITING)
            cancelled = Transition(
                Status.CANCELLED,
                attempt,
                event="job:cancelled",
                message="the handler failed after the cancel was asked",
                error=outcome.error,
                error_type=outcome.error_type,
            )
            if status is Status.CANCELLING:
                return cancelled
            if outcome.retry_in_ms is not None and attempt < job.max_attempts:
                to, event, delay_ms = Status.PENDING, "job:retrying", max(outcome.retry_in_ms, 1)
            else:
                to, event, delay_ms = Status.FAILED, "job:failed", 0
            return Transition(
                to,
                attempt,
                delay_ms,
                event,
                message=first_line(outcome.error),
                error=outcome.error,
                error_type=outcome.error_type,
                if_cancelling=cancelled,
            )
        case Snoozed():
            _require(job, outcome, Status.PROCESSING, Status.CANCELLING)
            snoozed = Transition(
                Status.PENDING,
                max(attempt - 1, 0),
                max(outcome.delay_ms, 1),
                "job:snoozed",
                outcome.reason,
                pauses_topic=outcome.pauses_topic,
            )
            return _unless_cancelling(job, snoozed)
        case Released() | ReleasedByHand():
            _require(job, outcome, Status.PROCESSING, Status.CANCELLING)
            return _unless_cancelling(
                job, Transition(Status.PENDING, max(attempt - 1, 0), event="job:released", message=outcome.reason)
            )
        case CancelAcknowledged():
            _require(job, outcome, Status.CANCELLING)
            return Transition(Status.CANCELLED, attempt, event="job:cancelled", message=outcome.reason or "cancelled")
        case LeaseExpired():
            _require(job, outcome, Status.PROCESSING, Status.CANCELLING)
            by = f"{WORKER_LOST}: {outcome.worker}" if outcome.worker else WORKER_LOST
            if attempt < job.max_attempts:
                transition = Transition(Status.PENDING, attempt, event="job:reclaimed", message=by)
            else:
                transition = Transition(
                    Status.EXPIRED,
                    attempt,
                    event="job:expired",
                    message=by,
                    error=WORKER_LOST,
                    error_type="WorkerLost",
                )
            return _unless_cancelling(job, transition)
        case DeadlinePassed():
            _require(job, outcome, Status.PENDING)
            return Transition(
                Status.EXPIRED,
                attempt,
                event="job:expired",
                message=DEADLINE_PASSED,
                error=DEADLINE_PASSED,
                error_type="DeadlinePassed",
            )
        case CancelRequested():
            if status is Status.CANCELLING:
                return Transition(Status.CANCELLING, attempt)  # a second request changes nothing
            if status is Status.PENDING:
                return Transition(Status.CANCELLED, attempt, event="job:cancelled", message=outcome.reason)
            return Transition(Status.CANCELLING, attempt, event="job:cancelling", message=outcome.reason)
        case GraceOver():
            _require(job, outcome, Status.CANCELLING)
            return Transition(
                Status.CANCELLED,
                attempt,
                event="job:cancelled",
                message="timeout: the handler did not stop within the grace period",
            )
        case Requeued():
            if status is Status.COMPLETED and not (outcome.force or outcome.stale):
                raise WrongState("the job is completed: requeue it with force to run it again", status=str(status))
            _require(job, outcome, *ENDED)
            return Transition(Status.PENDING, 0, event="job:requeued", message=f"was {status}")
        case Rescheduled():
            _require(job, outcome, Status.PENDING)
            most = outcome.patch.max_attempts
            if most is not None and most <= attempt:
                raise InvalidInput(f"max_attempts: the job has used {attempt} attempts already", field="max_attempts")
            return Transition(status, attempt, patch=None if outcome.patch == Patch() else outcome.patch)
        case Deleted():
            _require(job, outcome, Status.PENDING, *(ENDED if outcome.force else ENDED - {Status.COMPLETED}))
            return Transition(status, attempt, deletes=True)
        case _:
            assert_never(outcome)


def _require(job: JobState, outcome: Outcome, *allowed: Status) -> None:
    """For outcomes with a target that is also reachable in other ways, so that the table alone would allow them."""
    if job.status not in allowed:
        raise wrong_state(job.status, VERBS[type(outcome)])


def _unless_cancelling(job: JobState, transition: Transition) -> Transition:
    """The outcome becomes cancelled if a cancel was requested, even if the caller does not know about it."""
    cancelled = Transition(
        Status.CANCELLED, job.attempt, event="job:cancelled", message=transition.message or "cancelled"
    )
    if job.status is Status.CANCELLING:
        return cancelled
    return transition._replace(if_cancelling=cancelled)


def first_line(error: str) -> str:
    """The last line of a traceback names the exception, which is the line to show in a history."""
    lines = error.strip().splitlines()
    return lines[-1][:500] if lines else ""


def retries(status: Status, attempt: int) -> int:
    """Attempts that ended without success."""
    under_way = status in (Status.PROCESSING, Status.WAITING, Status.CANCELLING)
    return max(attempt - 1, 0) if under_way or status is Status.COMPLETED else attempt
