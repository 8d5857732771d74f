"""Formats times, durations, numbers and errors for the dashboard."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from treadle.model.durations import format_ms

DASH = "–"
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def duration(ms: float | None) -> str:
    """402 ms, 6.0 s, 38 s, 1m 06s, 2h 05m, 3d 4h. A negative duration, from a clock that went backwards, counts as
    zero.
    """
    if ms is None:
        return DASH
    ms = max(ms, 0)
    seconds = ms / 1000
    if ms < 1:
        return "< 1 ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < DAY_S:
        return f"{whole // HOUR_S}h {whole % HOUR_S // 60:02d}m"
    return f"{whole // DAY_S}d {whole % DAY_S // HOUR_S}h"


def span(start: datetime | None, end: datetime | None) -> str:
    return DASH if start is None or end is None else duration((end - start) / timedelta(milliseconds=1))


def since(when: datetime) -> str:
    """The time from then until now."""
    return span(when, datetime.now(UTC))


def ago(when: datetime | None, now: datetime | None = None) -> str:
    """41s ago, in 12m: one unit, so that a column is easy to scan."""
    if when is None:
        return DASH
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{_unit(seconds)} ago" if seconds >= 0 else f"in {_unit(-seconds)}"


def _unit(seconds: float) -> str:
    whole = int(seconds)
    for size, name in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if whole >= size:
            return f"{whole // size}{name}"
    return f"{whole}s"


def left(until: datetime, now: datetime | None = None) -> str:
    """The time until then, in two units."""
    return duration((until - (now or datetime.now(UTC))) / timedelta(milliseconds=1))


def exact(when: datetime | None) -> str:
    return DASH if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def date_time(when: datetime | None) -> str:
    return DASH if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def time_of_day(when: datetime | None) -> str:
    return DASH if when is None else when.astimezone(UTC).strftime("%H:%M:%S")


def clock(when: datetime | None) -> str:
    """The time of day to the millisecond, for a timeline with a known day."""
    return DASH if when is None else when.astimezone(UTC).strftime("%H:%M:%S.") + f"{when.microsecond // 1000:03d}"


def iso(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def capped(value: int | None, cap: int = 10_000) -> str:
    if value is None:
        return "many"
    return f"{cap:,}+" if value > cap else f"{value:,}"


def percent(value: float | None) -> str:
    if value is None:
        return DASH
    return "100 %" if value == 1 else f"{min(value * 100, 99.9):.1f} %"


def size(count: int) -> str:
    """Of stored data: 216 bytes, 97.7 KiB, 1.0 MiB."""
    if count < 1024:
        return plural(count, "byte")
    return f"{count / 1024:.1f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def initials(email: str) -> str:
    parts = [part for part in re.split(r"[^A-Za-z0-9]+", email.partition("@")[0]) if part]
    letters = "".join(part[0] for part in parts[:2]) if len(parts) > 1 else "".join(parts)[:2]
    return letters.upper() or "?"


def as_json(value: Any) -> str:
    """The exact value: numbers beyond 2^53 keep every digit."""
    return json.dumps(value, ensure_ascii=False)


def pretty_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def excerpt(payload: dict[str, Any], most: int = 8) -> list[tuple[str, str]]:
    """`key:value` pairs in search syntax, cut to the width of a row."""
    return [(key[:40], _short(value)) for key, value in list(payload.items())[:most]]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else as_json(value)
    return text if len(text) <= 80 else text[:79] + "…"


def length_words(ms: float) -> str:
    """A configured duration, the way people write it: 10m, 90s, 3d."""
    return format_ms(round(ms))


FILTERS = {
    "ago": ago,
    "as_json": as_json,
    "capped": capped,
    "clock": clock,
    "date_time": date_time,
    "duration": duration,
    "exact": exact,
    "initials": initials,
    "iso": iso,
    "left": left,
    "length_words": length_words,
    "number": number,
    "percent": percent,
    "since": since,
    "time_of_day": time_of_day,
    "pretty_json": pretty_json,
}
