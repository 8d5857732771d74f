"""What people read about the next runs of a schedule."""

from datetime import UTC, datetime
from typing import Any

import pytest

from treadle.model.job import to_ms
from treadle.policy.schedule import Schedule
from treadle.policy.schedule_outlook import CronPart, clock_change, cron_parts, next_runs

BEFORE_AUTUMN = to_ms(datetime(2026, 10, 23, 14, 32, tzinfo=UTC))
BEFORE_SPRING = to_ms(datetime(2027, 3, 26, 14, 32, tzinfo=UTC))
TWICE = "02:30 comes twice; it runs the first time"
SKIPPED = "its time is skipped; it runs right after the gap"


def schedule(cron: str, timezone: str = "Europe/Berlin", **options: Any) -> Schedule:
    return Schedule(id="a", topic="a", cron=cron, timezone=timezone, **options)


def test_a_time_that_comes_twice_is_marked_and_so_is_the_new_offset() -> None:
    runs = next_runs(schedule("30 2 * * *"), BEFORE_AUTUMN)
    assert [(f"{one.local:%d %H:%M %z}", one.note, one.is_changed) for one in runs] == [
        ("24 02:30 +0200", "", False),
        ("25 02:30 +0200", TWICE, True),
        ("26 02:30 +0100", "clocks have gone back", False),
        ("27 02:30 +0100", "", False),
        ("28 02:30 +0100", "", False),
    ]


def test_a_time_in_a_gap_is_marked() -> None:
    runs = next_runs(schedule("30 2 * * *"), BEFORE_SPRING)
    assert [(f"{one.local:%d %H:%M}", one.note, one.is_changed) for one in runs[:3]] == [
        ("27 02:30", "", False),
        ("28 03:00", SKIPPED, True),
        ("29 02:30", "", False),
    ]


def test_a_time_at_the_end_of_the_gap_is_not_moved() -> None:
    runs = next_runs(schedule("0 3 * * *"), BEFORE_SPRING)
    assert [(one.note, one.is_changed) for one in runs[:2]] == [("", False), ("clocks have gone forward", False)]


def test_elapsed_time_is_not_moved() -> None:
    assert not any(one.is_changed for one in next_runs(schedule("*/20 * * * *"), BEFORE_AUTUMN, 400))


def test_the_next_clock_change() -> None:
    autumn = clock_change(schedule("@daily"), BEFORE_AUTUMN)
    assert autumn is not None
    assert (f"{autumn.local:%d %b %H:%M}", autumn.forward) == ("25 Oct 03:00", False)
    spring = clock_change(schedule("@daily"), BEFORE_SPRING)
    assert spring is not None
    assert (f"{spring.local:%d %b %H:%M}", spring.forward) == ("28 Mar 02:00", True)
    assert clock_change(schedule("@daily", "Asia/Taipei"), BEFORE_AUTUMN) is None


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("30 2 * * *", ["at :30", "at 02", "every day", "every month", "any"]),
        ("*/5 */6 1 4 5", ["every 5 minutes", "every 6 hours", "on day 1", "April", "Friday"]),
        ("0-3,7 * L * MON#1", ["", "every hour", "", "every month", ""]),
        ("@daily", ["at :00", "at 00", "every day", "every month", "any"]),
    ],
)
def test_the_parts_of_an_expression(cron: str, words: list[str]) -> None:
    assert [one.words for one in cron_parts(cron)] == words


def test_seconds_are_shown_if_there_are_any() -> None:
    assert cron_parts("15 0 9 * * *")[0] == CronPart("Second", "15", "at :15")
    assert cron_parts("0 0 9 * * *")[0].name == "Minute"
