"""The life of a job, row by row. `test_lifecycle_mutants.py` runs these tests against broken copies of the module."""

import re
from typing import NamedTuple

import pytest

from treadle.model.errors import InvalidInput, WrongState
from treadle.model.status import ENDED, LIVE, Status
from treadle.policy.lifecycle import (
    GIVE_ATTEMPT_BACK,
    LEAVES_TO,
    VERBS,
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
    ReleasedByHand,
    Requeued,
    Rescheduled,
    Snoozed,
    Transition,
    WaitOver,
    decide,
    retries,
    wrong_state,
)

PENDING, PROCESSING, WAITING, CANCELLING, COMPLETED, FAILED, CANCELLED, EXPIRED = Status

TRACEBACK = 'Traceback (most recent call last):\n  File "mail.py", line 3, in send\nOSError: no route\n'


class State(NamedTuple):
    status: Status
    attempt: int = 1
    max_attempts: int = 3


# -- the statuses and the table ----------------------------------------------------------------------


def test_the_statuses_are_those_of_the_design() -> None:
    names = "pending processing waiting cancelling completed failed cancelled expired".split()
    assert [status.value for status in Status] == names
    assert [status.name.lower() for status in Status] == names


def test_four_statuses_are_ended_and_four_are_live() -> None:
    assert {COMPLETED, FAILED, CANCELLED, EXPIRED} == ENDED
    assert {PENDING, PROCESSING, WAITING, CANCELLING} == LIVE


# The two columns "status" and "leaves to" of the design, word for word.
DESIGN = """
pending: processing, cancelled, expired (its `expiresAt` passed)
processing: completed, pending (retry, release, reclaim), failed, cancelling, waiting, expired
waiting: completed, failed, pending, cancelling, expired
cancelling: cancelled (also when the handler fails, the lease is lost or the grace is over), \
completed (it was done first)
completed: pending (requeue with force)
failed: pending (requeue)
cancelled: pending (requeue)
expired: pending (requeue)
"""


def test_leaves_to_is_the_table_of_the_design() -> None:
    rows = (row.split(": ") for row in re.sub(r" \(.*?\)", "", DESIGN).strip().splitlines())
    assert {Status(status): set(map(Status, leaves_to.split(", "))) for status, leaves_to in rows} == LEAVES_TO


# -- every status and every outcome ------------------------------------------------------------------

# One of each kind of outcome, with what it leads to from each status on the first attempt of three.
# A status that is not named refuses the outcome.
EVERYTHING: list[tuple[Outcome, dict[Status, Status]]] = [
    (Completed('{"sent":true}'), {PROCESSING: COMPLETED, WAITING: COMPLETED, CANCELLING: COMPLETED}),
    (Failed(TRACEBACK, "OSError", 60_000), {PROCESSING: PENDING, WAITING: PENDING, CANCELLING: CANCELLED}),
    (Failed(TRACEBACK, "Fail"), {PROCESSING: FAILED, WAITING: FAILED, CANCELLING: CANCELLED}),
    (Snoozed(5_000, "not yet"), {PROCESSING: PENDING, CANCELLING: CANCELLED}),
    (Released("the worker stopped"), {PROCESSING: PENDING, CANCELLING: CANCELLED}),
    (Parked("approve"), {PROCESSING: WAITING, CANCELLING: CANCELLED}),
    (WaitOver(), {WAITING: PENDING}),
    (Answered(), {WAITING: PENDING}),
    (CancelAcknowledged("by hand"), {CANCELLING: CANCELLED}),
    (LeaseExpired("worker-1"), {PROCESSING: PENDING, CANCELLING: CANCELLED}),
    (DeadlinePassed(), {PENDING: EXPIRED}),
    (
        CancelRequested("by hand"),
        {PENDING: CANCELLED, PROCESSING: CANCELLING, WAITING: CANCELLING, CANCELLING: CANCELLING},
    ),
    (GraceOver(), {CANCELLING: CANCELLED}),
    (Requeued(), {FAILED: PENDING, CANCELLED: PENDING, EXPIRED: PENDING}),
    (Requeued(force=True), {COMPLETED: PENDING, FAILED: PENDING, CANCELLED: PENDING, EXPIRED: PENDING}),
    (Requeued(stale=True), {COMPLETED: PENDING, FAILED: PENDING, CANCELLED: PENDING, EXPIRED: PENDING}),
    (ReleasedByHand(), {PROCESSING: PENDING, CANCELLING: CANCELLED}),
    (Rescheduled(Patch(priority=1)), {PENDING: PENDING}),
    (Deleted(), {PENDING: PENDING, FAILED: FAILED, CANCELLED: CANCELLED, EXPIRED: EXPIRED}),
    (
        Deleted(force=True),
        {PENDING: PENDING, COMPLETED: COMPLETED, FAILED: FAILED, CANCELLED: CANCELLED, EXPIRED: EXPIRED},
    ),
]
PAIRS = [(status, outcome, leads_to.get(status)) for outcome, leads_to in EVERYTHING for status in Status]


