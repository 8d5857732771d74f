"""What holds for every job and every outcome."""

from contextlib import suppress
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from treadle.model import events
from treadle.model.errors import WrongState
from treadle.model.retry import Retry, families_of
from treadle.model.status import ENDED, Status
from treadle.policy.lifecycle import (
    GIVE_ATTEMPT_BACK,
    LEAVES_TO,
    CancelAcknowledged,
    CancelRequested,
    Completed,
    DeadlinePassed,
    Deleted,
    Failed,
    GraceOver,
    LeaseExpired,
    Outcome,
    Parked,
    Patch,
    Released,
    ReleasedByHand,
    Requeued,
    Rescheduled,
    Snoozed,
    Transition,
    decide,
    retries,
)


class State(NamedTuple):
    status: Status
    attempt: int
    max_attempts: int


@st.composite
def states(draw: st.DrawFn) -> State:
    most = draw(st.integers(1, 5))
    return State(draw(st.sampled_from(Status)), draw(st.integers(0, most)), most)


words = st.text("abc \n", max_size=8)
delays = st.integers(-1, 10**6)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, st.none() | words),
    st.builds(Failed, words, words, st.none() | delays),
    st.builds(Snoozed, delays, words),
    st.builds(Released, words),
    st.builds(Parked, words),
    st.builds(CancelAcknowledged, words),
    st.builds(LeaseExpired, st.none() | words),
    st.builds(DeadlinePassed),
    st.builds(CancelRequested, words),
    st.builds(GraceOver),
    st.builds(Requeued, st.booleans(), st.booleans()),
    st.builds(ReleasedByHand, words),
    st.builds(Rescheduled, st.builds(Patch, st.none() | delays, st.none() | delays, st.just(9) | st.none())),
    st.builds(Deleted, st.booleans()),
)


def both_answers(state: State, outcome: Outcome) -> list[Transition]:
    """What was decided, and what happens instead if a cancel was requested in between; nothing if it is refused."""
    with suppress(WrongState):
        transition = decide(state, outcome)
        return [transition, transition.if_cancelling] if transition.if_cancelling else [transition]
    return []


@given(states(), outcomes)
def test_an_attempt_never_passes_the_maximum_and_is_never_negative(state: State, outcome: Outcome) -> None:
    for answer in both_answers(state, outcome):
        assert 0 <= answer.attempt <= state.attempt <= state.max_attempts


@given(states(), outcomes)
def test_only_a_way_of_the_table_is_ever_taken(state: State, outcome: Outcome) -> None:
    for answer in both_answers(state, outcome):
        stays = answer.to is state.status and isinstance(outcome, CancelRequested | Rescheduled | Deleted)
        meanwhile = LEAVES_TO[Status.CANCELLING]
        assert stays or answer.to in LEAVES_TO[state.status] or answer.to in meanwhile


@given(states(), outcomes)
def test_only_a_requeue_leaves_an_ended_state(state: State, outcome: Outcome) -> None:
    if state.status in ENDED and both_answers(state, outcome):
        assert isinstance(outcome, Requeued | Deleted)


@given(states(), outcomes)
def test_only_a_pending_job_has_a_delay_and_it_is_positive(state: State, outcome: Outcome) -> None:
    for answer in both_answers(state, outcome):
        assert answer.delay_ms >= 0
        assert answer.to is Status.PENDING or answer.delay_ms == 0


@given(states(), outcomes)
def test_the_event_says_whether_the_attempt_is_given_back(state: State, outcome: Outcome) -> None:
    for answer in both_answers(state, outcome):
        if state.status in (Status.PROCESSING, Status.CANCELLING) and state.attempt:
            assert (answer.attempt < state.attempt) is (answer.event in GIVE_ATTEMPT_BACK)


@given(states(), words)
def test_a_job_that_no_worker_holds_is_cancelled_in_two_steps_of_one_transaction(state: State, reason: str) -> None:
    for answer in both_answers(state, CancelRequested(reason)):
        if state.status is Status.WAITING:
            acknowledged = decide(state._replace(status=answer.to), CancelAcknowledged(reason))
            assert (answer.to, answer.then) == (Status.CANCELLING, acknowledged)
        else:
            assert answer.then is None


@given(states(), outcomes)
def test_every_event_has_a_known_name(state: State, outcome: Outcome) -> None:
    for answer in both_answers(state, outcome):
        assert answer.event is None or answer.event in events.NAMES


@given(states(), outcomes)
def test_a_job_that_was_asked_to_stop_is_never_tried_again(state: State, outcome: Outcome) -> None:
    answers = both_answers(state, outcome)
    if state.status is Status.CANCELLING:
        assert {answer.to for answer in answers} <= {Status.CANCELLED, Status.COMPLETED, Status.CANCELLING}
    for second in answers[1:]:
        assert second.to is Status.CANCELLED


@given(states(), outcomes)
def test_the_second_answer_is_what_the_first_would_be_had_the_cancel_been_known(state: State, outcome: Outcome) -> None:
    answers = both_answers(state, outcome)
    if len(answers) == 2:
        assert answers[1] == decide(state._replace(status=Status.CANCELLING), outcome)


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_a_job_that_always_fails_is_tried_exactly_as_often_as_allowed(most: int, wait: int) -> None:
    attempt, status = 0, Status.PENDING
    while status is Status.PENDING:
        attempt += 1
        status = decide(State(Status.PROCESSING, attempt, most), Failed("x", "E", wait)).to
    assert (status, attempt) == (Status.FAILED, most)


def test_by_default_a_job_waits_a_minute_then_four_and_its_third_failure_is_final() -> None:
    waits = []
    for attempt in (1, 2, 3):
        error = OSError("no route")
        outcome = Failed(str(error), "OSError", Retry().decide(families_of(error), failures=attempt))
        transition = decide(State(Status.PROCESSING, attempt, Retry().max_attempts), outcome)
        waits.append((transition.to, transition.delay_ms))
    assert waits == [(Status.PENDING, 60_000), (Status.PENDING, 240_000), (Status.FAILED, 0)]


@given(states())
def test_retries_is_never_negative_and_never_more_than_the_attempts(state: State) -> None:
    assert 0 <= retries(state.status, state.attempt) <= state.attempt
