"""The order of a job's steps, as pure functions: what to do next, what a call did to its step, what a requeue repeats.

A step is its name and key, never its position, so nothing here depends on the order in which a program was written when
the job began. A finished step never runs again; a step that is new in the code runs, one that is gone keeps its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from treadle.model.durations import format_ms
from treadle.model.errors import (
    AnswerError,
    ChildFailed,
    WaitTimeout,
)
from treadle.model.retry import Retry, families_of
from treadle.model.status import Status
from treadle.model.steps import DONE, WAIT_IN_PLACE_MS, StepState
from treadle.policy.judgement import CallResult, Interrupt, Raised, Returned, follow_up_refused, judge
from treadle.policy.lifecycle import (
    WORKER_LOST,
    CancelAcknowledged,
    Completed,
    Failed,
    Outcome,
    Parked,
    Released,
    Snoozed,
    Transition,
)

UNSERVED_MS = 5_000
UNSERVED = "no worker has the code of step"
# How many names of steps a message has.
LISTED = 10


class KnownStep(Protocol):
    """What is known of a step, as far as the order of steps depends on it."""

    @property
    def state(self) -> StepState: ...

    @property
    def left_ms(self) -> int | None:
        """Of a wait: how long it may still last."""

    @property
    def error_type(self) -> str | None:
        """Of a wait that failed: None once its job has failed because of it, so the next attempt waits again."""


class StepFacts(NamedTuple):
    """What is known of a step."""

    state: StepState = StepState.PENDING
    attempt: int = 0
    left_ms: int | None = None
    error: str | None = None
    error_type: str | None = None


NOT_BEGUN = StepFacts()


class PlannedStep(NamedTuple):
    """A declared step, as far as the order of steps depends on it."""

    name: str
    external: bool = False
    conditional: bool = False
    """It has a `when`."""
    served: bool = True
    """Its code is here."""
    after: tuple[str, ...] | None = None
    """The steps it comes after. None: the one declared before it, and everything that one comes after."""


class Pause(NamedTuple):
    """A branch of a handler that can't go on."""

    kind: Literal["answer", "child", "sleep", "retry"]
    step: str
    """With its key, for people."""
    delay_ms: int | None = None
    """How long at most."""


class Reply(NamedTuple):
    result: str | None
    error: str | None


_NONE: Mapping[str, Any] = MappingProxyType({})
# How many steps of a job run at a time at most.
PARALLEL = 8


class FlowFacts(NamedTuple):
    steps: Mapping[str, KnownStep]
    answers: Mapping[str, Reply] = _NONE
    """Answers that came early."""
    whens: Mapping[str, bool] = _NONE
    """What `when` said, where it was asked."""
    cancelling: str | None = None
    """Why the job should stop."""
    running: Collection[str] = ()
    """Steps with a call in progress."""
    held: int = 0
    """How many of them wait for something: each leaves its place to another step."""
    blocked: Mapping[str, Pause] = _NONE
    """Steps that were called in this attempt and can't go on in it."""


class Plan(NamedTuple):
    """What happens next: everything that can begin now."""

    start: tuple[str, ...] = ()
    """In the order in which they were declared."""
    evaluate_when: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    take_answer: tuple[str, ...] = ()
    """Steps that have their answer already."""
    overdue: tuple[str, ...] = ()
    """Waits that got no answer in time."""
    failed: tuple[str, ...] = ()
    """Waits that failed; the job fails too, by its policy."""
    wait: tuple[str, ...] = ()
    """Steps that begin to wait when the job is parked."""
    end: Outcome | None = None
    """Of the attempt, if nothing can begin and nothing runs."""


def plan(steps: Sequence[PlannedStep], facts: FlowFacts, parallel: int = PARALLEL) -> Plan:
    """What to do with a job. `Completed` leaves its result to the caller."""
    if facts.cancelling is not None:
        return Plan(end=None if facts.running else CancelAcknowledged(facts.cancelling))
    ready, done = _ready(steps, facts)
    if not ready:
        return Plan(end=Completed()) if done == len(steps) else Plan()
    if len(ready) == 1 and not facts.running:
        step = ready[0]
        if not step.external and not step.conditional and step.served and step.name not in facts.blocked:
            return Plan(start=(step.name,))  # most steps
    return _sorted_out(ready, facts, parallel)


