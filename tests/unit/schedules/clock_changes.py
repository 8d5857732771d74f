"""The clock changes of every time zone, and what a schedule does around them by brute force."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

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
