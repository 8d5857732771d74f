"""Conditions: a rule after binding, over constants and job fields only.

A condition is True, False, a comparison, or several joined. There is no negation, so "unknown" and "false" are
equivalent in SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from treadle.model.fields import DERIVED, FIELDS, FieldKind
from treadle.policy.rules.values import (
    MAX_PATTERN,
    Value,
    canonical,
    contains,
    equal,
    in_order,
    instant,
    is_empty,
    like,
    lowered,
    scalar,
    written,
)


@dataclass(frozen=True, slots=True)
class Constant:
    value: Value


@dataclass(frozen=True, slots=True)
class Wildcard:
    """The pattern of a `~` with a %: canonical, in lower case."""

    pattern: str


@dataclass(frozen=True, slots=True)
class WholeDocument:
    """A whole document to compare by value, as canonical JSON. Only on the right of = and !=."""

    text: str


@dataclass(frozen=True, slots=True)
class JobField:
    name: str
    lower: bool = False

    @property
    def kind(self) -> FieldKind:
        return FIELDS.get(self.name) or DERIVED[self.name]


@dataclass(frozen=True, slots=True)
class JobPath:
    """A value inside a document such as `payload`; strings are keys, numbers are indexes."""

    document: str
    path: tuple[str | int, ...]


Operand: TypeAlias = Constant | Wildcard | WholeDocument | JobField | JobPath


@dataclass(frozen=True, slots=True)
class Comparison:
    left: Operand
    sign: str
    """= != > >= < <= ~ or !~"""
    right: Operand

    @property
    def strict(self) -> bool:
        """Values inside JSON distinguish null from the empty text."""
        return isinstance(self.left, JobPath) or isinstance(self.right, JobPath)

    @property
    def looks_for_job_text(self) -> bool:
        """The text after ~ comes from the job and may be of any length; above MAX_PATTERN it matches nothing."""
        return isinstance(self.right, JobField | JobPath)


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


def compare(left: Operand, sign: str, right: Operand, *, strict: bool = False) -> Condition:
    """A comparison, or its result if both sides are constants; `strict` as in `equal`, for constants."""
    match left, sign, right:
        # Stale is a mark and the status stays the outcome, but queries can use it like a status.
        case (JobField("status"), "=" | "!=", Constant("stale")) | (Constant("stale"), "=" | "!=", JobField("status")):
            return Comparison(JobField("staleAt"), "!=" if sign == "=" else "=", Constant(""))
    comparison = Comparison(left, sign, right)
    if isinstance(left, JobField | JobPath) or isinstance(right, JobField | JobPath):
        return comparison
    return _holds(comparison, {}, strict)


def not_empty(operand: JobField | JobPath) -> Condition:
    texts = compare(operand, "!=", Constant(""))
    return texts if isinstance(operand, JobField) else both(texts, compare(operand, "!=", Constant(None)))


def size(condition: Condition) -> int:
    """The number of comparisons."""
    match condition:
        case bool():
            return 0
        case Comparison():
            return 1
        case All() | Either():
            return sum(size(part) for part in condition.parts)


def looks_inside(condition: Condition) -> int:
    """The number of comparisons that read a job's documents."""
    match condition:
        case bool():
            return 0
        case Comparison():
            return int(condition.strict)
        case All() | Either():
            return sum(looks_inside(part) for part in condition.parts)


def documents_in(condition: Condition) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    """The documents that it reads, and where in them."""
    match condition:
        case Comparison():
            for operand in (condition.left, condition.right):
                if isinstance(operand, JobPath):
                    yield operand.document, operand.path
        case All() | Either():
            for part in condition.parts:
                yield from documents_in(part)


def looked_for(condition: Condition) -> int:
    """The total length of the texts after ~: the worst-case cost per character of a job."""
    match condition:
        case Comparison(sign="~" | "!~", right=Constant(value)):
            return len(written(value) or "")
        case Comparison(sign="~" | "!~", right=Wildcard(pattern)):
            return len(pattern)
        case Comparison(sign="~" | "!~"):
            return MAX_PATTERN
        case All() | Either():
            return sum(looked_for(part) for part in condition.parts)
        case _:
            return 0


