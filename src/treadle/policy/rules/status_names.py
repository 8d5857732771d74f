"""Filters with status names from other queues: translated if known, refused otherwise."""

from __future__ import annotations

from treadle.model.other_names import STALE, STATUS_WORDS, unknown_status
from treadle.policy.rules.conditions import Condition, Constant, JobField, compare, every, some
from treadle.policy.rules.errors import InvalidRule
from treadle.policy.rules.grammar import Compared, Every, Expression, Some

_OPPOSITE = {"=": "!=", "!=": "=", ">": "<="}
STATUS = JobField("status")


def in_our_words(expression: Expression) -> Expression:
    """The filter with our status names; InvalidRule if it compares the status with an unknown word."""
    match expression:
        case Compared(JobField("status"), sign, Constant(str() as word)) if sign.lstrip("?") in ("=", "!="):
            return _compared(word, sign.lstrip("?") == "=")
        case Compared(Constant(str() as word), sign, JobField("status")) if sign.lstrip("?") in ("=", "!="):
            return _compared(word, sign.lstrip("?") == "=")
        case Compared():
            return expression
        case Every():
            return Every(tuple(in_our_words(part) for part in expression.parts))
        case Some():
            return Some(tuple(in_our_words(part) for part in expression.parts))


def _compared(word: str, wanted: bool) -> Expression:
    if word in ("", STALE):
        return Compared(STATUS, "=" if wanted else "!=", Constant(word))
    known = STATUS_WORDS.get(word)
    if known is None:
        raise InvalidRule(f"status: {unknown_status(word)}", position=0)
    parts = [Compared(STATUS, "=" if wanted else "!=", Constant(known.status.value))]
    if known.field:
        sign = known.sign if wanted else _OPPOSITE[known.sign]
        parts.append(Compared(JobField(known.field), sign, Constant(known.value)))
    if len(parts) == 1:
        return parts[0]
    return Every(tuple(parts)) if wanted else Some(tuple(parts))


def status_is(word: str, wanted: bool = True) -> Condition | None:
    """The same as a condition; None if it is not a status."""
    try:
        return _condition(_compared(word, wanted)) if word else None
    except InvalidRule:
        return None


def _condition(expression: Expression) -> Condition:
    match expression:
        case Compared(left, sign, right):
            assert isinstance(left, JobField | Constant)
            assert isinstance(right, JobField | Constant)
            return compare(left, sign, right)
        case Every():
            return every(_condition(part) for part in expression.parts)
        case Some():
            return some(_condition(part) for part in expression.parts)
