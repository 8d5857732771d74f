"""The order of steps, what a call did to its step, and what a requeue repeats."""

from typing import Any

import pytest

from treadle.model.errors import InvalidInput, StepEnded, TreadleError, UnknownStep, WrongState
from treadle.model.retry import Retry, families_of
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.answers import AnswerFacts, refuse_answer
from treadle.policy.flow import (
    FlowFacts,
    Pause,
    Plan,
    PlannedStep,
    Reply,
    RetryInPlace,
    StepChange,
    StepEnd,
    StepFacts,
    Tries,
    after_call,
    answered,
    interrupted,
    plan,
    progress,
    restarts_clock,
    set_aside,
    spent,
    tries_before,
)
from treadle.policy.judgement import Cause, Interrupt, Raised, Returned, judge
from treadle.policy.lifecycle import (
    CancelAcknowledged,
    Completed,
    DeadlinePassed,
    Failed,
    LeaseExpired,
    Parked,
    Released,
    Requeued,
    RowState,
    Snoozed,
    decide,
)
from treadle.policy.rerun import Ran, Rerun, repeated, rerun
from treadle.store.values import ClaimedStep

FLOW = (PlannedStep("fetch"), PlannedStep("approve", external=True), PlannedStep("publish", conditional=True))
DONE = StepFacts(StepState.COMPLETED)
BOOM = Raised("error", "Boom", "ValueError", families=families_of(ValueError()))


def planned(steps: dict[str, StepFacts], **facts: Any) -> Plan:
    return plan(FLOW, FlowFacts(steps, **facts))


def test_steps_come_one_after_the_other() -> None:
    assert planned({}) == Plan(start=("fetch",))
    assert planned({"fetch": DONE}) == Plan(wait=("approve",), end=Parked("approve"))
    assert planned({"fetch": DONE, "approve": DONE}) == Plan(evaluate_when=("publish",))
    assert planned({"fetch": DONE, "approve": DONE}, whens={"publish": True}) == Plan(start=("publish",))
    assert planned({"fetch": DONE, "approve": DONE}, whens={"publish": False}) == Plan(skip=("publish",))
    assert planned({"fetch": DONE, "approve": DONE, "publish": DONE}) == Plan(end=Completed())
    skipped = StepFacts(StepState.SKIPPED)
    assert planned({"fetch": DONE, "approve": DONE, "publish": skipped}) == Plan(end=Completed())


@pytest.mark.parametrize("state", [StepState.PENDING, StepState.FAILED, StepState.PROCESSING, StepState.CANCELLED])
def test_a_step_that_has_not_finished_runs(state: StepState) -> None:
    assert planned({"fetch": StepFacts(state, 2)}) == Plan(start=("fetch",))


def test_waits() -> None:
    waits = StepFacts(StepState.WAITING, 0, left_ms=10)
    assert planned({"fetch": DONE, "approve": waits}) == Plan(end=Parked("approve"))
    assert planned({"fetch": DONE, "approve": waits._replace(left_ms=None)}) == Plan(end=Parked("approve"))
    assert planned({"fetch": DONE, "approve": waits._replace(left_ms=0)}) == Plan(overdue=("approve",))
    early = {"approve": Reply("1", None)}
    assert planned({"fetch": DONE}, answers=early) == Plan(take_answer=("approve",))
    assert planned({"fetch": DONE, "approve": waits._replace(left_ms=0)}, answers=early) == Plan(
        take_answer=("approve",)
    )
    failed = StepFacts(StepState.FAILED, 0, None, "no", "AnswerError")
    assert planned({"fetch": DONE, "approve": failed}) == Plan(failed=("approve",))
    told = failed._replace(error_type=None)
    anew = Plan(wait=("approve",), end=Parked("approve"))
    assert planned({"fetch": DONE, "approve": told}) == anew, "its job has failed: it is tried again"


def test_a_cancel_starts_nothing() -> None:
    assert planned({}, cancelling="stop") == Plan(end=CancelAcknowledged("stop"))


def test_a_step_without_code_here_is_left_to_others() -> None:
    end = plan([PlannedStep("new", served=False)], FlowFacts({})).end
    assert isinstance(end, Snoozed)
    assert (end.delay_ms, end.reason) == (5_000, "no worker has the code of step new")


def test_a_step_that_is_gone_is_not_asked_for() -> None:
    assert planned({"old": StepFacts(), "fetch": DONE}).wait == ("approve",)


# fetch, then embed beside summarise, then approve; tag has no part in it.
GRAPH = (
    PlannedStep("fetch"),
    PlannedStep("embed", after=("fetch",)),
    PlannedStep("summarise", after=("fetch",)),
    PlannedStep("approve", external=True, after=("embed", "summarise")),
    PlannedStep("publish"),
    PlannedStep("tag", after=()),
)


