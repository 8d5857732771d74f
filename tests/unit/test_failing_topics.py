"""Which topics fail now, since when, and how that differs from their day."""

import pytest

from treadle.insights.failing import MINUTE_MS, FailingTopic, failing_topics
from treadle.store.views import EndedCount

NOW = 1_000_000 * MINUTE_MS
BEGIN = NOW - 59 * MINUTE_MS


def ended(minutes_ago: int, *, completed: int = 0, failed: int = 0) -> list[EndedCount]:
    at = NOW - minutes_ago * MINUTE_MS
    counts = {"completed": completed, "failed": failed}
    return [EndedCount(at, "crm_sync", status, jobs, 0) for status, jobs in counts.items() if jobs]


def failing(*minutes: list[EndedCount], day: list[EndedCount] | None = None) -> FailingTopic | None:
    listed = [one for minute in minutes for one in minute]
    return failing_topics(listed, [*listed, *(day or [])], BEGIN, NOW).get("crm_sync")


@pytest.mark.parametrize(
    ("completed", "failed", "fails"), [(0, 4, False), (0, 5, True), (8, 2, False), (79, 21, True), (4, 1, False)]
)
def test_five_ended_and_more_than_a_fifth_failed(completed: int, failed: int, fails: bool) -> None:
    assert (failing(ended(0, completed=completed, failed=failed)) is not None) == fails


@pytest.mark.parametrize(("failed", "fails"), [(3, False), (4, True)])
def test_three_times_the_rate_of_its_own_day(failed: int, fails: bool) -> None:
    day = ended(600, completed=990, failed=10)
    assert (failing(ended(1, completed=100 - failed, failed=failed), day=day) is not None) == fails


def test_one_failure_is_no_change_of_a_rate() -> None:
    assert failing(ended(1, completed=99, failed=1), day=ended(600, completed=9_999, failed=1)) is None


def test_failures_of_long_ago_are_over() -> None:
    assert failing(ended(10, failed=50), ended(0, completed=10)) is None


def test_it_fails_since_the_first_bad_minute_and_is_counted_from_there() -> None:
    found = failing(
        ended(40, completed=30, failed=1), ended(20, failed=30), ended(15, failed=2), ended(1, failed=10, completed=1)
    )
    assert found
    assert (found.since, found.failed, found.ended) == (NOW - 20 * MINUTE_MS, 42, 43)
    assert not found.earlier
    assert found.before == pytest.approx(30 / 31)


def test_a_quiet_moment_does_not_hide_the_beginning() -> None:
    found = failing(ended(20, failed=30), ended(10, completed=2), ended(1, failed=10))
    assert found
    assert found.since == NOW - 20 * MINUTE_MS


def test_what_fails_for_longer_than_the_minutes_say_began_earlier() -> None:
    found = failing(*(ended(ago, failed=10) for ago in range(60)))
    assert found
    assert (found.earlier, found.before) == (True, None)


def test_requeued_failures_no_longer_count() -> None:
    assert failing(ended(2, failed=10), ended(1, failed=-10)) is None