def test_every_kind_of_outcome_is_among_them() -> None:
    assert {type(outcome) for outcome, _ in EVERYTHING} == set(Outcome.__args__) == set(VERBS)


@pytest.mark.parametrize(("status", "outcome", "expected"), [pair for pair in PAIRS if pair[2]])
def test_an_outcome_leads_where_the_table_says(status: Status, outcome: Outcome, expected: Status) -> None:
    assert decide(State(status), outcome).to is expected


@pytest.mark.parametrize(("status", "outcome", "expected"), [pair for pair in PAIRS if not pair[2]])
def test_an_outcome_that_cannot_happen_is_refused_with_the_state(
    status: Status, outcome: Outcome, expected: None
) -> None:
    with pytest.raises(WrongState) as refusal:
        decide(State(status), outcome)
    assert refusal.value.data == {"status": status.value}
    if not (status is COMPLETED and isinstance(outcome, Requeued | Deleted)):
        assert refusal.value.message == f"the job is {status.value}: {VERBS[type(outcome)]} is not possible"


def test_a_refusal_speaks_as_people_do() -> None:
    assert {kind.__name__: verb for kind, verb in VERBS.items()} == {
        "Completed": "complete",
        "Failed": "fail",
        "Snoozed": "snooze",
        "Released": "release",
        "Parked": "park",
        "WaitOver": "ending its wait",
        "Answered": "answer",
        "CancelAcknowledged": "ack-cancel",
        "LeaseExpired": "reclaim",
        "DeadlinePassed": "expire",
        "CancelRequested": "cancel",
        "GraceOver": "ending its grace",
        "Requeued": "requeue",
        "ReleasedByHand": "release",
        "Rescheduled": "reschedule",
        "Deleted": "delete",
    }


def test_a_job_that_waits_has_its_attempt_back_and_says_for_what() -> None:
    parked = decide(State(PROCESSING, 2), Parked("approve"))
    assert (parked.to, parked.attempt, parked.event, parked.message) == (WAITING, 1, "job:waiting", "waits for approve")
    assert parked.if_cancelling is not None
    assert (parked.if_cancelling.to, parked.if_cancelling.attempt) == (CANCELLED, 2)
    assert decide(State(PROCESSING, 0), Parked("approve")).attempt == 0
    assert parked.delay_ms == 0, "it is woken by its waits alone"
    assert decide(State(PROCESSING, 1), Parked("approve", 50)).delay_ms == 50
    for outcome in (WaitOver(), Answered()):
        assert decide(State(WAITING, 1), outcome) == Transition(PENDING, 1)


def test_a_requeue_repeats_whole_steps_unless_it_names_runs() -> None:
    assert Requeued().runs is None


def test_a_requeue_says_how_its_steps_go_on() -> None:
    messages = [decide(State(FAILED), Requeued(mode=mode)).message for mode in ("", "unfinished", "all", "from")]
    assert messages == ["was failed", "was failed", "was failed, mode all", "was failed, mode from"]
    assert (Requeued().steps, Requeued().payload, Requeued().may_replace) == (None, None, True)


def test_a_completed_job_says_how_it_can_be_requeued() -> None:
    with pytest.raises(WrongState) as refusal:
        decide(State(COMPLETED), Requeued())
    assert refusal.value.message == "the job is completed: requeue it with force to run it again"


def test_a_completed_job_says_how_it_can_be_deleted() -> None:
    with pytest.raises(WrongState) as refusal:
        decide(State(COMPLETED), Deleted())
    assert refusal.value.data == {"status": "completed"}
    assert refusal.value.message == (
        "the job is completed: it is deleted only with force, which over HTTP is for superusers"
    )