def of_graph(done: str = "", steps: dict[str, StepFacts] | None = None, **facts: Any) -> Plan:
    return plan(GRAPH, FlowFacts({**dict.fromkeys(done.split(), DONE), **(steps or {})}, **facts))


def test_branches_of_a_graph_start_together() -> None:
    assert of_graph() == Plan(start=("fetch", "tag"))
    assert of_graph("fetch tag") == Plan(start=("embed", "summarise"))
    assert of_graph("fetch tag embed", running=("summarise",)) == Plan()
    assert of_graph("fetch", running=("embed", "tag")) == Plan(start=("summarise",))
    assert of_graph("fetch tag embed summarise") == Plan(wait=("approve",), end=Parked("approve"))
    assert of_graph("fetch tag embed summarise approve") == Plan(start=("publish",)), "after the one before it"
    assert of_graph("fetch tag embed summarise approve publish") == Plan(end=Completed())


def test_a_graph_is_parked_only_when_no_branch_can_go_on() -> None:
    waits = {"approve": StepFacts(StepState.WAITING, 1)}
    assert of_graph("fetch embed summarise", waits) == Plan(start=("tag",))
    assert of_graph("fetch embed summarise", waits, running=("tag",)) == Plan()
    assert of_graph("fetch embed summarise", running=("tag",)) == Plan(), (
        "it begins to wait with the end of the attempt"
    )
    assert of_graph("fetch embed summarise tag", waits) == Plan(end=Parked("approve"))


def test_a_cancelled_graph_waits_for_its_running_branches() -> None:
    assert of_graph("fetch", running=("embed",), cancelling="stop") == Plan()


def test_so_many_steps_run_at_a_time() -> None:
    many = [PlannedStep(f"s{i}", after=()) for i in range(20)]
    assert plan(many, FlowFacts({}), parallel=3).start == ("s0", "s1", "s2")
    assert plan(many, FlowFacts({}, running=("s0", "s1")), parallel=3).start == ("s2",)


def test_a_message_names_a_handful_of_many_waits() -> None:
    many = [PlannedStep(f"s{i}", external=True, after=()) for i in range(200)]
    end = plan(many, FlowFacts({})).end
    assert isinstance(end, Parked)
    assert end.waits.endswith("s9 and 190 more")


@pytest.mark.parametrize(
    ("done", "step", "expected"), [(0, 0, 0), (0, 50, 16), (1, 0, 33), (1, 100, 66), (2, 50, 83), (3, 0, 100)]
)
def test_progress_by_the_formula(done: int, step: int, expected: int) -> None:
    names = [one.name for one in FLOW][:done]
    assert progress(FLOW, dict.fromkeys(names, DONE), step) == expected


# -- after a call ------------------------------------------------------------------------------------


def ended(result: Any, interrupt: Interrupt | None = None, tries: Tries | None = None) -> StepEnd | RetryInPlace:
    return after_call("fetch", result, interrupt, tries or Tries(1, None, 1, Retry()))


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

RAN = [
    Ran("fetch", 0, True, declared=True),
    Ran("embed", 1, True, declared=True),
    Ran("embed", 1, False),
    Ran("publish", 2, False, declared=True),
]


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


STORED = [
    ClaimedStep("fetch", "", 0, StepState.COMPLETED, 1),
    ClaimedStep("page", "1", 1, StepState.SKIPPED, 1),
    ClaimedStep("page", "2", 2, StepState.FAILED, 1),
]


@pytest.mark.parametrize(
    ("requeued", "again"),
    [
        (Requeued(), ["fetch", "page 1", "page 2"]),
        (Requeued(mode="unfinished", steps=("fetch", "page")), ["page 2"]),
        (Requeued(mode="from", steps=("page",)), ["page 1", "page 2"]),
        (Requeued(mode="from", steps=("page",), runs=frozenset({("page", "1")})), ["page 1"]),
        (Requeued(mode="unfinished", steps=()), []),
    ],
)
def test_a_requeue_repeats_the_chosen_runs(requeued: Requeued, again: list[str]) -> None:
    assert [f"{one.name} {one.key}".strip() for one in repeated(STORED, requeued)] == again


