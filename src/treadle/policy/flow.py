"""The order of a job's steps, as pure functions: what to do next, what a call did to its step, what a requeue repeats.

A step is its name and key, never its position, so nothing here depends on the order in which a program was written when
the job began. A finished step never runs again; a step that is new in the code runs, one that is gone keeps its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from treadle.model.durations import format_ms
from treadle.model.errors import (
    AnswerError,
    InvalidInput,
    StepEnded,
    TreadleError,
    UnknownStep,
    WaitTimeout,
    WrongState,
)
from treadle.model.retry import Retry, families_of
from treadle.model.status import Status
from treadle.model.steps import DONE, STEP_ENDED, WAIT_IN_PLACE_MS, StepState, shown_step
from treadle.policy.judgement import CallResult, Interrupt, Raised, Returned, judge
from treadle.policy.lifecycle import (
    WORKER_LOST,
    CancelAcknowledged,
    Completed,
    Failed,
    Outcome,
    Parked,
    Released,
    Requeued,
    Snoozed,
    Transition,
)

UNSERVED_MS = 5_000
UNSERVED = "no worker has the code of step"
MODES = ("unfinished", "all", "from")


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


class Reply(NamedTuple):
    result: str | None
    error: str | None


_NONE: Mapping[str, Any] = MappingProxyType({})


class FlowFacts(NamedTuple):
    steps: Mapping[str, KnownStep]
    answers: Mapping[str, Reply] = _NONE
    """Answers that came early."""
    whens: Mapping[str, bool] = _NONE
    """What `when` said, where it was asked."""
    cancelling: str | None = None
    """Why the job should stop."""


class Plan(NamedTuple):
    """What happens next; exactly one of these."""

    start: str | None = None
    evaluate_when: str | None = None
    skip: str | None = None
    take_answer: str | None = None
    """A step that has its answer already."""
    wait: str | None = None
    """A step that begins to wait; the job is parked."""
    overdue: str | None = None
    """A wait that got no answer in time."""
    failed: str | None = None
    """A wait that failed; the job fails too, by its policy."""
    end: Outcome | None = None


def plan(steps: Sequence[PlannedStep], facts: FlowFacts) -> Plan:
    """What to do with a job that has its steps one after the other. `Completed` leaves its result to the caller."""
    if facts.cancelling is not None:
        return Plan(end=CancelAcknowledged(facts.cancelling))
    known_steps = facts.steps
    for step in steps:
        known = known_steps.get(step.name, NOT_BEGUN)
        if known.state in DONE:
            continue
        if step.conditional and step.name not in facts.whens:
            return Plan(evaluate_when=step.name)
        if step.conditional and not facts.whens[step.name]:
            return Plan(skip=step.name)
        return _next_external(step, known, facts) if step.external else _next_call(step)
    return Plan(end=Completed())


def _next_call(step: PlannedStep) -> Plan:
    if not step.served:
        return Plan(end=unserved_step(step.name))
    return Plan(start=step.name)


def _next_external(step: PlannedStep, known: KnownStep, facts: FlowFacts) -> Plan:
    if known.state is StepState.FAILED and known.error_type:
        return Plan(failed=step.name)
    if step.name in facts.answers:
        return Plan(take_answer=step.name)
    if known.state is StepState.WAITING:
        if known.left_ms is not None and known.left_ms <= 0:
            return Plan(overdue=step.name)
        return Plan(end=Parked(step.name))
    return Plan(wait=step.name)


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


def _again(name: str, failed: Failed, delay_ms: int) -> StepEnd | RetryInPlace:
    if delay_ms <= WAIT_IN_PLACE_MS:
        return RetryInPlace(delay_ms, failed.error, failed.error_type)
    later = Snoozed(delay_ms, tried_again(name, delay_ms))
    return StepEnd(StepState.PENDING, None, failed.error, failed.error_type, later)


def spent(end: StepEnd, tries: int) -> int:
    """How many tries count when a call has ended: a postponed one did not fail."""
    return tries - (end.state is StepState.PENDING and end.error is None)


def tries_before(state: StepState, attempt: int) -> int:
    """How many tries of a step count. A step that failed for good starts over with its job's next attempt."""
    return attempt if state is StepState.PENDING else 0


# -- waits -----------------------------------------------------------------------------------------


class Pause(NamedTuple):
    """A branch of a handler that can't go on."""

    kind: Literal["answer", "sleep", "retry"]
    step: str
    """With its key, for people."""
    delay_ms: int | None = None
    """How long at most."""


def left_ms(delay_ms: int | None, passed_ms: int) -> int | None:
    """What is left of a wait that has lasted this long. One that should be over ends in the store."""
    return None if delay_ms is None else max(delay_ms - passed_ms, 1)


def set_aside(pauses: Sequence[Pause]) -> Parked | Snoozed:
    """What becomes of a job when none of its branches can go on."""
    answers = [one.step for one in pauses if one.kind == "answer"]
    if answers:
        retries = [max(one.delay_ms or 0, 1) for one in pauses if one.kind == "retry"]
        return Parked(", ".join(answers), min(retries, default=0))
    first = min(pauses, key=lambda one: one.delay_ms or 0)
    delay_ms = max(first.delay_ms or 0, 1)
    if first.kind == "retry":
        return Snoozed(delay_ms, tried_again(first.step, delay_ms))
    return Snoozed(delay_ms, f"{first.step}: until its time has come")


def tried_again(step: str, delay_ms: int) -> str:
    return f"step {step} is tried again in {format_ms(delay_ms)}"


WAIT_ERRORS = (WaitTimeout.__name__, AnswerError.__name__)


