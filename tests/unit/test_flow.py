"""The order of steps, what a call did to its step, and what a requeue repeats."""

import pytest

from treadle.model.errors import InvalidInput, UnknownStep
from treadle.model.retry import Retry, families_of
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.flow import (
    FlowFacts,
    Plan,
    PlannedStep,
    Ran,
    Reply,
    Rerun,
    RetryInPlace,
    StepEnd,
    StepFacts,
    Tries,
    after_call,
    interrupted,
    plan,
    progress,
    rerun,
    tries_before,
)
from treadle.policy.judgement import Cause, Interrupt, Raised, Returned
from treadle.policy.lifecycle import (
    CancelAcknowledged,
    Completed,
    DeadlinePassed,
    Failed,
    LeaseExpired,
    Parked,
    Released,
    RowState,
    Snoozed,
    decide,
)

FLOW = (PlannedStep("fetch"), PlannedStep("approve", external=True), PlannedStep("publish", conditional=True))
DONE = StepFacts(StepState.COMPLETED)
BOOM = Raised("error", "Boom", "ValueError", families=families_of(ValueError()))


def planned(steps: dict[str, StepFacts], **facts: object) -> Plan:
    return plan(FLOW, FlowFacts(steps, **facts))  # type: ignore[arg-type]


def test_steps_come_one_after_the_other() -> None:
    assert planned({}) == Plan(start="fetch")
    assert planned({"fetch": DONE}) == Plan(wait="approve")
    assert planned({"fetch": DONE, "approve": DONE}) == Plan(evaluate_when="publish")
    assert planned({"fetch": DONE, "approve": DONE}, whens={"publish": True}) == Plan(start="publish")
    assert planned({"fetch": DONE, "approve": DONE}, whens={"publish": False}) == Plan(skip="publish")
    assert planned({"fetch": DONE, "approve": DONE, "publish": DONE}) == Plan(end=Completed())
    skipped = StepFacts(StepState.SKIPPED)
    assert planned({"fetch": DONE, "approve": DONE, "publish": skipped}) == Plan(end=Completed())


@pytest.mark.parametrize("state", [StepState.PENDING, StepState.FAILED, StepState.PROCESSING, StepState.CANCELLED])
def test_a_step_that_has_not_finished_runs(state: StepState) -> None:
    assert planned({"fetch": StepFacts(state, 2)}) == Plan(start="fetch")


def test_waits() -> None:
    waits = StepFacts(StepState.WAITING, 0, left_ms=10)
    assert planned({"fetch": DONE, "approve": waits}) == Plan(end=Parked("approve"))
    assert planned({"fetch": DONE, "approve": waits._replace(left_ms=None)}) == Plan(end=Parked("approve"))
    assert planned({"fetch": DONE, "approve": waits._replace(left_ms=0)}) == Plan(overdue="approve")
    early = {"approve": Reply("1", None)}
    assert planned({"fetch": DONE}, answers=early) == Plan(take_answer="approve")
    assert planned({"fetch": DONE, "approve": waits._replace(left_ms=0)}, answers=early) == Plan(take_answer="approve")
    failed = StepFacts(StepState.FAILED, 0, None, "no", "AnswerError")
    assert planned({"fetch": DONE, "approve": failed}) == Plan(end=Failed("no", "AnswerError"))


def test_a_cancel_starts_nothing() -> None:
    assert planned({}, cancelling="stop") == Plan(end=CancelAcknowledged("stop"))


def test_a_step_without_code_here_is_left_to_others() -> None:
    end = plan([PlannedStep("new", served=False)], FlowFacts({})).end
    assert isinstance(end, Snoozed)
    assert (end.delay_ms, end.reason) == (5_000, "no worker has the code of step new")


def test_a_step_that_is_gone_is_not_asked_for() -> None:
    assert planned({"old": StepFacts(), "fetch": DONE}) == Plan(wait="approve")


@pytest.mark.parametrize(
    ("done", "step", "expected"), [(0, 0, 0), (0, 50, 16), (1, 0, 33), (1, 100, 66), (2, 50, 83), (3, 0, 100)]
)
def test_progress_by_the_formula(done: int, step: int, expected: int) -> None:
    names = [one.name for one in FLOW][:done]
    assert progress(FLOW, dict.fromkeys(names, DONE), step) == expected


# -- after a call ------------------------------------------------------------------------------------


def ended(result: object, interrupt: Interrupt | None = None, tries: Tries | None = None) -> StepEnd | RetryInPlace:
    return after_call("fetch", result, interrupt, tries or Tries(1, None, 1, Retry()))  # type: ignore[arg-type]


def test_a_call_that_returned() -> None:
    assert ended(Returned("1")) == StepEnd(StepState.COMPLETED, "1")


def test_without_a_policy_its_failure_is_the_jobs() -> None:
    failed = Failed("Boom", "ValueError", 60_000)
    assert ended(BOOM) == StepEnd(StepState.FAILED, None, "Boom", "ValueError", failed)