def _ready(steps: Sequence[PlannedStep], facts: FlowFacts) -> tuple[list[PlannedStep], int]:
    """The steps with nothing left before them, and how many are done."""
    known_steps, running = facts.steps, facts.running
    ready: list[PlannedStep] = []
    done = 0
    clear = True
    for step in steps:
        if step.after is None:
            if not clear:
                continue
        else:
            clear = all(known_steps.get(name, NOT_BEGUN).state in DONE for name in step.after)
        if known_steps.get(step.name, NOT_BEGUN).state in DONE:
            done += 1
            continue
        if clear and step.name not in running:
            ready.append(step)
        clear = False
    return ready, done


def _sorted_out(ready: Sequence[PlannedStep], facts: FlowFacts, parallel: int) -> Plan:
    """What is to be done with each of the steps that are ready."""
    nexts = [(_next_of(step, facts), step.name) for step in ready]
    chosen: dict[str, Any] = {
        what: tuple(name for kind, name in nexts if kind == what) for what in {what for what, _ in nexts} & _PLANNED
    }
    free = max(parallel - len(facts.running) + facts.held, 0)
    asked = chosen.get("evaluate_when", ())[:free]
    plan = Plan(**chosen | {"evaluate_when": asked, "start": chosen.get("start", ())[: free - len(asked)]})
    if facts.running or any(what not in ("wait", "waiting", "unserved", "blocked") for what, _ in nexts):
        return plan._replace(wait=())
    if facts.blocked:
        return plan._replace(end=set_aside(_pauses(nexts, facts)))
    unserved_here = [name for what, name in nexts if what == "unserved"]
    if unserved_here:
        return plan._replace(wait=(), end=unserved_step(unserved_here[0]))
    return plan._replace(end=Parked(listed([name for _, name in nexts])))


_PLANNED = frozenset(Plan._fields)


def pauses(steps: Sequence[PlannedStep], facts: FlowFacts) -> list[Pause]:
    """What the steps that are ready wait for, beside the ones with a call in progress."""
    ready, _ = _ready(steps, facts)
    return _pauses([(_next_of(step, facts), step.name) for step in ready], facts)


def _pauses(nexts: Sequence[tuple[str, str]], facts: FlowFacts) -> list[Pause]:
    found = [Pause("answer", name) for what, name in nexts if what in ("wait", "waiting")]
    found += [facts.blocked[name] for what, name in nexts if what == "blocked"]
    return found + [Pause("retry", name, UNSERVED_MS) for what, name in nexts if what == "unserved"]


def _next_of(step: PlannedStep, facts: FlowFacts) -> str:
    """The field of the plan that it belongs to; `waiting`, `blocked` and `unserved` are in none."""
    if step.name in facts.blocked:
        return "blocked"
    if step.conditional and step.name not in facts.whens:
        return "evaluate_when"
    if step.conditional and not facts.whens[step.name]:
        return "skip"
    if not step.external:
        return "start" if step.served else "unserved"
    known = facts.steps.get(step.name, NOT_BEGUN)
    if known.state is StepState.FAILED and known.error_type:
        return "failed"
    if step.name in facts.answers:
        return "take_answer"
    if known.state is not StepState.WAITING:
        return "wait"
    return "overdue" if is_overdue(known.left_ms) else "waiting"


def is_overdue(left_ms: int | None) -> bool:
    """Whether a wait is over, by what is left of its time; None: it has no limit."""
    return left_ms is not None and left_ms <= 0


def listed(names: Sequence[str]) -> str:
    """Names for people, at most a handful of them."""
    if len(names) <= LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:LISTED])} and {len(names) - LISTED:,} more"


def unserved_step(name: str) -> Snoozed:
    """What becomes of a job whose next step has its code elsewhere."""
    return Snoozed(UNSERVED_MS, f"{UNSERVED} {name}")


def progress(steps: Sequence[PlannedStep], states: Mapping[str, KnownStep], step_progress: int) -> int:
    """Of the whole job, in percent: finished steps count in full, the current one in part."""
    done = 0
    for step in steps:
        if states.get(step.name, NOT_BEGUN).state in DONE:
            done += 1
    return min(int((done + step_progress / 100) / max(len(steps), 1) * 100), 100)


# -- what a call did -------------------------------------------------------------------------------


