"""The next runs of a schedule as people read them: in local time, with clock changes marked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from treadle.model.job import from_ms
from treadle.policy.cron import next_change, time_zone, utc_offset
from treadle.policy.schedule import SHOWN_RUNS, Schedule, checked_cron

_SECOND = timedelta(seconds=1)
# How far ahead to look for a clock change.
_AHEAD = timedelta(days=366)


class Run(NamedTuple):
    at: datetime
    """In UTC."""
    local: datetime
    note: str
    """What a clock change means for this run."""
    is_changed: bool
    """The clock change moves this run, or makes its time occur twice."""


class ClockChange(NamedTuple):
    at: datetime
    """The first instant with the new offset, in UTC."""
    local: datetime
    """The same instant by the old clock."""
    forward: bool


def next_runs(schedule: Schedule, now_ms: int, count: int = SHOWN_RUNS) -> list[Run]:
    zone = time_zone(schedule.timezone)
    times = [when for ms in schedule.next_runs(now_ms, count) if (when := from_ms(ms))]
    before = utc_offset(from_ms(now_ms) or datetime.now(UTC), zone)
    runs = []
    for at in times:
        offset = utc_offset(at, zone)
        runs.append(_run(schedule, at, zone, offset - before))
        before = offset
    return runs


def _run(schedule: Schedule, at: datetime, zone: ZoneInfo, changed: timedelta) -> Run:
    local = at.astimezone(zone)
    cron = None if schedule.cron is None else checked_cron(schedule.cron)
    if cron is not None and cron.is_fixed:
        if local.utcoffset() != local.replace(fold=1).utcoffset():
            return Run(at, local, f"{local:%H:%M} comes twice; it runs the first time", True)
        if not cron.matches(local.replace(tzinfo=None)):
            return Run(at, local, "its time is skipped; it runs right after the gap", True)
    if not changed:
        return Run(at, local, "", False)
    return Run(at, local, "clocks have gone forward" if changed > timedelta() else "clocks have gone back", False)


def clock_change(schedule: Schedule, now_ms: int) -> ClockChange | None:
    """The next change of the schedule's clock within a year."""
    zone, now = time_zone(schedule.timezone), from_ms(now_ms) or datetime.now(UTC)
    found = next_change(now, now + _AHEAD, zone)
    if found is None:
        return None
    before = utc_offset(found - _SECOND, zone)
    return ClockChange(found, (found + before).replace(tzinfo=None), utc_offset(found, zone) > before)


_PARTS = ("Second", "Minute", "Hour", "Day", "Month", "Weekday")
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = " January February March April May June July August September October November December".split(" ")


class CronPart(NamedTuple):
    name: str
    text: str
    words: str


def cron_parts(cron: str) -> Sequence[CronPart]:
    """The fields of an expression, each in words; seconds only if it has them."""
    parsed = checked_cron(cron)
    parts = parsed.parts
    told = zip(_PARTS, parts, parsed.plain_parts, strict=True)
    found = [CronPart(name, text, _words(name, plain)) for name, text, plain in told]
    return found[1:] if parts[0] == "0" else found


def _words(name: str, text: str) -> str:
    unit = name.lower()
    if text == "*":
        return f"every {unit}" if name != "Weekday" else "any"
    if text.startswith("*/") and text[2:].isdecimal():
        return f"every {text[2:]} {unit}s"
    if not text.isdecimal():
        return ""
    number = int(text)
    if name == "Weekday" and number < len(_WEEKDAYS):
        return _WEEKDAYS[number]
    if name == "Month" and number < len(_MONTHS):
        return _MONTHS[number]
    return {"Hour": f"at {number:02}", "Day": f"on day {number}"}.get(name, f"at :{number:02}")
