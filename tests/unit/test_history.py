"""What is kept when a job moves, whichever store moves it."""

from dataclasses import dataclass

import pytest

from treadle.model.error_group import error_group
from treadle.model.status import Status
from treadle.policy.history import (
    MOST_OF_AN_ERROR,
    Note,
    counted_as,
    end_of,
    ending,
    metadata,
    note,
    ran_ms,
    requeue_metadata,
    step_metadata,
)
from treadle.policy.lifecycle import (
    Answered,
    CancelAcknowledged,
    CancelRequested,
    Completed,
    DeadlinePassed,
    Failed,
    LeaseExpired,
    Outcome,
    Parked,
    Released,
    RowState,
    Snoozed,
    Transition,
    decide,
)


@dataclass(frozen=True)
class Attempt:
    attempt: int = 2
    claimed_at: int | None = 100
    started_at: int | None = 110
    cancel_at: int | None = None
    cancel_reason: str | None = None
    progress: int | None = 40
    message: str | None = "frame 4"


NEVER_STARTED = Attempt(started_at=None)
BOOM = Failed("Traceback …\nValueError: boom", "ValueError", retry_in_ms=60_000)
FATAL = Failed("ValueError: boom", "ValueError")


def moved(outcome: Outcome, status: Status = Status.PROCESSING) -> Transition:
    return decide(RowState(status, 2, 3), outcome)


# -- events ------------------------------------------------------------------------------------------


def test_the_event_of_a_retry_tells_attempt_start_delay_worker_and_error() -> None:
    assert metadata(moved(BOOM), Attempt(), "w1") == {
        "attempt": 2,
        "startedAt": 110,
        "delayMs": 60_000,
        "worker": "w1",
        "errorType": "ValueError",
        "error": BOOM.error,
    }


def test_an_attempt_that_never_started_has_no_start() -> None:
    assert metadata(moved(Released("stopped")), NEVER_STARTED, "w1") == {"attempt": 2, "worker": "w1"}


def test_a_job_that_no_worker_had_tells_only_why_it_ended() -> None:
    assert metadata(moved(DeadlinePassed(), Status.PENDING), None, None) == {"errorType": "DeadlinePassed"}
    assert metadata(moved(CancelRequested("old"), Status.PENDING), None, None) == {}


def test_of_a_long_stack_the_end_is_kept_which_names_the_exception() -> None:
    long = "x" * 20_000 + "ValueError: boom"
    kept = metadata(moved(Failed(long, "ValueError")), Attempt(), None)["error"]
    assert kept == end_of(long)
    assert len(kept) == MOST_OF_AN_ERROR
    assert kept.endswith("ValueError: boom")
    assert end_of("short") == "short"


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


def test_a_requeue_keeps_the_outcome_that_it_takes_back_and_the_payload_that_it_replaces() -> None:
    outcome = {
        "status": "failed",
        "attempt": 3,
        "endedAt": 500,
        "startedAt": 400,
        "result": None,
        "error": "boom",
        "errorType": "ValueError",
        "worker": "w1",
    }
    assert requeue_metadata(Ended()) == {"outcome": outcome}
    assert requeue_metadata(Ended(), old_payload={}) == {"outcome": outcome, "payload": {}}
    assert requeue_metadata(Ended(), 900) == {"outcome": {**outcome, "staleAt": 900}}


def test_a_completed_step_tells_its_key_time_and_who_answered_if_there_are_such() -> None:
    assert step_metadata("fetch", "", 1, None, None) == {"step": "fetch", "stepAttempt": 1}
    assert step_metadata("ask", "7", 2, 90, "ann") == {
        "step": "ask",
        "stepAttempt": 2,
        "key": "7",
        "durationMs": 90,
        "answeredBy": "ann",
    }


# -- outcomes ----------------------------------------------------------------------------------------


def test_a_completed_job_keeps_its_times_progress_and_result() -> None:
    kept = ending(moved(Completed("1")), Attempt(), 900)
    assert kept._asdict() == {
        "status": "completed",
        "attempt": 2,
        "ended_at": 900,
        "claimed_at": 100,
        "started_at": 110,
        "cancel_at": None,
        "cancel_reason": None,
        "progress": 40,
        "message": "frame 4",
        "result": "1",
        "error": None,
        "error_type": None,
        "error_group": None,
    }


def test_a_failed_job_keeps_its_error_and_the_group_of_it() -> None:
    kept = ending(moved(FATAL), Attempt(), 900)
    assert (kept.status, kept.error, kept.error_type) == (Status.FAILED, FATAL.error, "ValueError")
    assert kept.error_group == error_group("ValueError", FATAL.error)


def test_a_job_that_was_asked_to_stop_keeps_when_and_why() -> None:
    asked = Attempt(cancel_at=700, cancel_reason="by ann")
    kept = ending(moved(CancelAcknowledged("seen"), Status.CANCELLING), asked, 900)
    assert (kept.cancel_at, kept.cancel_reason) == (700, "by ann")
    first = ending(moved(Completed()), asked, 900)
    assert (first.status, first.cancel_at) == (Status.COMPLETED, 700), "it was done first, and was asked all the same"


def test_a_job_that_is_cancelled_without_being_asked_was_cancelled_now() -> None:
    kept = ending(moved(CancelRequested("old"), Status.PENDING), None, 900)
    assert (kept.cancel_at, kept.cancel_reason, kept.claimed_at) == (900, "old", None)
    assert ending(moved(CancelRequested(), Status.PENDING), None, 900).cancel_reason is None


# -- statistics and notes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Completed(), "completed"),
        (FATAL, "failed"),
        (BOOM, "retrying"),
        (LeaseExpired(), None),
        (Released(), None),
        (Snoozed(5), None),
        (Parked("approve"), None),
    ],
)
def test_endings_and_retries_are_counted(outcome: Outcome, counted: str | None) -> None:
    assert counted_as(moved(outcome)) == counted


def test_a_run_takes_no_less_than_no_time() -> None:
    assert ran_ms(None, 900) == 0
    assert ran_ms(100, 900) == 800
    assert ran_ms(901, 900) == 0, "two clocks were read"


def test_until_it_runs_again_a_job_shows_its_error_and_with_steps_its_progress() -> None:
    assert note(moved(BOOM), Attempt(), False) == Note(BOOM.error, "ValueError", None, None)
    assert note(moved(BOOM), Attempt(), True) == Note(BOOM.error, "ValueError", 40, "frame 4")
    assert note(moved(Snoozed(5)), Attempt(), True) == Note(None, None, 40, "frame 4")


def test_an_ended_job_and_one_that_never_ran_show_nothing() -> None:
    assert note(moved(FATAL), Attempt(), True) is None
    assert note(moved(Released()), NEVER_STARTED, True) is None
    assert note(moved(Answered(), Status.WAITING), None, True) is None
