"""Times and lengths in a search: `created:1h`, `failed:>20:27`, `ended:2026-11-17..18`, `ran:>5s`. Times are UTC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput
from treadle.model.job import rfc3339
from treadle.policy.rules.conditions import Condition, Constant, JobField, compare, every, some

TIMES = {"created": "createdAt", "failed": "failedAt", "ended": "endedAt", "run": "runAt"}
"""Qualifiers of a time, and their fields."""
LENGTHS = {"ran": "ranMs", "waited": "waitedMs"}
"""Qualifiers of a length, and their derived fields."""

_SIGNED = re.compile(r"(>=|<=|>|<)?(.+)", re.S)
_AGE = re.compile(r"\d{1,5}(?:ms|s|m|h|d|w)")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_OPPOSITE = {">=": "<", "<": ">=", ">": "<=", "<=": ">"}


class Bound(NamedTuple):
    sign: str
    at: datetime

    @property
    def words(self) -> str:
        return f"{'since' if self.sign.startswith('>') else 'before'} {self.at:%-d %b, %H:%M}"


def time_bounds(key: str, value: str, now: datetime) -> Sequence[Bound]:
    """What a time qualifier asks for: one bound, or both of a day or days."""
    matched = _SIGNED.fullmatch(value)
    assert matched
    sign, text = matched[1] or "", matched[2]
    if _AGE.fullmatch(text):
        # An age counts back from now, so more than an hour is longer ago.
        return [Bound("<" if sign.startswith(">") else ">=", now - timedelta(milliseconds=_length(text)))]
    first, dots, last = text.partition("..")
    if _DAY.fullmatch(first) and not (dots and sign):
        begin, end = _day(key, value, first), _day(key, value, _last_day(first, last) if dots else first)
        if sign:
            day = begin if sign in (">=", "<") else end + timedelta(days=1)
            return [Bound(">=" if sign.startswith(">") else "<", day)]
        return [Bound(">=", begin), Bound("<", end + timedelta(days=1))]
    at = _clock(text, now) if _CLOCK.fullmatch(text) else _instant(text)
    if at is None:
        raise unfinished_time(key, value)
    return [Bound("<" if sign.startswith("<") else ">=", at)]


def time_condition(key: str, value: str, wanted: bool, now: datetime) -> Condition:
    field = JobField(TIMES[key])
    bounds = time_bounds(key, value, now)
    if wanted:  # absent times sort before every other: a job that has not failed did not fail before noon
        compared = (compare(field, one.sign, Constant(rfc3339(one.at))) for one in bounds)
        return every([*compared, compare(field, "!=", Constant(""))])
    return some([compare(field, _OPPOSITE[one.sign], Constant(rfc3339(one.at))) for one in bounds])


def length_condition(key: str, value: str, wanted: bool) -> Condition:
    """`5s` is at least so long, as `>5s` and `>=5s` are."""
    matched = _SIGNED.fullmatch(value)
    assert matched
    if not _AGE.fullmatch(matched[2]):
        raise InvalidInput(
            f"q: {key}:{value[:40]} is not finished; write a length such as {key}:>5s or {key}:<200ms", field="q"
        )
    sign = "<" if (matched[1] or "").startswith("<") else ">="
    if not wanted:
        sign = _OPPOSITE[sign]
    return compare(JobField(LENGTHS[key]), sign, Constant(_length(matched[2])))


def unfinished_time(key: str, value: str) -> InvalidInput:
    return InvalidInput(
        f"q: {key}:{value[:40]} is not finished; write a time ({key}:>20:27), a day ({key}:2026-11-17) "
        f"or an age ({key}:1h); times are UTC",
        field="q",
    )


def _length(text: str) -> int:
    return 7 * duration_ms(text[:-1] + "d", "q") if text.endswith("w") else duration_ms(text, "q")


def _day(key: str, value: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise unfinished_time(key, value) from None


def _last_day(first: str, last: str) -> str:
    """`2026-11-17..18` ends on the 18th of the same month."""
    return first[:8] + last.zfill(2) if last.isdigit() and len(last) <= 2 else last


def _clock(text: str, now: datetime) -> datetime:
    """The last time that the clock showed this."""
    hour, minute, *second = (int(part) for part in text.split(":"))
    at = now.astimezone(UTC).replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
    return at if at <= now else at - timedelta(days=1)


def _instant(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
