"""When cron expressions fire, with clocks that change."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tests.counting import counted
from tests.fault.scale import ASKED
from tests.unit.schedules.clock_changes import (
    HOUR,
    MINUTE,
    elapsed_slots,
    every_clock_change,
    fixed_slots,
    walls,
)
from treadle.model.errors import InvalidCron, UnknownTimezone
from treadle.policy.cron import Cron, time_zone

# About 20 ms: no text may keep the parser, or the search for a first run, busy for longer.
MOST_STEPS = 200_000
BERLIN = ZoneInfo("Europe/Berlin")


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def fires(cron: str, zone: str, start: str, count: int) -> list[datetime]:
    found = [instant(start)]
    for _ in range(count):
        found.append(Cron(cron).next_after(found[-1], time_zone(zone)) or found[-1])
    return found[1:]


def between(cron: Cron, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    at = cron.next_after(start - timedelta(milliseconds=1), zone)
    while at is not None and at < end:
        yield at
        at = cron.next_after(at, zone)


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_fixed_time_in_a_gap_fires_once_at_the_first_instant_after_it(cron):
    assert fires(cron, "Europe/Berlin", "2026-03-28T12:00+01:00", 2) == [
        instant("2026-03-29T03:00+02:00"),
        instant("2026-03-30T02:30+02:00"),
    ]


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_fixed_time_that_occurs_twice_fires_the_first_time(cron):
    assert fires(cron, "Europe/Berlin", "2026-10-24T12:00+02:00", 2) == [
        instant("2026-10-25T02:30+02:00"),
        instant("2026-10-26T02:30+01:00"),
    ]


@pytest.mark.parametrize("cron", ["30 * * * *", "0 30 * * * *"])
def test_hours_given_by_a_star_follow_elapsed_time(cron):
    autumn = fires(cron, "Europe/Berlin", "2026-10-25T01:00+02:00", 4)
    spring = fires(cron, "Europe/Berlin", "2026-03-29T00:00+01:00", 3)
    assert [b - a for a, b in pairwise(autumn)] == [HOUR] * 3
    assert [b - a for a, b in pairwise(spring)] == [HOUR] * 2


def test_steps_of_hours_match_the_clock_on_the_wall_both_times():
    assert fires("0 */2 * * *", "Europe/Berlin", "2026-10-25T00:30+02:00", 3) == [
        instant("2026-10-25T02:00+02:00"),
        instant("2026-10-25T02:00+01:00"),
        instant("2026-10-25T04:00+01:00"),
    ]


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *", "*/7 * * * *", "*/9 * * * * *", "0 1-3 * * *"])
def test_the_next_time_is_later_than_now_also_inside_a_repeated_hour(cron):
    start = instant("2026-10-25T02:00+02:00")
    for minutes in range(180):
        for extra in (timedelta(0), timedelta(milliseconds=1), timedelta(seconds=59, milliseconds=999)):
            now = start + minutes * MINUTE + extra
            found = Cron(cron).next_after(now, BERLIN)
            assert found is not None
            assert found > now


def test_lord_howe_changes_its_clocks_by_half_an_hour():
    assert fires("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", 2) == [
        instant("2026-10-04T02:30+11:00"),
        instant("2026-10-05T02:15+11:00"),
    ]
    assert fires("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00+11:00", 2) == [
        instant("2026-04-05T01:45+11:00"),
        instant("2026-04-06T01:45+10:30"),
    ]


def test_midnight_that_cairo_skips_is_one_in_the_morning():
    assert fires("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00+02:00", 2) == [
        instant("2026-04-24T01:00+03:00"),
        instant("2026-04-25T00:00+03:00"),
    ]
    assert fires("@daily", "Africa/Cairo", "2026-04-23T12:00+02:00", 1) == [instant("2026-04-24T01:00+03:00")]


def test_two_times_in_one_gap_fire_once():
    assert fires("10,20,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", 2) == [
        instant("2026-03-29T03:00+02:00"),
        instant("2026-03-30T02:10+02:00"),
    ]


def test_seconds_come_first_and_nicknames_are_known():
    assert fires("*/20 * * * * *", "UTC", "2026-01-01T00:00:05Z", 2) == [
        instant("2026-01-01T00:00:20Z"),
        instant("2026-01-01T00:00:40Z"),
    ]
    for name in ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually", "@Daily"):
        assert Cron(name).next_after(instant("2026-01-01T00:00Z"), time_zone("UTC"))


BAD = [
    "61 * * * *",
    "0 0 30 2 *",
    "0 0 1--100000000 * *",
    "0 0 31 2,4,6,9,11 *",
    "0 0 */40 * MON#5",
    "0 0 */30 2 MON#5",
    "*" * 10_240,
    "*/0 * * * *",
    "0 0 * *",
    "* * * * * * *",
    "@reboot",
    "",
    "٣ * * * *",
    "0 0 * * 1#9",
    "9" * 10_240 + " * * * *",
    "1," * 5_120 + "1 * * * *",
    None,
    7,
    ["0 9 * * *"],
]


@pytest.mark.parametrize("text", BAD, ids=lambda text: str(text)[:20])
def test_an_expression_that_is_wrong_or_never_fires_is_refused_in_few_steps(text):
    with counted() as work, pytest.raises(InvalidCron) as caught:
        Cron(text)
    assert 0 < work.steps < MOST_STEPS
    assert caught.value.data["field"] == "cron"
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "name",
    [
        "Mars/Base",
        "../../etc/x",
        "/etc/localtime",
        "Europe",
        "",
        "localtime",
        "right/UTC",
        "x" * 10_240,
        "a/" * 5_000 + "b",
        5,
        [],
    ],
)
def test_an_unknown_zone_is_refused_in_few_steps(name):
    with counted() as work, pytest.raises(UnknownTimezone) as caught:
        time_zone(name)
    assert 0 < work.steps < MOST_STEPS
    assert caught.value.data["field"] == "timezone"
    assert len(caught.value.message) < 400


@pytest.mark.timeout(1800)
def test_every_clock_change_of_every_zone_from_2020_to_2035():
    """Fixed times before, inside and after the change fire once; the others whenever the clock shows them."""
    changes = every_clock_change()
    assert len(changes) > (200 if ASKED == "short" else 5_000)
    for change in changes:
        start, end = change.at - 30 * HOUR, change.at + 30 * HOUR
        low = min(change.at + change.before, change.at + change.after).replace(tzinfo=None)
        for minutes in (-30, 0, 15, 30, 59, 60, 90):
            wall = low + minutes * MINUTE
            slots = fixed_slots(walls(change, wall.hour * 60 + wall.minute), change)
            expected = [slot for slot in slots if start <= slot < end]
            for cron in (f"{wall.minute} {wall.hour} * * *", f"0 {wall.minute} {wall.hour} * * *"):
                assert list(between(Cron(cron), change.zone, start, end)) == expected, (cron, change)
        near = change.at - 2 * HOUR, change.at + 2 * HOUR
        for cron, hours, minutes_of_hour in (
            ("*/15 * * * *", set(range(24)), {0, 15, 30, 45}),
            ("0 30 */2 * * *", set(range(0, 24, 2)), {30}),
        ):
            expected = elapsed_slots(*near, change.zone, hours, minutes_of_hour)
            assert list(between(Cron(cron), change.zone, *near)) == expected, (cron, change)
