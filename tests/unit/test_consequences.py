"""What follows from a move of a job, for every kind of move and every extra that a job can have."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.model.status import ENDED, Status
from treadle.model.steps import StepState
from treadle.policy.consequences import (
    BEHIND,
    HELD,
    LATER,
    MORE,
    NOTHING,
    PARKED,
    PLAIN,
    PLAIN_JOB,
    READY,
    STEPS,
    Consequences,
    Extent,
    Frees,
    Move,
    Reopens,
    Tally,
    Told,
    Traits,
    Waits,
    after,
    changes_nothing,
    extent,
    leaves_place,
    rescheduled,
    uncounted,
)
from treadle.policy.flow import Interrupted
from treadle.policy.history import Note, ending
from treadle.policy.lifecycle import (
    Answered,
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
    Requeued,
    Rescheduled,
    RowState,
    Snoozed,
    Transition,
    WaitOver,
    decide,
)

NOW = 1_000


@dataclass(frozen=True)
class Attempt:
    attempt: int = 2
    claimed_at: int | None = 600
    started_at: int | None = 700
    cancel_at: int | None = None
    cancel_reason: str | None = None
    progress: int | None = 40
    message: str | None = "frame 4"


@dataclass(frozen=True)
class Ended:
    status: str = "failed"
    attempt: int = 3
    ended_at: int = 500
    started_at: int | None = 400
    result: str | None = None
    error: str | None = "boom"
    error_type: str | None = "ValueError"
    worker: str | None = "w1"


RAN, NEVER_STARTED = Attempt(), Attempt(started_at=None)
BOOM = Failed("ValueError: boom", "ValueError", retry_in_ms=50)
FATAL = Failed("ValueError: boom", "ValueError")

DEDUPED, ONCE = Traits(deduped=True), Traits(deduped=True, repeatable=False)
LIMITED, EXPIRES, FLOW = Traits(limited=True), Traits(expires=True), Traits(steps=True)
ALL = Traits(deduped=True, limited=True, expires=True, steps=True)


def ran(outcome: Outcome, attempt: Attempt = RAN, status: Status = Status.PROCESSING) -> Move:
    """The end of an attempt by its owner."""
    return Move(status, decide(RowState(status, attempt.attempt, 3), outcome), attempt, "w1")


def idle(outcome: Outcome, status: Status = Status.PENDING, *, was_ready: bool = False) -> Move:
    """A move of a job that no worker has."""
    ended = Ended(status.value) if status in ENDED else None
    return Move(status, decide(RowState(status, 2, 3), outcome), was_ready=was_ready, ended=ended)


def what(move: Move, traits: Traits = PLAIN_JOB) -> Consequences:
    return after(move, traits, NOW)


def others(found: Consequences, *known: str) -> Consequences:
    """What is left if these consequences, which were checked, are taken away."""
    return found._replace(**{name: getattr(NOTHING, name) for name in known})


def test_nothing_is_nothing() -> None:
    assert [name for name, value in NOTHING._asdict().items() if value] == ["frees"]
    assert not any(NOTHING.frees)
    assert not any(Reopens())


# -- a job without extras -----------------------------------------------------------------------------


def test_a_completion_is_an_ending_and_its_tally_and_nothing_else() -> None:
    move = ran(Completed("1"))
    assert what(move) == Consequences(ending(move.transition, RAN, NOW), Tally(NOW, "completed", 1, 300))


@pytest.mark.parametrize(
    ("move", "status", "event"),
    [
        (ran(FATAL), "failed", "job:failed"),
        (ran(CancelAcknowledged("seen"), status=Status.CANCELLING), "cancelled", "job:cancelled"),
        (ran(GraceOver(), status=Status.CANCELLING), "cancelled", "job:cancelled"),
        (ran(LeaseExpired("w1"), Attempt(3)), "expired", "job:expired"),
        (idle(DeadlinePassed()), "expired", "job:expired"),
        (idle(CancelRequested("old")), "cancelled", "job:cancelled"),
    ],
)
def test_other_endings_are_told_too(move: Move, status: str, event: str) -> None:
    found = what(move)
    assert found.ending == ending(move.transition, move.attempt, NOW)
    assert found.tally == Tally(NOW, status, 1, 300 if move.attempt else 0)
    (told,) = found.told
    assert (told.type, told.source, told.to, told.message) == (event, move.source, status, move.transition.message)
    assert others(found, "ending", "tally", "told") == NOTHING


@pytest.mark.parametrize(
    ("outcome", "waits", "tally", "note"),
    [
        (BOOM, Waits(LATER, 2, 1_050), Tally(NOW, "retrying", 1, 300), Note(BOOM.error, "ValueError", None, None)),
        (Snoozed(70), Waits(LATER, 1, 1_070), None, Note(None, None, None, None)),
        (Released("stopped"), Waits(READY, 1), None, Note(None, None, None, None)),
        (LeaseExpired("w1"), Waits(READY, 2), None, Note(None, None, None, None)),
        (Parked("approve"), Waits(PARKED, 1), None, Note(None, None, None, None)),
        (Parked("approve", 90), Waits(PARKED, 1, 1_090), None, Note(None, None, None, None)),
    ],
)
def test_a_job_that_goes_on_waits_somewhere(
    outcome: Outcome, waits: Waits, tally: Tally | None, note: Note | None
) -> None:
    move = ran(outcome)
    found = what(move)
    assert (found.waits, found.tally, found.note) == (waits, tally, note)
    assert [told.type for told in found.told] == [move.transition.event]
    assert others(found, "waits", "tally", "note", "told") == NOTHING


def test_an_attempt_that_never_started_leaves_no_note() -> None:
    assert what(ran(Released(), NEVER_STARTED)).note is None


def test_a_job_that_never_ran_is_put_back_with_no_attempt() -> None:
    assert what(ran(Released(), Attempt(0, started_at=None))).waits == Waits(READY, 0)


def test_what_is_told_of_an_attempt() -> None:
    (told,) = what(ran(BOOM)).told
    facts = {"attempt": 2, "startedAt": 700, "delayMs": 50, "worker": "w1", "errorType": "ValueError"}
    message = "ValueError: boom"
    assert told == Told("job:retrying", Status.PROCESSING, Status.PENDING, message, facts | {"error": message})


def test_a_snooze_for_the_whole_topic_pauses_it_as_long() -> None:
    assert what(ran(Snoozed(70, pauses_topic=True))).topic_paused_until == 1_070
    assert what(ran(Snoozed(70))).topic_paused_until is None


@pytest.mark.parametrize("outcome", [Answered(), WaitOver()])
def test_a_parked_job_that_goes_on_only_changes_its_place(outcome: Outcome) -> None:
    woken = idle(outcome, Status.WAITING)
    assert what(woken) == Consequences(waits=Waits(READY, 2))
    settled_when_parked = Traits(deduped=True, limited=True, steps=True)
    assert what(woken, settled_when_parked) == what(woken)


# -- keys, limits, deadlines --------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Completed(), FATAL])
def test_an_ended_job_lets_go_of_its_dedupe_key(outcome: Outcome) -> None:
    found = what(ran(outcome), DEDUPED)
    assert (found.frees, found.keeps_key) == (Frees(dedupe_key=True), False)


def test_the_key_of_a_job_that_completes_only_once_stays() -> None:
    done = what(ran(Completed()), ONCE)
    assert (done.frees, done.keeps_key) == (Frees(), True)
    failed = what(ran(FATAL), ONCE)
    assert (failed.frees, failed.keeps_key) == (Frees(dedupe_key=True), False)
    assert not what(ran(Completed()), Traits(repeatable=False)).keeps_key, "it has none"


@pytest.mark.parametrize("outcome", [BOOM, Snoozed(5), Released(), Parked("approve")])
def test_a_job_that_goes_on_keeps_its_keys_and_stays_counted(outcome: Outcome) -> None:
    found = what(ran(outcome), Traits(deduped=True, limited=True))
    assert (found.frees, found.keeps_key) == (Frees(), False)


def test_an_ended_job_is_no_longer_counted_or_watched() -> None:
    assert what(ran(Completed()), LIMITED).frees == Frees(limit=True)
    assert what(ran(Completed()), EXPIRES).frees == Frees(deadline=True)
    assert what(idle(DeadlinePassed()), EXPIRES).frees == Frees(deadline=True)


@pytest.mark.parametrize(
    ("move", "frees"),
    [
        (ran(BOOM), Frees(deadline=True)),
        (ran(LeaseExpired(), NEVER_STARTED), Frees(deadline=True)),
        (ran(Snoozed(5), Attempt(1)), Frees(deadline=True, expiry=True)),
        (ran(Snoozed(5), Attempt(2)), Frees(deadline=True)),
        (ran(Released(), Attempt(1, started_at=None)), Frees()),
        (ran(Parked("approve"), Attempt(1)), Frees(deadline=True, expiry=True)),
        (ran(Parked("approve"), Attempt(2)), Frees(deadline=True, expiry=True)),
    ],
)
def test_a_job_that_started_in_time_has_no_deadline_any_more(move: Move, frees: Frees) -> None:
    assert what(move, EXPIRES).frees == frees
    assert what(move).frees == Frees()


@pytest.mark.parametrize("outcome", [Completed(), FATAL, BOOM, Snoozed(5), Released(), Parked("approve")])
def test_a_job_that_stops_running_lets_a_held_one_in(outcome: Outcome) -> None:
    assert what(ran(outcome), LIMITED).wakes is HELD
    assert what(ran(outcome)).wakes is None


def test_a_job_that_leaves_the_queue_without_having_run_makes_room_behind_it() -> None:
    assert what(idle(CancelRequested(), was_ready=True), LIMITED).wakes is BEHIND
    assert what(idle(CancelRequested()), LIMITED).wakes is None, "nothing waits behind a delayed one"
    assert what(idle(CancelRequested(), was_ready=True)).wakes is None
    unknown = Move(Status.PENDING, idle(CancelRequested()).transition)
    assert what(unknown, LIMITED).wakes is None


# -- steps --------------------------------------------------------------------------------------------


def test_what_becomes_of_the_steps() -> None:
    undone = Interrupted(StepState.PROCESSING, StepState.PENDING)
    assert list(what(ran(Completed()), FLOW).steps) == [undone]
    assert list(what(ran(BOOM), FLOW).steps) == [undone]
    assert list(what(ran(Parked("approve")), FLOW).steps) == [undone]
    assert [one.state for one in what(ran(LeaseExpired()), FLOW).steps] == [StepState.FAILED]
    assert {one.state for one in what(idle(CancelRequested()), FLOW).steps} == {StepState.CANCELLED}
    assert not what(ran(BOOM)).steps


def test_a_new_attempt_has_all_of_its_time_and_one_that_goes_on_does_not() -> None:
    assert what(ran(BOOM), FLOW).restarts_clock
    assert what(ran(LeaseExpired()), FLOW).restarts_clock
    assert what(idle(Requeued(), Status.FAILED), FLOW).restarts_clock
    assert not what(ran(BOOM)).restarts_clock
    assert not what(idle(Requeued(), Status.FAILED)).restarts_clock
    for outcome in (Snoozed(5), Released(), Parked("approve"), Completed()):
        assert not what(ran(outcome), FLOW).restarts_clock


def test_a_flow_that_goes_on_shows_how_far_it_is() -> None:
    assert what(ran(Snoozed(5)), FLOW).note == Note(None, None, 40, "frame 4")
    assert what(ran(Parked("approve")), FLOW).note == Note(None, None, 40, "frame 4")


# -- what people ask for ------------------------------------------------------------------------------


def test_a_running_job_is_only_asked_to_stop() -> None:
    move = idle(CancelRequested("old"), Status.PROCESSING)
    assert not leaves_place(move.transition)
    told = Told("job:cancelling", Status.PROCESSING, Status.CANCELLING, "old", {})
    assert what(move, ALL) == Consequences(told=(told,), asks_to_stop="old")


def test_every_other_move_takes_a_job_out_of_its_place() -> None:
    assert all(leaves_place(ran(outcome).transition) for outcome in (Completed(), BOOM, Released(), Parked("approve")))
    assert leaves_place(idle(CancelRequested()).transition)
    assert leaves_place(idle(Requeued(), Status.FAILED).transition)


def test_a_second_cancel_changes_nothing() -> None:
    move = idle(CancelRequested("old"), Status.CANCELLING)
    assert changes_nothing(move.source, move.transition)
    assert what(move, ALL) == NOTHING


def test_a_parked_job_is_asked_and_cancelled_in_one() -> None:
    move = idle(CancelRequested("old"), Status.WAITING)
    assert leaves_place(move.transition)
    found = what(move, ALL)
    assert [(told.type, told.source, told.to) for told in found.told] == [
        ("job:cancelling", Status.WAITING, Status.CANCELLING),
        ("job:cancelled", Status.CANCELLING, Status.CANCELLED),
    ]
    assert found.ending
    assert (found.ending.status, found.ending.cancel_reason) == (Status.CANCELLED, "old")
    assert (found.tally, found.asks_to_stop) == (Tally(NOW, "cancelled", 1, 0), None)
    assert found.frees == Frees(dedupe_key=True, deadline=True, limit=True)


def test_a_requeue_takes_the_ending_back() -> None:
    found = what(idle(Requeued(), Status.FAILED))
    assert found.tally == Tally(500, "failed", -1, -100)
    assert found.waits == Waits(READY, 0, NOW)
    assert found.reopens == Reopens()
    (told,) = found.told
    assert (told.type, told.source, told.to) == ("job:requeued", Status.FAILED, Status.PENDING)
    assert list(told.metadata) == ["outcome"]
    assert told.metadata["outcome"]["error"] == "boom"
    assert others(found, "tally", "waits", "reopens", "told") == NOTHING


def test_a_requeue_tells_which_payload_was_replaced() -> None:
    (told,) = what(idle(Requeued(), Status.FAILED)._replace(old_payload={"a": 1})).told
    assert told.metadata["payload"] == {"a": 1}


@pytest.mark.parametrize(
    ("traits", "reopens"),
    [
        (Traits(repeatable=False), Reopens(once_key=True)),
        (EXPIRES, Reopens(deadline=True)),
        (LIMITED, Reopens(limit=True)),
        (DEDUPED, Reopens()),
    ],
)
def test_a_requeued_job_takes_up_what_its_ending_let_go_of(traits: Traits, reopens: Reopens) -> None:
    found = what(idle(Requeued(), Status.FAILED), traits)
    assert (found.reopens, found.frees, found.wakes) == (reopens, Frees(), None)


def test_a_deleted_job_is_gone_and_no_longer_counted() -> None:
    assert what(idle(Deleted())) == Consequences(erases=True)
    assert what(idle(Deleted(True), Status.FAILED)) == Consequences(tally=Tally(500, "failed", -1, -100), erases=True)
    limited = what(idle(Deleted(), was_ready=True), LIMITED)
    assert limited == Consequences(frees=Frees(limit=True), wakes=BEHIND, erases=True)
    assert uncounted(500, "failed", None) == Tally(500, "failed", -1, 0)


def test_a_rescheduled_job_goes_where_its_new_time_says() -> None:
    patched = idle(Rescheduled(Patch(priority=9)), was_ready=True)
    assert rescheduled(patched, 1, NOW, ALL, NOW) == Consequences(waits=Waits(READY, 1))
    assert rescheduled(patched, 1, NOW + 1, PLAIN_JOB, NOW) == Consequences(waits=Waits(LATER, 1))
    assert rescheduled(patched, 1, NOW + 1, LIMITED, NOW) == Consequences(waits=Waits(LATER, 1), wakes=BEHIND)


@pytest.mark.parametrize(
    ("source", "transition", "nothing"),
    [
        (Status.PENDING, Transition(Status.PENDING, 1), True),
        (Status.PENDING, Transition(Status.PENDING, 1, patch=Patch(priority=9)), False),
        (Status.PENDING, Transition(Status.PENDING, 1, deletes=True), False),
        (Status.PENDING, Transition(Status.PENDING, 1, event="job:told"), False),
        (Status.WAITING, Transition(Status.PENDING, 1), False),
    ],
)
def test_a_transition_to_the_same_may_change_nothing(source: Status, transition: Transition, nothing: bool) -> None:
    assert changes_nothing(source, transition) is nothing


# -- how much follows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "traits", "expected"),
    [
        (Completed(), PLAIN_JOB, PLAIN),
        (Completed(), Traits(repeatable=False), PLAIN),
        (Completed(), FLOW, STEPS),
        (Completed(), DEDUPED, MORE),
        (Completed(), ONCE, MORE),
        (Completed(), LIMITED, MORE),
        (Completed(), EXPIRES, MORE),
        (Completed(), Traits(steps=True, deduped=True), MORE),
        (FATAL, PLAIN_JOB, MORE),
        (BOOM, PLAIN_JOB, MORE),
        (Snoozed(5), PLAIN_JOB, MORE),
        (Released(), PLAIN_JOB, MORE),
        (Parked("approve"), FLOW, MORE),
    ],
)
def test_only_a_completion_is_plain(outcome: Outcome, traits: Traits, expected: Extent) -> None:
    transition = ran(outcome).transition
    assert extent(transition.to, transition.event, traits) is expected


def test_what_ends_nothing_is_not_plain() -> None:
    assert extent(Status.CANCELLING, None, PLAIN_JOB) is MORE
    assert extent(Status.PENDING, None, PLAIN_JOB) is MORE


times = st.none() | st.integers(0, NOW)
attempts = st.builds(
    Attempt, st.integers(1, 3), times, times, times, st.none() | st.just("asked"), st.none() | st.integers(0, 100)
)
traits = st.builds(Traits, *[st.booleans()] * 5)
reports = st.one_of(
    st.builds(Completed, st.none() | st.just("1")),
    st.builds(Failed, st.just("boom"), st.just("E"), st.none() | st.integers(0, 9)),
    st.builds(Snoozed, st.integers(0, 9), pauses_topic=st.booleans()),
    st.builds(Released),
    st.builds(Parked, st.just("approve"), st.integers(0, 9)),
)


@given(reports, attempts, traits)
def test_the_extent_that_is_known_before_a_move_is_that_of_what_follows(
    outcome: Outcome, attempt: Attempt, traits: Traits
) -> None:
    move = ran(outcome, attempt)
    found = after(move, traits, NOW)
    expected = extent(move.transition.to, move.transition.event, traits)
    rest = others(found, "ending", "tally")
    assert (found.ending is not None and rest == NOTHING) is (expected is PLAIN)
    assert (found.ending is not None and others(rest, "steps") == NOTHING) is (expected is not MORE)


@given(reports, attempts, traits, st.booleans())
def test_every_report_leads_to_an_ending_or_to_a_place(
    outcome: Outcome, attempt: Attempt, traits: Traits, cancelled: bool
) -> None:
    """Whatever is known of the job, also if a cancel was asked for that its owner does not know of."""
    transition = ran(outcome, attempt).transition.given(cancelled)
    found: dict[str, Any] = after(Move(Status.PROCESSING, transition, attempt, "w1"), traits, NOW)._asdict()
    assert (found["ending"] is None) is (found["waits"] is not None)
    assert not (found["ending"] and found["note"])
    assert (found["erases"], found["reopens"], found["asks_to_stop"]) == (False, None, None)
    assert (found["wakes"] is HELD) is traits.limited
    if found["ending"]:
        assert found["tally"].change == 1
        assert found["frees"].limit is traits.limited
        assert found["frees"].deadline is traits.expires
        assert (found["frees"].dedupe_key, found["keeps_key"]).count(True) == traits.deduped