def test_a_refusal_names_state_and_action() -> None:
    error = wrong_state(FAILED, VERBS[CancelRequested])
    assert error.message == "the job is failed: cancel is not possible"
    assert error.data == {"status": "failed"}
    assert type(error.data["status"]) is str


# -- what each transition carries --------------------------------------------------------------------

FIRST, LAST = State(PROCESSING, 1, 3), State(PROCESSING, 3, 3)
AFTER_CANCEL = Transition(
    CANCELLED,
    1,
    event="job:cancelled",
    message="the handler failed after the cancel was asked",
    error=TRACEBACK,
    error_type="OSError",
)


def test_completing_keeps_attempt_and_result_and_needs_no_event() -> None:
    assert decide(State(PROCESSING, 2), Completed("1")) == Transition(COMPLETED, 2, result="1")
    assert decide(State(PROCESSING, 2), Completed()).result is None


def test_what_was_done_first_stays_completed_although_a_cancel_was_asked() -> None:
    assert decide(FIRST, Completed("1")).if_cancelling is None
    assert decide(State(CANCELLING), Completed("1")) == Transition(COMPLETED, 1, result="1")


def test_a_failure_with_attempts_left_waits_for_its_retry() -> None:
    assert decide(FIRST, Failed(TRACEBACK, "OSError", 60_000)) == Transition(
        PENDING,
        1,
        60_000,
        "job:retrying",
        message="OSError: no route",
        error=TRACEBACK,
        error_type="OSError",
        if_cancelling=AFTER_CANCEL,
    )


def test_a_failure_of_the_last_attempt_is_final() -> None:
    assert decide(LAST, Failed(TRACEBACK, "OSError", 60_000)) == Transition(
        FAILED,
        3,
        0,
        "job:failed",
        message="OSError: no route",
        error=TRACEBACK,
        error_type="OSError",
        if_cancelling=AFTER_CANCEL._replace(attempt=3),
    )


def test_the_attempt_before_the_last_is_retried() -> None:
    assert decide(State(PROCESSING, 2, 3), Failed("x", "OSError", 1)).to is PENDING


def test_a_fatal_error_is_final_even_with_attempts_left() -> None:
    assert decide(FIRST, Failed(TRACEBACK, "Fail")).to is FAILED
    assert decide(FIRST, Failed(TRACEBACK, "Fail")).delay_ms == 0


def test_a_failure_after_the_cancel_ends_as_cancelled_and_keeps_the_error() -> None:
    assert decide(State(CANCELLING), Failed(TRACEBACK, "OSError", 60_000)) == AFTER_CANCEL


@pytest.mark.parametrize("asked", [0, 1, 2, 5_000])
def test_a_retry_or_snooze_is_never_due_immediately_because_that_would_keep_its_place(asked: int) -> None:
    assert decide(FIRST, Failed("x", "OSError", asked)).delay_ms == max(asked, 1)
    assert decide(FIRST, Snoozed(asked)).delay_ms == max(asked, 1)


def test_a_snooze_gives_the_attempt_back() -> None:
    assert decide(State(PROCESSING, 2), Snoozed(5_000, "not yet")) == Transition(
        PENDING,
        1,
        5_000,
        "job:snoozed",
        "not yet",
        if_cancelling=Transition(CANCELLED, 2, event="job:cancelled", message="not yet"),
    )


def test_a_snooze_of_the_whole_topic_pauses_it_unless_the_job_is_cancelled() -> None:
    paused = decide(State(PROCESSING, 2), Snoozed(5_000, "429", pauses_topic=True))
    assert (paused.to, paused.attempt, paused.delay_ms, paused.pauses_topic) == (PENDING, 1, 5_000, True)
    assert paused.if_cancelling
    assert not paused.if_cancelling.pauses_topic
    assert not decide(State(CANCELLING, 2), Snoozed(5_000, "429", pauses_topic=True)).pauses_topic
    assert not decide(State(PROCESSING, 2), Snoozed(5_000)).pauses_topic


def test_a_release_gives_the_attempt_back_and_the_job_keeps_its_place() -> None:
    assert decide(State(PROCESSING, 2), Released("stopped")) == Transition(
        PENDING,
        1,
        0,
        "job:released",
        "stopped",
        if_cancelling=Transition(CANCELLED, 2, event="job:cancelled", message="stopped"),
    )


@pytest.mark.parametrize("outcome", [Snoozed(1), Released()])
def test_an_attempt_that_was_never_spent_cannot_be_given_back(outcome: Outcome) -> None:
    assert decide(State(PROCESSING, 0), outcome).attempt == 0