@pytest.mark.parametrize(
    ("facts", "refusal"),
    [
        (AnswerFacts(True, StepState.WAITING, waits=True), None),
        (AnswerFacts(True, StepState.PENDING), None),
        (AnswerFacts(True, StepState.PROCESSING), None),
        (AnswerFacts(True, StepState.COMPLETED), StepEnded),
        (AnswerFacts(True, StepState.SKIPPED), StepEnded),
        (AnswerFacts(True, StepState.CANCELLED), StepEnded),
        (AnswerFacts(True, StepState.FAILED, waits=True), StepEnded),
        (AnswerFacts(True, StepState.FAILED, waits=True, timed_out=True), None),  # the next attempt waits again
        (AnswerFacts(False, StepState.FAILED, waits=True, timed_out=True), StepEnded),
        (AnswerFacts(True, StepState.COMPLETED, waits=True, timed_out=True), StepEnded),
        (AnswerFacts(True, StepState.FAILED), None),  # a call failed: its next try may wait
        (AnswerFacts(True), UnknownStep),
        (AnswerFacts(True, unannounced=True), None),
        (AnswerFacts(False), UnknownStep),
        (AnswerFacts(False, unannounced=True), UnknownStep),
        (AnswerFacts(False, StepState.PENDING), WrongState),
        (AnswerFacts(False, StepState.COMPLETED), StepEnded),
    ],
)
def test_a_step_takes_one_answer_while_its_job_lives(facts: AnswerFacts, refusal: type[TreadleError] | None) -> None:
    refused = refuse_answer("id", "ask", "7", facts)
    assert (None if refused is None else type(refused)) is refusal
    assert refused is None or refusal is WrongState or "ask (7)" in refused.message


def test_an_answer_completes_its_step_and_an_error_fails_it() -> None:
    used: dict[str, Any] = {"attempt": 2, "takes_answer": True}
    assert answered(Reply('{"ok": true}', None), 2) == StepChange(StepState.COMPLETED, result='{"ok": true}', **used)
    assert answered(Reply(None, None), 2) == StepChange(StepState.COMPLETED, result="null", **used)
    wrong = StepChange(StepState.FAILED, error="no", error_type="AnswerError", **used)
    assert answered(Reply(None, "no"), 2) == wrong


def test_a_handler_runs_again_what_began_after_the_step() -> None:
    turns = [Ran("ask", 0, True), Ran("turns", 1, True)]
    for turn in range(2):
        turns += [Ran("turns/llm", 2 + 2 * turn, True, str(turn)), Ran("turns/tool", 3 + 2 * turn, True, str(turn))]
    after_the_tool = frozenset({("turns/tool", "0"), ("turns/llm", "1"), ("turns/tool", "1"), ("turns", "")})
    names = ("turns", "turns/tool", "turns/llm")
    assert rerun(turns, "from", "turns/tool", False) == Rerun("from", names, after_the_tool)


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        ([Pause("answer", "approve", 50)], Parked("approve")),
        ([Pause("sleep", "sleep", 50), Pause("answer", "approve (1)")], Parked("approve (1)")),
        ([Pause("retry", "fetch", 70), Pause("answer", "a"), Pause("answer", "b")], Parked("a, b", 70)),
        (
            [Pause("sleep", "sleep (1)", 50), Pause("sleep", "sleep (2)", 40)],
            Snoozed(40, "sleep (2): until its time has come"),
        ),
        ([Pause("sleep", "sleep", 50), Pause("retry", "fetch", 40)], Snoozed(40, "step fetch is tried again in 40ms")),
        ([Pause("sleep", "sleep", -3)], Snoozed(1, "sleep: until its time has come")),
    ],
)
def test_a_job_is_set_aside_until_the_first_branch_can_go_on(pauses: list[Pause], expected: Parked | Snoozed) -> None:
    assert set_aside(pauses) == expected


def test_a_job_that_was_told_to_wait_waits_regardless_of_its_handler() -> None:
    waits = Parked("approve")
    policy = Tries(1, Retry(5, backoff="fixed"), 1, Retry())
    for result in (Returned("1"), Raised("error", "Boom", "Boom"), Raised("stop", "stopped", "JobCancelled")):
        assert judge(result, None, Retry(), 1, waits) is waits
        assert after_call("fetch", result, None, policy, waits) == StepEnd(StepState.PENDING, outcome=waits)
    assert judge(Returned("1"), Interrupt(Cause.LOST, "gone"), Retry(), 1, waits) is None


def test_a_try_that_was_put_off_does_not_count() -> None:
    assert spent(StepEnd(StepState.PENDING), 2) == 1
    assert spent(StepEnd(StepState.PENDING, error="Boom"), 2) == 2
    assert spent(StepEnd(StepState.FAILED, error="Boom"), 2) == 2


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


def test_a_new_attempt_has_all_the_time_of_its_flow() -> None:
    running = RowState(Status.PROCESSING, 1, 3)
    for outcome in (Failed("Boom", "Boom", 1), LeaseExpired()):
        assert restarts_clock(decide(running, outcome))
    for put_off in (Parked("approve"), Snoozed(1), Released()):
        assert not restarts_clock(decide(running, put_off))
    assert restarts_clock(decide(RowState(Status.FAILED, 3, 3), Requeued()))
