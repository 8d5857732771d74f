"""Values and how they compare: null, a number or a text. Every store implements the same rules in SQL.

Booleans are the numbers 1 and 0; objects and lists are their compact JSON text. A number never equals a text, and
neither sorts before the other. Only ASCII letters are case-insensitive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from operator import ge, gt, le, lt
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from pydantic_core import to_json

from treadle.model.job import rfc3339

Value = None | int | float | str

# The longest text to search for. Databases compare it with every part of a value: a thousand characters in a megabyte
# take seconds and can't be interrupted.
MAX_PATTERN = 200

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_DATE = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?)?)?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def scalar(value: Any) -> Value:
    """A JSON value as a value of the rule language."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return str(value)
    return to_json(value).decode()


def canonical(value: Any) -> str:
    """A JSON value as text that is equal for equal values: sorted keys, whole numbers without a fraction."""
    return json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def written(value: Value) -> str | None:
    """The text that `~` searches; a number in its shortest form."""
    if isinstance(value, float):
        return to_json(value).decode().removesuffix(".0")
    return None if value is None else str(value)


def lowered(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_LOWER)


def is_empty(value: Value) -> bool:
    return value is None or value == ""


def equal(left: Value, right: Value, *, strict: bool) -> bool:
    """Null equals the empty text, unless one side comes from JSON (`strict`)."""
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
    """Whether it has a % that is not escaped."""
    return re.search(r"(?<!\\)(?:\\\\)*%", pattern) is not None


def without_escapes(pattern: str) -> str:
    r"""A pattern that has no wildcard, as plain text: \% is %, \_ is _, \\ is \; other backslashes stay."""
    return re.sub(r"\\([%_\\])", r"\1", pattern)


def ends_in_escape(pattern: str) -> bool:
    """A trailing backslash: in a LIKE it matches nothing or is an error."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def canonical_pattern(pattern: str) -> str:
    r"""The same pattern in lower case, with backslashes only before %, _ and \; databases differ on others."""
    return lowered(re.sub(r"\\([^%_\\])", r"\1", pattern))


class _Piece:
    """The text between two %, found in one pass over the input.

    A plain piece uses `str.find`. A piece with a _ uses the shift-and algorithm: bit i of the state says that the first
    i + 1 characters of the piece match here, so that no character is read twice.
    """

    def __init__(self, characters: list[str | None]) -> None:
        self.characters = characters
        """None matches any character."""
        self.plain = None if None in characters else "".join(character or "" for character in characters)
        self._any = _bits(characters, None)
        self._masks = {one: _bits(characters, one) | self._any for one in set(characters) if one is not None}

    def __len__(self) -> int:
        return len(self.characters)

    def fits(self, text: str, start: int) -> bool:
        if self.plain is not None:
            return text.startswith(self.plain, start)
        return all(wanted is None or text[start + i] == wanted for i, wanted in enumerate(self.characters))

    def end(self, text: str, start: int, end: int) -> int | None:
        """The end of its first occurrence between `start` and `end`; None if there is none."""
        if self.plain is not None:
            found = text.find(self.plain, start, end)
            return None if found < 0 else found + len(self)
        state, last = 0, 1 << (len(self) - 1)
        for place in range(start, end):
            state = (state << 1 | 1) & self._masks.get(text[place], self._any)
            if state & last:
                return place + 1
        return None


def _bits(characters: list[str | None], wanted: str | None) -> int:
    return sum(1 << i for i, character in enumerate(characters) if character == wanted)


@lru_cache(maxsize=256)
def _pieces(pattern: str) -> list[_Piece]:
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            pieces.append([])
        elif character == "_":
            pieces[-1].append(None)
        else:
            pieces[-1].append(next(characters) if character == "\\" else character)
    return [_Piece(piece) for piece in pieces]


def like(value: str, pattern: str) -> bool:
    """SQL's LIKE for a canonical pattern. Taking each piece at its first occurrence needs no backtracking."""
    text = lowered(value)
    first, *middle = _pieces(pattern)
    last = middle.pop() if middle else None
    if len(text) < len(first) or not first.fits(text, 0):
        return False
    if last is None:
        return len(text) == len(first)
    start, end = len(first), len(text) - len(last)
    for piece in middle:
        found = piece.end(text, start, end) if len(piece) else start
        if found is None:
            return False
        start = found
    return start <= end and last.fits(text, end)


# -- dates -----------------------------------------------------------------------------------------


def canonical_date(text: str) -> str | None:
    """A date with a blank or fewer digits, in the format of job dates; None if it is not a date."""
    when = instant(text)
    return None if when is None else rfc3339(when)


def instant(text: str) -> datetime | None:
    """The instant of a date text; UTC if it has no zone."""
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
