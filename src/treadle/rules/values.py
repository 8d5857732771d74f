"""Values and how they compare: null, a number or a text. What is said here, every store says in its SQL.

Booleans are the numbers 1 and 0; objects and lists are their compact JSON text. A number never
equals a text, and neither is before the other. Only ASCII letters have two cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from operator import ge, gt, le, lt
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from pydantic_core import to_json

from treadle.job import rfc3339

Value = None | int | float | str

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_DATE = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?)?)?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def scalar(value: Any) -> Value:
    """A JSON value as the language sees it."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return str(value)
    return to_json(value).decode()


def written(value: Value) -> str | None:
    """The text that `~` looks at; a number in its shortest form."""
    if isinstance(value, float):
        return to_json(value).decode().removesuffix(".0")
    return None if value is None else str(value)


def lowered(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_LOWER)


def is_empty(value: Value) -> bool:
    return value is None or value == ""


def equal(left: Value, right: Value, *, strict: bool) -> bool:
    """Null and the empty text are the same, unless one side comes from JSON (`strict`)."""
    if not strict:
        left, right = (None if value == "" else value for value in (left, right))
    return isinstance(left, str) == isinstance(right, str) and left == right


def in_order(left: Value, sign: str, right: Value) -> bool:
    if left is None or right is None or isinstance(left, str) != isinstance(right, str):
        return False
    return _ORDER[sign](left, right)


def contains(whole: str, part: str) -> bool:
    return lowered(part) in lowered(whole)


# -- patterns --------------------------------------------------------------------------------------


def has_wildcard(pattern: str) -> bool:
    """Whether there is a % that no backslash takes away."""
    return re.search(r"(?<!\\)(?:\\\\)*%", pattern) is not None


def without_escapes(pattern: str) -> str:
    r"""A pattern that has no wildcard, as plain text: \% is %, \_ is _, \\ is \; other backslashes stay."""
    return re.sub(r"\\([%_\\])", r"\1", pattern)


def ends_in_escape(pattern: str) -> bool:
    """A backslash with nothing behind it: in a LIKE it matches nothing, or is an error."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def canonical_pattern(pattern: str) -> str:
    r"""The same pattern in lower case, with backslashes only before %, _ and \; databases differ about others."""
    return lowered(re.sub(r"\\([^%_\\])", r"\1", pattern))


@lru_cache(maxsize=256)
def _pieces(pattern: str) -> list[list[str | None]]:
    """What stands between the %: characters, and None for any one."""
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            pieces.append([])
        elif character == "_":
            pieces[-1].append(None)
        else:
            pieces[-1].append(next(characters) if character == "\\" else character)
    return pieces


def _fits(piece: list[str | None], text: str, start: int) -> bool:
    return all(wanted is None or text[start + i] == wanted for i, wanted in enumerate(piece))


def like(value: str, pattern: str) -> bool:
    """SQL's LIKE for a canonical pattern. Taking each piece at its first place needs no going back."""
    text = lowered(value)
    first, *middle = _pieces(pattern)
    last = middle.pop() if middle else None
    if len(text) < len(first) or not _fits(first, text, 0):
        return False
    if last is None:
        return len(text) == len(first)
    start, end = len(first), len(text) - len(last)
    for piece in middle:
        while start + len(piece) <= end and not _fits(piece, text, start):
            start += 1
        start += len(piece)
    return start <= end and _fits(last, text, end)


# -- dates -----------------------------------------------------------------------------------------


def canonical_date(text: str) -> str | None:
    """A date written with a blank or with fewer digits, as a job's dates are written; None: it is no date."""
    when = instant(text)
    return None if when is None else rfc3339(when)


def instant(text: str) -> datetime | None:
    """The moment that a text means, if it is a date; without a zone it is in UTC."""
    match = _DATE.fullmatch(text)
    if not match:
        return None
    *parts, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(part or least) for part, least in zip(parts, "011000", strict=True))
    micros = int((fraction or "0").ljust(3, "0")[:3]) * 1000
    offset = UTC if zone in (None, "Z") else datetime.strptime(zone, "%z").tzinfo
    try:
        return datetime(year, month, day, hour, minute, second, micros, offset).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
