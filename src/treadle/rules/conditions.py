"""Conditions: what is left of a rule once the request is known, over constants and job fields only.

A condition is plain True or False, a comparison, or several joined. There is no negation, so in SQL
"unknown" and "false" are the same to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from treadle.rules.fields import FIELDS, Kind
from treadle.rules.values import Value, contains, equal, in_order, is_empty, like, lowered, scalar, written


@dataclass(frozen=True, slots=True)
class Constant:
    value: Value


@dataclass(frozen=True, slots=True)
class Wildcard:
    """The pattern of a `~` that has a %: canonical, in lower case."""

    pattern: str


@dataclass(frozen=True, slots=True)
class JobField:
    name: str
    lower: bool = False

    @property
    def kind(self) -> Kind:
        return FIELDS[self.name]


@dataclass(frozen=True, slots=True)
class JobPath:
    """A value inside a document such as `payload`; a text is a key, a number an index."""

    document: str
    path: tuple[str | int, ...]


Operand: TypeAlias = Constant | Wildcard | JobField | JobPath


@dataclass(frozen=True, slots=True)
class Comparison:
    left: Operand
    sign: str
    """= != > >= < <= ~ or !~"""
    right: Operand

    @property
    def strict(self) -> bool:
        """Values inside JSON tell null from the empty text."""
        return isinstance(self.left, JobPath) or isinstance(self.right, JobPath)


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Comparison | Either, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Comparison | All, ...]


Condition: TypeAlias = bool | Comparison | All | Either

always: Condition = True
never: Condition = False


def both(left: Condition, right: Condition) -> Condition:
    return every((left, right))


def either(left: Condition, right: Condition) -> Condition:
    return some((left, right))


def every(conditions: Iterable[Condition]) -> Condition:
    parts: list[Comparison | Either] = []
    for one in conditions:
        if one is False:
            return False
        if isinstance(one, All):
            parts += one.parts
        elif one is not True:
            parts.append(one)
    return True if not parts else parts[0] if len(parts) == 1 else All(tuple(parts))


def some(conditions: Iterable[Condition]) -> Condition:
    parts: list[Comparison | All] = []
    for one in conditions:
        if one is True:
            return True
        if isinstance(one, Either):
            parts += one.parts
        elif one is not False:
            parts.append(one)
    return False if not parts else parts[0] if len(parts) == 1 else Either(tuple(parts))


def compare(left: Operand, sign: str, right: Operand) -> Condition:
    """A comparison, or its answer if both sides are known already."""
    match left, sign, right:
        # Stale is a mark, and the status stays the outcome; but one can ask for it as for a status.
        case (JobField("status"), "=" | "!=", Constant("stale")) | (Constant("stale"), "=" | "!=", JobField("status")):
            return Comparison(JobField("staleAt"), "!=" if sign == "=" else "=", Constant(""))
    comparison = Comparison(left, sign, right)
    if isinstance(left, JobField | JobPath) or isinstance(right, JobField | JobPath):
        return comparison
    return _holds(comparison, {})


def not_empty(operand: JobField | JobPath) -> Condition:
    texts = compare(operand, "!=", Constant(""))
    return texts if isinstance(operand, JobField) else both(texts, compare(operand, "!=", Constant(None)))


def size(condition: Condition) -> int:
    """How many comparisons it has."""
    match condition:
        case bool():
            return 0
        case Comparison():
            return 1
        case All() | Either():
            return sum(size(part) for part in condition.parts)


def matches(condition: Condition, job: Mapping[str, Any]) -> bool:
    """Whether a job, as it is in JSON, fulfils the condition. Nothing is true of a field that it does not have."""
    match condition:
        case bool():
            return condition
        case Comparison():
            try:
                return _holds(condition, job)
            except KeyError:  # of a deleted job, not everything is known
                return False
        case All():
            return all(matches(part, job) for part in condition.parts)
        case Either():
            return any(matches(part, job) for part in condition.parts)


def _holds(comparison: Comparison, job: Mapping[str, Any]) -> bool:
    left, sign = _value(comparison.left, job), comparison.sign
    if isinstance(comparison.right, Wildcard):
        text = written(left)
        return text is not None and like(text, comparison.right.pattern) == (sign == "~")
    right = _value(comparison.right, job)
    match sign:
        case "=" | "!=":
            return equal(left, right, strict=comparison.strict) == (sign == "=")
        case "~" | "!~":
            whole, part = written(left), written(right)
            return whole is not None and part is not None and contains(whole, part) == (sign == "~")
        case _:
            return in_order(left, sign, right)


def _value(operand: Operand, job: Mapping[str, Any]) -> Value:
    match operand:
        case Constant():
            return operand.value
        case JobField():
            return _field(operand, job)
        case JobPath():
            return scalar(below(job[operand.document], operand.path))
        case Wildcard():
            raise AssertionError("a pattern stands on the right of ~ only")


def _field(field: JobField, job: Mapping[str, Any]) -> Value:
    value = scalar(job[field.name])
    if field.kind is not Kind.NUMBER and is_empty(value):
        return ""
    return lowered(value) if field.lower and isinstance(value, str) else value


def below(value: Any, path: Iterable[str | int]) -> Any:
    """A key is looked for in objects only, an index in lists only."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
