"""The search box and the order of a list: `q=` and `sort=`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import NamedTuple

from treadle.model.durations import PRIORITIES
from treadle.model.errors import InvalidInput
from treadle.model.fields import DOCUMENTS, FIELDS
from treadle.model.other_names import FIELD_WORDS, unknown_status
from treadle.policy.rules.conditions import Condition, Constant, JobField, JobPath, Operand, compare, every, some
from treadle.policy.rules.grammar import UNUSABLE
from treadle.policy.rules.operands import UnknownName, resolve
from treadle.policy.rules.search_times import LENGTHS, TIMES, length_condition, time_condition
from treadle.policy.rules.status_names import status_is
from treadle.policy.rules.values import Value

MAX_SEARCH = 500
MAX_TERMS = 30
MAX_SORT_KEYS = 5
# The fields that a bare word is searched in.
EVERYWHERE = ("id", "topic", "lastError", "idempotencyKey")

_TERM = re.compile(r'(-?)(?:([A-Za-z][A-Za-z0-9_.]*):)?(?:"((?:[^"\\]|\\.)*)"|(\S*))(?:\s+|$)', re.S)
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}")

Search = Callable[[str, bool], Condition]


def parse_search(text: str, now: datetime | None = None) -> Condition:
    """Words and qualifiers that must all match; a leading `-` negates one. Ages count back from `now`."""
    now = now or datetime.now(UTC)
    if len(text) > MAX_SEARCH:
        raise _bad_search(f"{len(text):,} characters are too many; the limit is {MAX_SEARCH}")
    if UNUSABLE.search(text):
        raise _bad_search("it has a character that can't be stored")
    conditions = []
    position, end = len(text) - len(text.lstrip()), len(text)
    while position < end:
        term = _TERM.match(text, position)
        if term is None or (term[4] or "").startswith('"'):
            raise _bad_search('a quote is not closed; add "')
        conditions.append(_term(term, now))
        if len(conditions) > MAX_TERMS:
            raise _bad_search(f"more than {MAX_TERMS} words")
        position = term.end()
    return every(conditions)


class SearchTerm(NamedTuple):
    text: str
    """As it was written."""
    key: str
    """Of a qualifier; empty for a word."""


def search_terms(text: str) -> list[SearchTerm]:
    """The words and qualifiers of a text that `parse_search` takes."""
    found, position = [], len(text) - len(text.lstrip())
    while position < len(text) and (term := _TERM.match(text, position)):
        key = term[2] if term[2] and _qualifier(term[2]) else ""
        found.append(SearchTerm(term[0].strip(), key))
        position = term.end()
    return found


def _term(term: re.Match[str], now: datetime) -> Condition:
    minus, key, quoted, word = term.groups()
    value = re.sub(r"\\(.)", r"\1", quoted, flags=re.S) if quoted is not None else word
    if minus and not key and not value:
        return _anywhere("-", True)
    if key is None:
        return _anywhere(value, not minus)
    if value and key in TIMES:
        return time_condition(key, value, not minus, now)
    search = _qualifier(key)
    if search is None:
        return _anywhere(f"{key}:{value}", not minus)
    if not value:
        raise _bad_search(f"{key}: has no value; write {key}:something")
    return search(value, not minus)


def _qualifier(key: str) -> Search | None:
    """The condition for a `key:` qualifier; None if it is only a word with a colon."""
    if key in _QUALIFIERS:
        return _QUALIFIERS[key]
    if key in TIMES:
        return lambda value, wanted: time_condition(key, value, wanted, datetime.now(UTC))
    if key.partition(".")[0] in DOCUMENTS and "." in key:
        try:
            path = resolve(key)
        except UnknownName as error:
            raise _bad_search(str(error)) from None
        assert isinstance(path, JobPath)
        return lambda value, wanted: _in_document(path, value, wanted)
    return None


def _anywhere(word: str, wanted: bool) -> Condition:
    answers = [_contains(name)(word, wanted) for name in EVERYWHERE]
    return some(answers) if wanted else every(answers)


def _contains(name: str) -> Search:
    return lambda value, wanted: compare(JobField(name), "~" if wanted else "!~", Constant(value))


def _equals(name: str) -> Search:
    return lambda value, wanted: _same(JobField(name), [value], wanted)


def _same(operand: Operand, values: list[Value], wanted: bool) -> Condition:
    answers = [compare(operand, "=" if wanted else "!=", Constant(value)) for value in values]
    return some(answers) if wanted else every(answers)


def _status(value: str, wanted: bool) -> Condition:
    condition = status_is(value.lower(), wanted)
    if condition is None:
        raise _bad_search(f"status:{unknown_status(value)}")
    return condition


def _priority(value: str, wanted: bool) -> Condition:
    if value not in PRIORITIES and not _WHOLE.fullmatch(value):
        raise _bad_search(f"priority:{value[:40]} is not a number or one of {', '.join(PRIORITIES)}")
    return _same(JobField("priority"), [PRIORITIES[value] if value in PRIORITIES else int(value)], wanted)


def _in_document(path: JobPath, value: str, wanted: bool) -> Condition:
    """Match both the number and the text, because the user can't know which one is stored."""
    values: list[Value] = [value]
    if _WHOLE.fullmatch(value):
        values.append(int(value))
    elif _DECIMAL.fullmatch(value):
        values.append(float(value))
    elif value in ("true", "false"):
        values.append(int(value == "true"))
    return _same(path, values, wanted)