@pytest.mark.parametrize("outcome", [Snoozed(1), Released()])
def test_a_cancelled_job_without_a_reason_still_says_something(outcome: Outcome) -> None:
    assert decide(State(CANCELLING), outcome) == Transition(CANCELLED, 1, event="job:cancelled", message="cancelled")


def test_the_worker_acknowledges_a_cancel_with_its_reason() -> None:
    assert decide(State(CANCELLING, 2), CancelAcknowledged("by hand")) == Transition(
        CANCELLED, 2, event="job:cancelled", message="by hand"
    )
    assert decide(State(CANCELLING), CancelAcknowledged()).message == "cancelled"


def test_a_lost_lease_leaves_the_attempt_spent_and_the_place_kept() -> None:
    assert decide(State(PROCESSING, 2, 3), LeaseExpired("worker-1")) == Transition(
        PENDING,
        2,
        0,
        "job:reclaimed",
        "worker lost: worker-1",
        if_cancelling=Transition(CANCELLED, 2, event="job:cancelled", message="worker lost: worker-1"),
    )


def test_a_lost_lease_on_the_last_attempt_expires_the_job() -> None:
    assert decide(LAST, LeaseExpired("worker-1")) == Transition(
        EXPIRED,
        3,
        0,
        "job:expired",
        "worker lost: worker-1",
        error="worker lost",
        error_type="WorkerLost",
        if_cancelling=Transition(CANCELLED, 3, event="job:cancelled", message="worker lost: worker-1"),
    )


def test_a_lost_lease_of_an_unknown_worker_says_so() -> None:
    assert decide(LAST, LeaseExpired()).message == "worker lost"


def test_a_lost_lease_after_a_cancel_ends_as_cancelled() -> None:
    assert decide(State(CANCELLING, 3, 3), LeaseExpired("w")) == Transition(
        CANCELLED, 3, event="job:cancelled", message="worker lost: w"
    )


def test_a_passed_deadline_expires_a_pending_job_with_that_reason() -> None:
    assert decide(State(PENDING, 2), DeadlinePassed()) == Transition(
        EXPIRED,
        2,
        event="job:expired",
        message="deadline passed",
        error="deadline passed",
        error_type="DeadlinePassed",
    )


def test_a_pending_job_is_cancelled_immediately() -> None:
    assert decide(State(PENDING, 2), CancelRequested("by hand")) == Transition(
        CANCELLED, 2, event="job:cancelled", message="by hand"
    )
    assert decide(State(PENDING), CancelRequested()).message == ""


def test_a_running_job_is_asked_to_stop() -> None:
    assert decide(State(PROCESSING, 2), CancelRequested("by hand")) == Transition(
        CANCELLING, 2, event="job:cancelling", message="by hand"
    )


def test_asking_twice_changes_nothing_and_is_not_told() -> None:
    assert decide(State(CANCELLING, 2), CancelRequested("again")) == Transition(CANCELLING, 2)


def test_a_handler_that_does_not_stop_in_time_is_cancelled_with_a_timeout() -> None:
    assert decide(State(CANCELLING, 2), GraceOver()) == Transition(
        CANCELLED,
        2,
        event="job:cancelled",
        message="timeout: the handler did not stop within the grace period",
    )


@pytest.mark.parametrize("status", [FAILED, CANCELLED, EXPIRED])
def test_a_requeued_job_starts_with_all_its_attempts(status: Status) -> None:
    assert decide(State(status, 3), Requeued()) == Transition(
        PENDING, 0, event="job:requeued", message=f"was {status.value}"
    )


def test_the_plain_transition_has_no_event_no_delay_and_no_second_answer() -> None:
    assert tuple(Transition(COMPLETED, 1)) == (
        COMPLETED, 1, 0, None, "", None, None, None, None, None, False, False, None,
    )  # fmt: skip


def test_a_cancel_that_the_owner_did_not_know_of_counts_where_there_is_a_second_answer() -> None:
    released = decide(State(PROCESSING, 2), Released())
    assert released.given(cancel_requested=False) is released
    assert released.given(cancel_requested=True) is released.if_cancelling
    completed = decide(State(PROCESSING, 2), Completed())
    assert completed.given(cancel_requested=True) is completed


