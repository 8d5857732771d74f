"""Describes a schedule in words. Common expressions read naturally; cronsim explains the others."""

from __future__ import annotations

import re

from treadle.model.durations import format_ms
from treadle.policy.cron import Cron

_WEEKDAYS = ("Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays")
_WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = "January February March April May June July August September October November December".split()
_UNITS = {"d": "day", "h": "hour", "m": "minute", "s": "second", "ms": "millisecond"}


def describe(cron: str | None, every_ms: int | None, timezone: str) -> str:
    if cron is None:
        return _interval(every_ms or 0)
    return f"{_expression(Cron(cron))} ({timezone})"


def _interval(ms: int) -> str:
    short = format_ms(ms)
    unit = short.lstrip("0123456789")
    return _every(int(short.removesuffix(unit)), _UNITS[unit])


def _every(count: int, unit: str) -> str:
    return f"Every {unit}" if count == 1 else f"Every {count} {unit}s"


def _expression(cron: Cron) -> str:
    parts = cron.plain_parts
    plain = cron if parts == cron.parts else Cron(" ".join(parts[1:] if parts[0] == "0" else parts))
    return _repeating(parts) or _at_times(parts) or _explained(plain)


def _explained(cron: Cron) -> str:
    try:
        return re.sub(r"\b(\d+)th\b", lambda found: _ordinal(int(found[1])), cron.explain())
    except (ValueError, IndexError, LookupError):
        return f"By cron {cron.text}"


def _repeating(parts: tuple[str, ...]) -> str | None:
    """`*/5 * * * *`, `15 */4 * * *` and similar."""
    second, minute, hour, *days = parts
    if second != "0" or days != ["*"] * 3:
        return None
    if hour == "*" and (count := _step(minute, 60)):
        return _every(count, "minute")
    if minute.isdecimal() and (count := _step(hour, 24)):
        return _every(count, "hour") + (f" at :{int(minute):02}" if int(minute) else "")
    return None


def _step(field: str, whole: int) -> int | None:
    """n of `*/n` if it gives equal distances all around the clock."""
    if field == "*":
        return 1
    count = field.removeprefix("*/")
    if count == field or not count.isdecimal():
        return None
    return int(count) if int(count) < whole and whole % int(count) == 0 else None


def _at_times(parts: tuple[str, ...]) -> str | None:
    """Every day, on weekdays or on a date, at up to four times."""
    second, minute, hour, *days = parts
    hours = _numbers(hour)
    when = _days(*days)
    if second != "0" or not minute.isdecimal() or not hours or len(hours) > 4 or when is None:
        return None
    return f"{when} at {_listed([f'{one:02}:{int(minute):02}' for one in hours])}"


def _days(day: str, month: str, weekday: str) -> str | None:
    if day == month == weekday == "*":
        return "Every day"
    if day == month == "*":
        return _weekdays(weekday)
    if weekday != "*" or not day.isdecimal():
        return None
    if month == "*":
        return f"On the {_ordinal(int(day))} of the month"
    return f"On {int(day)} {_MONTHS[int(month) - 1]}" if month.isdecimal() else None


def _weekdays(field: str) -> str | None:
    if field in ("1-5", "MON-FRI"):
        return "Weekdays"
    for number, name in enumerate(_WEEKDAY_NAMES):
        field = field.replace(name, str(number))
    numbers = _numbers(field)
    if not numbers:
        return None
    names = [_WEEKDAYS[one % 7] for one in numbers]
    return "Weekends" if sorted(names) == ["Saturdays", "Sundays"] else _listed(names)


def _numbers(field: str) -> list[int]:
    """The numbers of a list such as `9,13`; empty if it contains anything else."""
    terms = field.split(",")
    return sorted({int(one) for one in terms}) if all(one.isdecimal() for one in terms) else []


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