def by_cost(condition: Condition) -> tuple[Condition, Condition]:
    """Split into two conditions that must both hold: over plain fields, and over documents."""
    parts = condition.parts if isinstance(condition, All) else (condition,)
    plain = every(part for part in parts if not looks_inside(part))
    return plain, every(part for part in parts if looks_inside(part))


INDEXED = ("id", "topic", "status", "scope", "scopeId", "createdBy")


def by_index(condition: Condition) -> tuple[Condition, Condition]:
    """Split into two conditions that must both hold: over documents and indexed fields, and the rest."""
    parts = condition.parts if isinstance(condition, All) else (condition,)
    return every(part for part in parts if not _searches(part)), every(part for part in parts if _searches(part))


def demanded_status(condition: Condition) -> str:
    """The only status that a job can have if the condition holds; empty if it does not say."""
    for part in condition.parts if isinstance(condition, All) else (condition,):
        match part:
            case Comparison(JobField("status", _), "=", Constant(str() as status)):
                return status
            case Comparison(JobField("failedAt", _), "!=", Constant("")):
                return "failed"
    return ""


def _searches(part: Condition) -> bool:
    """Whether each job must be looked at, although no document is read."""
    if isinstance(part, Comparison) and isinstance(part.left, JobField):
        return part.sign != "=" or part.left.name not in INDEXED
    return isinstance(part, Either) and not looks_inside(part)


def matches(condition: Condition, job: Mapping[str, Any]) -> bool:
    """Whether a job, in JSON form, satisfies the condition. Comparisons with a missing field are false."""
    match condition:
        case bool():
            return condition
        case Comparison():
            try:
                return _holds(condition, job)
            except KeyError:  # a deleted job has only some of its fields
                return False
        case All():
            return all(matches(part, job) for part in condition.parts)
        case Either():
            return any(matches(part, job) for part in condition.parts)


def _holds(comparison: Comparison, job: Mapping[str, Any], strict: bool = False) -> bool:
    sign = comparison.sign
    if isinstance(comparison.right, WholeDocument):
        assert isinstance(comparison.left, JobPath)
        return (canonical(job[comparison.left.document]) == comparison.right.text) == (sign == "=")
    left = _value(comparison.left, job)
    if isinstance(comparison.right, Wildcard):
        text = written(left)
        return text is not None and like(text, comparison.right.pattern) == (sign == "~")
    right = _value(comparison.right, job)
    match sign:
        case "=" | "!=":
            return equal(left, right, strict=strict or comparison.strict) == (sign == "=")
        case "~" | "!~":
            whole, part = written(left), written(right)
            if whole is None or part is None or (comparison.looks_for_job_text and len(part) > MAX_PATTERN):
                return False
            return contains(whole, part) == (sign == "~")
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
        case Wildcard() | WholeDocument():
            raise AssertionError("a pattern or a document stands on the right only")


def _field(field: JobField, job: Mapping[str, Any]) -> Value:
    if field.name in DERIVED:
        return _derived(field.name, job)
    value = scalar(job[field.name])
    if field.kind is not FieldKind.NUMBER and is_empty(value):
        return ""
    return lowered(value) if field.lower and isinstance(value, str) else value


def _derived(name: str, job: Mapping[str, Any]) -> Value:
    """In milliseconds; of a job that runs or waits, until now."""
    started = instant(job["startedAt"] or "")
    if name == "ranMs":
        begin, end = started, instant(job["endedAt"] or "")
    else:
        begin, end = instant(max(job["runAt"], job["createdAt"])), started
        if started is None and job["endedAt"]:
            return None
    return None if begin is None else ((end or datetime.now(UTC)) - begin) // timedelta(milliseconds=1)


def below(value: Any, path: Iterable[str | int]) -> Any:
    """Keys are looked up only in objects, indexes only in lists."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