def test_an_owner_recognises_its_own_ending_even_if_a_cancel_changed_it() -> None:
    retry = decide(State(PROCESSING, 3), Failed("boom", "ValueError"))
    assert [status for status in Status if retry.may_end_as(status)] == [Status.FAILED, Status.CANCELLED]
    done = decide(State(PROCESSING), Completed())
    assert [status for status in Status if done.may_end_as(status)] == [Status.COMPLETED]
    assert not done.may_end_as(None)


def test_a_waiting_job_is_asked_to_stop_and_stops_because_no_worker_has_to_be_asked() -> None:
    asked = decide(State(WAITING, 1), CancelRequested("not needed"))
    assert (asked.to, asked.event, asked.message) == (CANCELLING, "job:cancelling", "not needed")
    assert asked.then == decide(State(CANCELLING, 1), CancelAcknowledged("not needed"))
    assert decide(State(PROCESSING, 1), CancelRequested()).then is None


def test_these_events_give_the_attempt_back() -> None:
    outcomes = (Snoozed(1), Released(), Parked("approve"))
    assert {decide(State(PROCESSING, 2), one).event for one in outcomes} == GIVE_ATTEMPT_BACK


def test_a_job_taken_from_its_worker_by_hand_gets_its_attempt_back() -> None:
    assert decide(State(PROCESSING, 2), ReleasedByHand())[:5] == (PENDING, 1, 0, "job:released", "released by hand")


def test_a_pending_job_gets_what_is_named_and_keeps_the_rest() -> None:
    patch = Patch(run_at=7, max_attempts=3)
    assert decide(State(PENDING, 2, 5), Rescheduled(patch)) == Transition(PENDING, 2, patch=patch)
    assert decide(State(PENDING, 2, 5), Rescheduled(Patch())) == Transition(PENDING, 2)


@pytest.mark.parametrize("most", [1, 2])
def test_a_job_keeps_more_attempts_than_it_has_used(most: int) -> None:
    with pytest.raises(InvalidInput) as refusal:
        decide(State(PENDING, 2, 5), Rescheduled(Patch(max_attempts=most)))
    assert refusal.value.data == {"field": "max_attempts"}
    assert refusal.value.message == "max_attempts: the job has used 2 attempts already"


def test_a_deleted_job_keeps_its_status() -> None:
    assert decide(State(FAILED, 2), Deleted()) == Transition(FAILED, 2, deletes=True)


# -- small parts -------------------------------------------------------------------------------------


def test_the_history_shows_the_line_that_names_the_exception() -> None:
    retried = decide(State(PROCESSING, 1), Failed(TRACEBACK, "OSError", 1000))
    assert retried.message == "OSError: no route"
    assert decide(State(PROCESSING, 1), Failed("y" * 501, "", 1000)).message == "y" * 500


@pytest.mark.parametrize(
    ("status", "attempt", "expected"),
    [
        # Every attempt of these has ended without success.
        *((status, attempt, attempt) for status in (PENDING, FAILED, CANCELLED, EXPIRED) for attempt in range(4)),
        # One of these is still under way or was the success.
        *((status, n, n - 1) for status in (PROCESSING, CANCELLING, COMPLETED) for n in (1, 2, 3)),
        *((status, 0, 0) for status in (PROCESSING, WAITING, CANCELLING, COMPLETED)),
        *((WAITING, n, n) for n in (1, 2, 3)),
    ],
)
def test_retries_counts_attempts_that_ended_without_success(status: Status, attempt: int, expected: int) -> None:
    assert retries(status, attempt) == expected


@pytest.mark.parametrize(
    ("outcome", "defaults"),
    [
        (Completed(), {"result": None}),
        (Failed("e", "E"), {"error": "e", "error_type": "E", "retry_in_ms": None}),
        (Snoozed(1), {"delay_ms": 1, "reason": "", "pauses_topic": False}),
        (Released(), {"reason": ""}),
        (CancelAcknowledged(), {"reason": ""}),
        (LeaseExpired(), {"worker": None}),
        (CancelRequested(), {"reason": ""}),
        (Requeued(), {"force": False, "stale": False}),
        (ReleasedByHand(), {"reason": "released by hand"}),
        (Patch(), {"run_at": None, "priority": None, "max_attempts": None}),
        (Deleted(), {"force": False}),
    ],
)
def test_an_outcome_needs_to_say_only_what_is_special(outcome: Outcome | Patch, defaults: dict[str, object]) -> None:
    assert {name: getattr(outcome, name) for name in defaults} == defaults
