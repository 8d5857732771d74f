"""What a call did, judged: every kind of ending under every interrupt."""

import pytest

from treadle import JobCancelled, LeaseLost, Retry
from treadle.model.retry import families_of
from treadle.policy.judgement import Cause, Interrupt, Raised, Returned, judge
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Released, Snoozed

RETRY = Retry(3, backoff=[7], on={KeyError: False})
CANCEL = Interrupt(Cause.CANCEL, "enough")
SHUTDOWN = Interrupt(Cause.SHUTDOWN, "the worker stopped")
TIMEOUT = Interrupt(Cause.TIMEOUT, "too long")
LOST = Interrupt(Cause.LOST, "gone")

BROKEN = Raised("error", "ValueError: broken", "ValueError", families=families_of(ValueError()))
PICKY = Raised("error", "KeyError", "KeyError", families=families_of(KeyError()))
STOP = Raised("stop", "JobCancelled", "JobCancelled")
REFUSED = Raised("refused", "InvalidPayload: no", "InvalidPayload")
FATAL = Raised("fatal", "Fail: never", "Fail")
LATER = Raised("retry", "RetryAfter", "RetryAfter", 5)
LIMITED = Raised("pause", "429", "RetryAfter", 90_000)
SLEEPY = Raised("snooze", "not yet", "Snooze", 9)


@pytest.mark.parametrize(
    ("result", "interrupt", "outcome"),
    [
        (Returned(), None, Completed()),
        (Returned("1"), None, Completed("1")),
        (Returned("1"), CANCEL, Completed("1")),  # done first
        (Returned("1"), SHUTDOWN, Completed("1")),
        (BROKEN, None, Failed("ValueError: broken", "ValueError", 7000)),
        (PICKY, None, Failed("KeyError", "KeyError")),
        (FATAL, None, Failed("Fail: never", "Fail")),
        (LATER, None, Failed("RetryAfter", "RetryAfter", 5)),
        (SLEEPY, None, Snoozed(9, "not yet")),
        (LIMITED, None, Snoozed(90_000, "429; its topic is paused for 90s", pauses_topic=True)),
        (LIMITED, SHUTDOWN, Released("the worker stopped")),
        (STOP, None, Failed("JobCancelled", "JobCancelled", 7000)),  # a handler that cancels itself
        (STOP, CANCEL, CancelAcknowledged("enough")),
        (BROKEN, CANCEL, Failed("ValueError: broken", "ValueError", 7000)),
        (STOP, SHUTDOWN, Released("the worker stopped")),
        (BROKEN, SHUTDOWN, Released("the worker stopped")),
        (REFUSED, None, Failed("InvalidPayload: no", "InvalidPayload")),
        (REFUSED, SHUTDOWN, Failed("InvalidPayload: no", "InvalidPayload")),  # it is done, and would be again
        (Returned("1"), TIMEOUT, Failed("TimeoutError: too long\n", "TimeoutError", 7000)),
        (BROKEN, TIMEOUT, Failed("ValueError: broken\n\nTimeoutError: too long\n", "TimeoutError", 7000)),
        (FATAL, TIMEOUT, Failed("Fail: never\n\nTimeoutError: too long\n", "TimeoutError", 7000)),
        (Returned("1"), LOST, None),
        (BROKEN, LOST, None),
        (REFUSED, LOST, None),
    ],
)
def test_an_ending_and_an_interrupt_make_an_outcome(
    result: Returned | Raised, interrupt: Interrupt | None, outcome: Outcome | None
) -> None:
    assert judge(result, interrupt, RETRY, failures=1) == outcome


def test_a_policy_for_timeouts_counts_when_the_time_was_over() -> None:
    retry = Retry(on={OSError: "3s", JobCancelled: False})
    assert judge(STOP, TIMEOUT, retry, 1) == Failed("JobCancelled\n\nTimeoutError: too long\n", "TimeoutError", 3000)


@pytest.mark.parametrize(
    ("new", "earlier", "counts"),
    [(CANCEL, None, True), (TIMEOUT, CANCEL, False), (LOST, CANCEL, True), (LOST, LOST, False), (CANCEL, LOST, False)],
)
def test_the_first_interrupt_counts_but_a_lost_lease_beats_all(
    new: Interrupt, earlier: Interrupt | None, counts: bool
) -> None:
    assert new.beats(earlier) is counts


@pytest.mark.parametrize(
    ("interrupt", "told"),
    [(CANCEL, JobCancelled), (SHUTDOWN, JobCancelled), (TIMEOUT, TimeoutError), (LOST, LeaseLost)],
)
def test_a_handler_is_told_by_an_exception_that_says_why(interrupt: Interrupt, told: type[BaseException]) -> None:
    error = interrupt.error()
    assert type(error) is told
    assert str(error) == interrupt.reason