class RetryInPlace(NamedTuple):
    """The same step again, after a wait that is too short to give the slot up."""

    delay_ms: int
    error: str
    error_type: str


class StepEnd(NamedTuple):
    """What a call did to its step, and to its job if the job does not go on."""

    state: StepState
    result: str | None = None
    error: str | None = None
    error_type: str | None = None
    outcome: Outcome | None = None
    """None: the job goes on."""
    lost: bool = False
    """The lease is lost: nothing may be written."""


class Tries(NamedTuple):
    """How often a step was tried, and by which policies."""

    step: int
    """This try, from 1."""
    step_retry: Retry | None
    job: int
    job_retry: Retry


def after_call(
    name: str,
    result: CallResult,
    interrupt: Interrupt | None,
    tries: Tries,
    suspended: Parked | Snoozed | None = None,
) -> StepEnd | RetryInPlace:
    """A step with a policy is tried by it first; what is left is the job's failure, by the job's policy."""
    if interrupt is None and suspended is None and isinstance(result, Returned):
        return StepEnd(StepState.COMPLETED, result.text)
    if tries.step_retry is not None and suspended is None:
        own = judge(result, interrupt, tries.step_retry, tries.step)
        if isinstance(own, Failed) and own.retry_in_ms is not None and tries.step < tries.step_retry.max_attempts:
            return _again(name, own, own.retry_in_ms)
    outcome = judge(result, interrupt, tries.job_retry, tries.job, suspended)
    match outcome:
        case None:
            return StepEnd(StepState.PENDING, lost=True)
        case Completed():
            return StepEnd(StepState.COMPLETED, result=outcome.result)
        case Failed():
            return StepEnd(StepState.FAILED, error=outcome.error, error_type=outcome.error_type, outcome=outcome)
        case CancelAcknowledged():
            return StepEnd(StepState.CANCELLED, outcome=outcome)
        case Snoozed() | Released() | Parked():
            return StepEnd(StepState.PENDING, outcome=outcome)
        case _:
            raise AssertionError(f"a call can't end in {outcome}")


def refused(reason: str) -> StepEnd:
    """A step has completed, but a job that was to be stored with its end may not be created."""
    failed = follow_up_refused(reason)
    return StepEnd(StepState.FAILED, error=failed.error, error_type=failed.error_type, outcome=failed)


def _again(name: str, failed: Failed, delay_ms: int) -> StepEnd | RetryInPlace:
    if delay_ms <= WAIT_IN_PLACE_MS:
        return RetryInPlace(delay_ms, failed.error, failed.error_type)
    later = Snoozed(delay_ms, tried_again(name, delay_ms))
    return StepEnd(StepState.PENDING, None, failed.error, failed.error_type, later)


# -- what has happened to a step -------------------------------------------------------------------


class StepChange(NamedTuple):
    """What has happened to a step. Its journal adds what only the journal knows, and writes it."""

    state: StepState
    attempt: int
    result: str | None = None
    error: str | None = None
    error_type: str | None = None
    begins: bool = False
    """It begins with this change."""
    wait_ms: int | None = None
    """How long it waits at most."""
    schema: str | None = None
    """What its answer has to look like."""
    takes_answer: bool = False
    """It uses up the answer that came early."""


def began(attempt: int) -> StepChange:
    """A call of it is under way."""
    return StepChange(StepState.PROCESSING, attempt)


def tried(again: RetryInPlace, tries: int) -> StepChange:
    """A try failed, and the next one follows in place."""
    return StepChange(StepState.PENDING, tries, None, again.error, again.error_type)


def ended(end: StepEnd, tries: int) -> StepChange:
    return StepChange(end.state, spent(end, tries), end.result, end.error, end.error_type)


def begins_anew(attempt: int) -> StepChange:
    """A wait was reached in it: its function is called again from the start, and has its try back."""
    return StepChange(StepState.PENDING, attempt - 1)


def skipped() -> StepChange:
    return StepChange(StepState.SKIPPED, 0)


def waits(attempt: int, timeout_ms: int | None, schema: str | None) -> StepChange:
    """`attempt`: how often it has waited before."""
    return StepChange(StepState.WAITING, attempt + 1, begins=True, wait_ms=timeout_ms, schema=schema)