_QUALIFIERS: Mapping[str, Search] = {
    **{name: _equals(name) for name in ("id", "topic", "scope", "scopeId", "createdBy")},
    "status": _status,
    "priority": _priority,
    "error": _contains("lastError"),
    "phase": _equals("step"),
    "step": _equals("step"),
    "worker": _equals("lastWorker"),
    **{key: partial(length_condition, key) for key in LENGTHS},
}
QUALIFIERS: Sequence[str] = (*_QUALIFIERS, *TIMES, *(f"{name}." for name in DOCUMENTS))
"""What may stand before a colon."""


def unknown_qualifier(text: str) -> str:
    """The key of a term that looks like a qualifier and is none; empty for words, addresses and names of errors."""
    term = _TERM.fullmatch(text)
    if term is None or not term[2] or not (term[3] or term[4]) or (term[4] or "").startswith("//"):
        return ""
    return term[2] if term[2][0].islower() and _qualifier(term[2]) is None else ""


def nearest_qualifiers(key: str, value: str) -> list[str]:
    """What may have been meant, the nearest first; the payload may have a field of this name."""
    near = get_close_matches(key, [*_QUALIFIERS, *TIMES], 1, 0.5)
    return [f"{name}:{value}" for name in (*near, f"payload.{key}")]


def _bad_search(problem: str) -> InvalidInput:
    return InvalidInput(f"q: {problem}", field="q")


# -- sort ------------------------------------------------------------------------------------------


class SortKey(NamedTuple):
    field: str
    descending: bool


def parse_sort(text: str) -> tuple[SortKey, ...]:
    """`-priority,createdAt`: by priority, the highest first, then the oldest first."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if len(names) > MAX_SORT_KEYS:
        raise _bad_sort(f"more than {MAX_SORT_KEYS} fields")
    return tuple(_sort_key(name) for name in names)


def _sort_key(name: str) -> SortKey:
    field = name[1:] if name[:1] in ("+", "-") else name
    field = FIELD_WORDS.get(field, field)
    if field not in FIELDS:
        raise _bad_sort(f"{name[:40]!r} is not a field to sort by; use one of {', '.join(FIELDS)}")
    return SortKey(field, name.startswith("-"))


def _bad_sort(problem: str) -> InvalidInput:
    return InvalidInput(f"sort: {problem}", field="sort")
