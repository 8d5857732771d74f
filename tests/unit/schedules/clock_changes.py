"""The clock changes of every time zone, and what a schedule does around them by brute force."""

import functools
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from tests.fault.scale import ASKED

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class ClockChange(NamedTuple):
    zone: ZoneInfo
    at: datetime
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        return self.after > self.before


def offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def clock_changes(zone: ZoneInfo, first_year: int = 2020, last_year: int = 2035) -> list[ClockChange]:
    """Found day by day, then minute by minute."""
    found = []
    day, end = datetime(first_year, 1, 1, tzinfo=UTC), datetime(last_year + 1, 1, 1, tzinfo=UTC)
    before = offset(day, zone)
    while day < end:
        if offset(day + 24 * HOUR, zone) != before:
            at = next(day + i * MINUTE for i in range(1, 1441) if offset(day + i * MINUTE, zone) != before)
            found.append(ClockChange(zone, at, before, offset(at, zone)))
            before = offset(at, zone)
        day += 24 * HOUR
    return found


@functools.cache
def every_clock_change() -> list[ClockChange]:
    """Of every zone; in the short form, of one zone for each history of changes, and few of each."""
    seen: dict[tuple[object, ...], list[ClockChange]] = {}
    for name in sorted(available_timezones()):
        changes = clock_changes(ZoneInfo(name))
        history: tuple[object, ...] = tuple(change[1:] for change in changes)
        seen.setdefault(history if ASKED == "short" else (name, history), changes)
    step = 5 if ASKED == "short" else 1
    return [change for changes in seen.values() for change in changes[::step]]


def walls(change: ClockChange, minute: int) -> list[datetime]:
    """This minute of each day on the wall, for three days before and after."""
    middle = (change.at + change.before).replace(tzinfo=None, hour=0, minute=0, second=0)
    return [middle + timedelta(days=day, minutes=minute) for day in range(-3, 4)]


def fixed_slots(walls: list[datetime], change: ClockChange) -> list[datetime]:
    """When these wall-clock times fire around one change: by the old clock while it runs, else by the new."""
    slots = set()
    for wall in walls:
        by_old = wall.replace(tzinfo=UTC) - change.before
        by_new = wall.replace(tzinfo=UTC) - change.after
        if by_old < change.at:
            slots.add(by_old)
        else:
            slots.add(max(by_new, change.at))
    return sorted(slots)


def elapsed_slots(start: datetime, end: datetime, zone: ZoneInfo, hours: set[int], minutes: set[int]) -> list[datetime]:
    """Every minute at which the clock on the wall shows one of these."""
    slots = []
    instant = start
    while instant < end:
        wall = instant.astimezone(zone)
        if wall.hour in hours and wall.minute in minutes:
            slots.append(instant)
        instant += MINUTE
    return slots