def answered(reply: Reply, attempt: int, begins: bool = False) -> StepChange:
    """The job's handler hears of an error."""
    if reply.error is not None:
        kind = AnswerError.__name__
        return StepChange(StepState.FAILED, attempt, None, reply.error, kind, begins, takes_answer=True)
    result = "null" if reply.result is None else reply.result
    return StepChange(StepState.COMPLETED, attempt, result, begins=begins, takes_answer=True)


def slept(attempt: int, begins: bool = False) -> StepChange:
    return StepChange(StepState.COMPLETED, attempt, begins=begins)


def timed_out(shown: str, attempt: int) -> StepChange:
    return StepChange(StepState.FAILED, attempt, error=not_answered(shown), error_type=WaitTimeout.__name__)


def given_up(attempt: int, error: str | None) -> StepChange:
    """A wait that failed, once its job has failed because of it: without a type, the next attempt waits again."""
    return StepChange(StepState.FAILED, attempt, error=error)


def spent(end: StepEnd, tries: int) -> int:
    """How many tries count when a call has ended: a postponed one did not fail."""
    return tries - (end.state is StepState.PENDING and end.error is None)


def tries_before(state: StepState, attempt: int) -> int:
    """How many tries of a step count. A step that failed for good starts over with its job's next attempt."""
    return attempt if state is StepState.PENDING else 0


# -- waits -----------------------------------------------------------------------------------------


def left_of(delay_ms: int | None, passed_ms: int) -> int | None:
    """What is left of a wait that has lasted this long. One that should be over ends in the store."""
    return None if delay_ms is None else max(delay_ms - passed_ms, 1)


def set_aside(pauses: Sequence[Pause]) -> Parked | Snoozed:
    """What becomes of a job when none of its branches can go on."""
    answers = [one.step for one in pauses if one.kind in ("answer", "child")]
    if answers:
        retries = [max(one.delay_ms or 0, 1) for one in pauses if one.kind == "retry"]
        return Parked(listed(answers), min(retries, default=0))
    first = min(pauses, key=lambda one: one.delay_ms or 0)
    delay_ms = max(first.delay_ms or 0, 1)
    if first.kind == "retry":
        return Snoozed(delay_ms, tried_again(first.step, delay_ms))
    return Snoozed(delay_ms, f"{first.step}: until its time has come")


def tried_again(step: str, delay_ms: int) -> str:
    return f"step {step} is tried again in {format_ms(delay_ms)}"


WAIT_ERRORS = (WaitTimeout.__name__, AnswerError.__name__, ChildFailed.__name__)


def not_answered(name: str) -> str:
    return f"nobody answered step {name} in time"


def wait_error(error: str, error_type: str | None, child: str | None = None) -> WaitTimeout | AnswerError | ChildFailed:
    """What a handler hears of a wait that failed; `child` is the id of the job that it was for."""
    if error_type == ChildFailed.__name__:
        return ChildFailed(error, child)
    return WaitTimeout(error) if error_type == WaitTimeout.__name__ else AnswerError(error)


def failed_wait(error: str, error_type: str) -> Raised:
    """A wait that failed, as the failure of a call: the job's policy decides."""
    families = families_of(wait_error(error, error_type))
    return Raised("error", f"{error_type}: {error}", error_type, families=families)


# -- when the job moves ---------------------------------------------------------------------------


class Interrupted(NamedTuple):
    """What becomes of the steps in one state when their job's attempt ends, or when it will not go on."""

    was: StepState
    state: StepState
    error: str | None = None
    error_type: str | None = None


def interrupted(job: Transition, ran: bool) -> list[Interrupted]:
    """`ran`: a worker had the job."""
    if job.to is Status.CANCELLED:
        alive = (StepState.PROCESSING, StepState.WAITING, StepState.PENDING)
        return [Interrupted(was, StepState.CANCELLED) for was in alive]
    if not ran:
        return []
    if job.event in ("job:reclaimed", "job:expired"):
        return [Interrupted(StepState.PROCESSING, StepState.FAILED, WORKER_LOST, "WorkerLost")]
    return [Interrupted(StepState.PROCESSING, StepState.PENDING)]


def restarts_clock(job: Transition) -> bool:
    """Whether the next attempt has all of its flow's time, because it does not continue the one before."""
    return job.event in ("job:retrying", "job:reclaimed", "job:requeued")
