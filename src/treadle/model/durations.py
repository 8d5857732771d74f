"""Durations, priorities and counts, as users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from treadle.model.errors import InvalidInput

Duration = str | int | float | timedelta


Priority = str | int


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


MAX_DURATION_MS = 100 * 365 * _UNITS_MS["d"]


PRIORITIES: Mapping[str, int] = {"critical": 100, "high": 75, "normal": 50, "low": 25, "background": 0}


INT32 = 2**31 - 1


MAX_COUNT = 1_000_000


def duration_ms(value: Duration, field: str = "duration") -> int:
    """Milliseconds of "30s", "5m", "2h", "1000ms", "1d", of seconds as a number, or of a timedelta."""
    if isinstance(value, timedelta):
        ms = value / timedelta(milliseconds=1)
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if not match:
            raise InvalidInput(
                f'{field}: {value[:40]!r} is not a duration; write it like "30s", "5m", "2h" or "1000ms"',
                field=field,
            )
        ms = float(match[1]) * _UNITS_MS[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        ms = value * 1000
    else:
        raise InvalidInput(f"{field}: {type(value).__name__} is not a duration", field=field)
    if not 0 <= ms <= MAX_DURATION_MS:
        raise InvalidInput(f"{field}: {shown(value)} is out of range (0 to 100 years)", field=field)
    return round(ms)


def seconds(value: Duration) -> int | float:
    """A duration as JSON has it: whole seconds without a point."""
    ms = duration_ms(value)
    return ms / 1000 if ms % 1000 else ms // 1000


def shown(value: object) -> str:
    """A value for a message: short, and safe for integers of thousands of digits."""
    try:
        return str(value)[:40]
    except ValueError:
        return "a number of thousands of digits"


def format_ms(ms: int) -> str:
    """The shortest spelling that `duration_ms` reads back."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def priority_value(value: Priority) -> int:
    """The integer behind "critical", "high", "normal", "low" or "background"; 32-bit integers stay unchanged."""
    if isinstance(value, str):
        if value not in PRIORITIES:
            names = ", ".join(PRIORITIES)
            raise InvalidInput(f"priority: {value[:40]!r} is not one of {names}, or an integer", field="priority")
        return PRIORITIES[value]
    if isinstance(value, bool) or not isinstance(value, int) or not -INT32 - 1 <= value <= INT32:
        raise InvalidInput(f"priority: {shown(value)} is not a name or a 32-bit integer", field="priority")
    return value


def checked_count(value: int, field: str, most: int = MAX_COUNT) -> int:
    """A number of attempts, of concurrent jobs, or of starts in a window."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(f"{field}: {shown(value)} is not between 1 and {most:,}", field=field)
    return value