def not_answered(name: str) -> str:
    return f"nobody answered step {name} in time"


def wait_error(error: str, error_type: str | None) -> WaitTimeout | AnswerError:
    """What a handler hears of a wait that failed."""
    return WaitTimeout(error) if error_type == WaitTimeout.__name__ else AnswerError(error)


def failed_wait(error: str, error_type: str) -> Raised:
    """A wait that failed, as the failure of a call: the job's policy decides."""
    families = families_of(wait_error(error, error_type))
    return Raised("error", f"{error_type}: {error}", error_type, families=families)


# -- answers ---------------------------------------------------------------------------------------


class AnswerFacts(NamedTuple):
    """What a store finds, under its locks, of a step that is to be answered."""

    job_lives: bool
    state: StepState | None = None
    """None: the job has no such step."""
    waits: bool = False
    """The step takes answers."""
    timed_out: bool = False
    """No answer came in time, and the job has failed because of it: its next attempt waits again."""
    unannounced: bool = False
    """The answer is kept even if there is no such step yet."""


def refuse_answer(job_id: str, step: str, key: str, facts: AnswerFacts) -> TreadleError | None:
    """Why a step takes no answer; None if it does."""
    waits_again = facts.timed_out and facts.job_lives and facts.state is StepState.FAILED
    if not waits_again and facts.state in STEP_ENDED and (facts.state is not StepState.FAILED or facts.waits):
        return step_ended(step, key)
    if not facts.job_lives and facts.state is not None:
        return WrongState("the job has ended: signal is not possible")
    if not facts.job_lives or (facts.state is None and not facts.unannounced):
        shown = shown_step(step[:100], key[:100])
        return UnknownStep(f"job {job_id} has no step {shown} that takes an answer", step=step[:100])
    return None


def ends_wait(state: StepState, running: bool) -> bool:
    """Whether an answer ends its wait now. Otherwise it is kept.

    A job that runs may have more than one wait, and its worker has read this one as unanswered: it finds the answer
    when it sets the job aside again.
    """
    return state is StepState.WAITING and not running


def step_ended(step: str, key: str) -> StepEnded:
    """Also for an answer that comes second, before its step waits."""
    shown = shown_step(step, key)
    return StepEnded(f"step {shown} has its answer already or is over; the first answer counts", step=step)


def answered(reply: Reply) -> StepEnd:
    """What an answer makes of its step; the job's handler hears of an error."""
    if reply.error is not None:
        return StepEnd(StepState.FAILED, error=reply.error, error_type=AnswerError.__name__)
    return StepEnd(StepState.COMPLETED, result="null" if reply.result is None else reply.result)


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


# -- again -----------------------------------------------------------------------------------------


class Rerun(NamedTuple):
    """What a requeue repeats."""

    mode: str
    names: tuple[str, ...] | None
    """The steps that run again; with `unfinished` only those of their runs that have not completed. None: all."""
    runs: frozenset[tuple[str, str]] | None = None
    """If given, only these runs of them, by name and key."""


class Ran(NamedTuple):
    """A run of a step, as far as a requeue has to know it."""

    name: str
    place: int
    done: bool
    key: str = ""
    declared: bool = False


def rerun(steps: Sequence[Ran], mode: str, step: str | None, completed: bool) -> Rerun:
    """The steps that a requeue runs again. A job that has completed has nothing unfinished: all of it runs again."""
    check_mode(mode, step)
    if step is not None:
        found = [one for one in steps if one.name == step]
        if not found:
            raise UnknownStep(f"the job has no step {step[:100]!r}", step=step[:100])
        if any(one.declared for one in steps):
            first = min(one.place for one in found)
            return Rerun(mode, _names(one for one in steps if one.place >= first))
        return _rerun_after(steps, step)
    if mode == "all" or completed:
        return Rerun("all", None)
    return Rerun(mode, _names(one for one in steps if not one.done))


class StepRun(Protocol):
    """A run of a step, as a store finds it."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def state(self) -> StepState: ...


StepRunT = TypeVar("StepRunT", bound=StepRun)


def repeated(steps: Iterable[StepRunT], requeued: Requeued) -> list[StepRunT]:
    """The runs that a requeue makes undone, as `rerun` has chosen them."""
    names, runs = requeued.steps, requeued.runs
    if names is None:
        return list(steps)
    if runs is not None:
        return [one for one in steps if (one.name, one.key) in runs]
    again = [one for one in steps if one.name in names]
    return [one for one in again if one.state not in DONE] if requeued.mode == "unfinished" else again


def check_mode(mode: str, step: str | None) -> None:
    if mode not in MODES:
        raise InvalidInput(f"mode: {mode[:40]!r} is not one of {', '.join(MODES)}", field="mode")
    if (step is not None) is not (mode == "from"):
        hint = "mode from needs a step" if step is None else f"mode {mode} takes no step; use mode from"
        raise InvalidInput(f"step: {hint}", field="step")


def _rerun_after(steps: Sequence[Ran], step: str) -> Rerun:
    """What depends on a handler's step is unknown, so everything counts that began after its first run or is around it.

    A loop uses the same names again and again, so single runs of a name may be from before.
    """
    first = min(one.place for one in steps if one.name == step)
    after = [one for one in steps if one.place >= first or step.startswith(f"{one.name}/")]
    return Rerun("from", _names(after), frozenset((one.name, one.key) for one in after))


def _names(steps: Iterable[Ran]) -> tuple[str, ...]:
    ordered = sorted(steps, key=lambda one: one.place)
    return tuple(dict.fromkeys(one.name for one in ordered))
