"""Cron expressions, including how they fire when a time zone changes its clocks.

cronsim knows the syntax and which wall-clock times match. Clock changes are handled here by Debian cron's rule, for
five and six fields alike:

- A fixed time (neither minute nor hour starts with `*`) that falls into a gap fires once, at the first instant after
  the gap. One that occurs twice fires the first time.
- All other expressions follow elapsed time: they fire whenever the wall clock matches, so twice in a repeated hour and
  not at all in a skipped one.

cronsim only gets times without a zone. With a zone it ignores this rule for six fields, and inside a repeated hour it
can return a time in the past.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from treadle.model.errors import InvalidCron, UnknownTimezone

MAX_LENGTH = 255
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(/[A-Za-z0-9_+\-]+)*")
# System files and copies of the database. They mean another zone on the next machine, or count leap seconds.
_NOT_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
# A year with every month, day and weekday in reach, used only to find expressions that never fire.
_TRIAL = datetime(2024, 1, 1)  # noqa: DTZ001 - a wall-clock time


# The first value and the number of values of each field.
_SPANS = ((0, 60), (0, 60), (0, 24), (1, 31), (1, 12), (0, 7))


def _first_if_alone(text: str, first: int, count: int) -> str:
    step = text.removeprefix("*/")
    return str(first) if step != text and step.isdecimal() and int(step) >= count else text


def time_zone(name: str) -> ZoneInfo:
    """The zone with this IANA name, such as Asia/Taipei."""
    if isinstance(name, str) and len(name) <= 64 and _ZONE_NAME.fullmatch(name) and not name.startswith(_NOT_ZONES):
        try:
            return ZoneInfo(name)
        except (LookupError, ValueError, OSError):
            pass
    raise UnknownTimezone(
        f"timezone: {str(name)[:64]!r} is not a known time zone; use an IANA name such as Europe/Berlin",
        field="timezone",
    )


class Cron:
    """A cron expression of five or six fields (seconds first), or a nickname such as `@daily`."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or len(text) > MAX_LENGTH:
            raise InvalidCron(f"cron: a text of at most {MAX_LENGTH} characters is expected", field="cron")
        self.text = text
        self._fields = NICKNAMES.get(text.strip().lower(), text)
        simulation = self._simulation(_TRIAL)
        minute, hour = simulation.parts[1:3]
        self.is_fixed = not minute.startswith("*") and not hour.startswith("*")
        self.parts: tuple[str, ...] = tuple(simulation.parts)
        if next(simulation, None) is None:
            raise InvalidCron(f"cron: {text!r} never fires", field="cron")

    def next_after(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """The first instant later than `after`; None if there is none in the next fifty years."""
        after = after.astimezone(UTC)
        return self._next_fixed(after, zone) if self.is_fixed else self._next_elapsed(after, zone)

    def matches(self, wall: datetime) -> bool:
        """Whether this wall-clock time, without a zone, is one of its times."""
        return next(self._simulation(wall - _SECOND), None) == wall

    @property
    def plain_parts(self) -> tuple[str, ...]:
        """The six fields for people: a step that is larger than its range, as in `*/61`, is only the first value."""
        plain = [_first_if_alone(text, *span) for text, span in zip(self.parts, _SPANS, strict=True)]
        if self.parts[3] != "*" and self.parts[5] != "*":
            plain[3], plain[5] = self.parts[3], self.parts[5]  # a `*` decides whether one of them or both must match
        return tuple(plain)

    def explain(self) -> str:
        return self._simulation(_TRIAL).explain()

    def _simulation(self, start: datetime) -> CronSim:
        try:
            return CronSim(self._fields, start)
        except (CronSimError, ValueError, AssertionError) as error:
            reason = str(error) or "it can't be read"
            raise InvalidCron(f"cron: {self.text!r} is not a cron expression: {reason}", field="cron") from None

    def _next_fixed(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        for wall in self._simulation(_wall(after, zone)):
            instant = wall.replace(tzinfo=zone).astimezone(UTC)
            if _wall(instant, zone) != wall:
                instant = _end_of_gap(wall, zone)
            if instant > after:  # false in a repeated hour, where its times have already fired
                return instant
        return None

    def _next_elapsed(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        """Between two clock changes the offset is constant, so wall-clock matches convert by addition."""
        begin = since = after
        offset = utc_offset(after, zone)
        while wall := next(self._simulation((begin + offset).replace(tzinfo=None)), None):
            instant = wall.replace(tzinfo=UTC) - offset
            change = next_change(since, instant, zone)
            if change is None:
                return instant
            # Start a second before the change, so that the instant of the change itself can match.
            begin, since, offset = change - _SECOND, change, utc_offset(change, zone)
        return None


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def utc_offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _end_of_gap(wall: datetime, zone: ZoneInfo) -> datetime:
    """The first instant after the gap that contains this wall-clock time."""
    by_new_offset = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    by_old_offset = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return next_change(by_new_offset, by_old_offset, zone) or by_old_offset


def next_change(after: datetime, before: datetime, zone: ZoneInfo) -> datetime | None:
    """The first instant in (after, before] with another offset. Steps by day: no zone has two changes in one day."""
    old, day = utc_offset(after, zone), after
    while day < before:
        earlier, day = day, min(day + _DAY, before)
        if utc_offset(day, zone) != old:
            return _first_second_between(earlier, day, lambda instant: utc_offset(instant, zone) != old)
    return None


def _first_second_between(low: datetime, high: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """The first whole second for which this holds, by bisection; it holds for `high` and not for `low`."""
    first, last = int(low.timestamp()), int(high.timestamp())
    while last - first > 1:
        middle = (first + last) // 2
        if holds(datetime.fromtimestamp(middle, UTC)):
            last = middle
        else:
            first = middle
    return datetime.fromtimestamp(last, UTC)