def test_its_own_policy_comes_first() -> None:
    policy = Retry(3, backoff="fixed", delay="2s")
    assert ended(BOOM, tries=Tries(1, policy, 1, Retry())) == RetryInPlace(2_000, "Boom", "ValueError")
    last = ended(BOOM, tries=Tries(3, policy, 1, Retry()))
    assert isinstance(last, StepEnd)
    assert last.outcome == Failed("Boom", "ValueError", 60_000)


@pytest.mark.parametrize(("delay", "in_place"), [("30s", True), ("31s", False)])
def test_a_long_wait_gives_the_slot_up(delay: str, in_place: bool) -> None:
    answer = ended(BOOM, tries=Tries(1, Retry(3, backoff="fixed", delay=delay), 1, Retry()))
    assert isinstance(answer, RetryInPlace) is in_place
    if isinstance(answer, StepEnd):
        assert (answer.state, answer.error) == (StepState.PENDING, "Boom")
        assert answer.outcome == Snoozed(31_000, "step fetch is tried again in 31s")


def test_what_a_step_raises_means_what_it_means_in_a_handler() -> None:
    policy = Tries(1, Retry(5, backoff="fixed"), 1, Retry())
    fatal = ended(Raised("fatal", "no", "Fail"), tries=policy)
    assert isinstance(fatal, StepEnd)
    assert fatal.outcome == Failed("no", "Fail")
    snoozed = ended(Raised("snooze", "later", "Snooze", 5_000), tries=policy)
    assert snoozed == StepEnd(StepState.PENDING, outcome=Snoozed(5_000, "later"))
    parked = ended(Raised("park", "fetch/approve", "Suspend"), tries=policy)
    assert parked == StepEnd(StepState.PENDING, outcome=Parked("fetch/approve"))
    named = ended(Raised("retry", "wait", "RetryAfter", 3_000))
    assert isinstance(named, StepEnd)
    assert named.outcome == Failed("wait", "RetryAfter", 3_000)


def test_interrupts() -> None:
    stop = Raised("stop", "stopped", "JobCancelled")
    cancelled = ended(stop, Interrupt(Cause.CANCEL, "by hand"))
    assert cancelled == StepEnd(StepState.CANCELLED, outcome=CancelAcknowledged("by hand"))
    shutdown = ended(stop, Interrupt(Cause.SHUTDOWN, "bye"))
    assert shutdown == StepEnd(StepState.PENDING, outcome=Released("the worker stopped"))
    lost = ended(stop, Interrupt(Cause.LOST, "gone"))
    assert isinstance(lost, StepEnd)
    assert lost.lost
    late = ended(Returned("1"), Interrupt(Cause.TIMEOUT, "too long"), Tries(1, Retry(2, backoff="fixed"), 1, Retry()))
    assert isinstance(late, RetryInPlace)


def test_tries_begin_anew_after_a_failure_of_the_job() -> None:
    assert tries_before(StepState.PENDING, 2) == 2
    assert tries_before(StepState.FAILED, 2) == 0


# -- requeue -------------------------------------------------------------------------------------------

RAN = [Ran("fetch", 0, True), Ran("embed", 1, True), Ran("embed", 1, False), Ran("publish", 2, False)]


@pytest.mark.parametrize(
    ("mode", "step", "completed", "expected"),
    [
        ("unfinished", None, False, Rerun("unfinished", ("embed", "publish"))),
        ("unfinished", None, True, Rerun("all", None)),
        ("all", None, False, Rerun("all", None)),
        ("from", "embed", False, Rerun("from", ("embed", "publish"))),
        ("from", "fetch", True, Rerun("from", ("fetch", "embed", "publish"))),
    ],
)
def test_what_runs_again(mode: str, step: str | None, completed: bool, expected: Rerun) -> None:
    assert rerun(RAN, mode, step, completed) == expected


@pytest.mark.parametrize(
    ("mode", "step", "error"),
    [
        ("some", None, InvalidInput),
        ("from", None, InvalidInput),
        ("all", "fetch", InvalidInput),
        ("from", "nothing", UnknownStep),
    ],
)
def test_bad_requeues(mode: str, step: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        rerun(RAN, mode, step, False)


def test_what_the_end_of_an_attempt_does_to_steps() -> None:
    running = RowState(Status.PROCESSING, 1, 3)
    alive = [StepState.PROCESSING, StepState.WAITING, StepState.PENDING]
    cancelled = decide(RowState(Status.CANCELLING, 1, 3), CancelAcknowledged())
    assert [one.was for one in interrupted(cancelled, True)] == alive
    assert {one.state for one in interrupted(cancelled, False)} == {StepState.CANCELLED}
    for state in (running, RowState(Status.PROCESSING, 3, 3)):
        [lost] = interrupted(decide(state, LeaseExpired("w1")), True)
        assert lost == (StepState.PROCESSING, StepState.FAILED, "worker lost", "WorkerLost")
    for outcome in (Released(), Snoozed(1), Failed("Boom", "Boom", 1)):
        assert interrupted(decide(running, outcome), True) == [(StepState.PROCESSING, StepState.PENDING, None, None)]
    assert interrupted(decide(RowState(Status.PENDING, 0, 3), DeadlinePassed()), False) == []
