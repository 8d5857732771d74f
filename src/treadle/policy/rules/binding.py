"""Binds a rule to a request: replaces names by the request's values and folds what is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

from treadle.model.durations import PRIORITIES
from treadle.model.fields import DOCUMENTS, FIELDS, FieldKind
from treadle.model.job import rfc3339
from treadle.policy.rules.conditions import (
    Condition,
    Constant,
    JobField,
    JobPath,
    Operand,
    WholeDocument,
    Wildcard,
    below,
    both,
    compare,
    either,
    every,
    never,
    not_empty,
    some,
)
from treadle.policy.rules.grammar import UNUSABLE, Compared
from treadle.policy.rules.operands import Changed, Macro, Name, RequestValue
from treadle.policy.rules.values import (
    MAX_PATTERN,
    Value,
    canonical,
    canonical_date,
    canonical_pattern,
    ends_in_escape,
    has_wildcard,
    is_empty,
    lowered,
    scalar,
    without_escapes,
    written,
)

# A list in the caller's record becomes one comparison per element.
MAX_COMPARISONS = 2_000


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a rule can see of a request."""

    method: str = "GET"
    context: str = "default"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case, with _ in place of -."""
    query: Mapping[str, str] = field(default_factory=dict)
    """The first value of each parameter."""
    body: Mapping[str, Any] = field(default_factory=dict)
    auth: Mapping[str, Any] = field(default_factory=dict)
    """The signed-in user's record; empty for anonymous callers."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    documents: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """What `_document` has written of the body so far."""


class Denied(Exception):
    """The rule can't be evaluated for this request, so it denies access."""


class Bound(NamedTuple):
    """One side of a comparison after binding."""

    operand: Constant | JobField | JobPath
    of_request: bool = False
    is_date: bool = False
    wild: bool = True
    """Whether a % in it is a wildcard."""
    spelled: str | None = None
    """The text that `~` searches for, if it differs from the number: true and false in the caller's record."""
    strict: bool = False
    """From the JSON of the caller's record, where null differs from the empty text."""

    @property
    def of_job(self) -> bool:
        return not isinstance(self.operand, Constant)


def compared(comparison: Compared, request: RequestFacts) -> Condition:
    """The condition of one comparison; Denied if it can't be evaluated."""
    at_least_one, sign = comparison.sign.startswith("?"), comparison.sign.removeprefix("?")
    lefts, rights = _sides(comparison.left, request), _sides(comparison.right, request)
    if len(lefts) * len(rights) > MAX_COMPARISONS:
        raise Denied("the caller's record has lists that are too long to be compared")
    answers = [_with_changes(left, sign, right, request) for left, right in product(lefts, rights)]
    return some(answers) if at_least_one else every(answers)


def _sides(name: Name, request: RequestFacts) -> Sequence[Bound | Changed]:
    """One value, or each element of a list."""
    match name:
        case Changed():
            return [name]
        case Constant():
            return [Bound(name)]
        case JobField():
            return [Bound(name, is_date=name.kind is FieldKind.DATE)]
        case JobPath():
            return [Bound(name)]
        case Macro():
            value = macro(name.name, request.now)
            return [Bound(Constant(value), is_date=isinstance(value, str))]
        case RequestValue():
            return list(_request_sides(name, request))


# -- comparing -------------------------------------------------------------------------------------


def _with_changes(left: Bound | Changed, sign: str, right: Bound | Changed, request: RequestFacts) -> Condition:
    if isinstance(left, Changed):
        changed, same = _changed(left, request)
        return either(
            both(changed, _with_changes(Bound(Constant(1)), sign, right, request)),
            both(same, _with_changes(Bound(Constant(0)), sign, right, request)),
        )
    if isinstance(right, Changed):
        changed, same = _changed(right, request)
        return either(
            both(changed, _compare(left, sign, Bound(Constant(1)))),
            both(same, _compare(left, sign, Bound(Constant(0)))),
        )
    return _compare(left, sign, right)


def _changed(name: Changed, request: RequestFacts) -> tuple[Condition, Condition]:
    """The conditions under which the field is changed, and under which it is not."""
    key = name.field.name if isinstance(name.field, JobField) else name.field.document
    if key not in request.body:
        return False, True
    sent: Operand
    if isinstance(name.field, JobPath):
        sent = WholeDocument(str(_checked(_document(key, request))))
    else:
        sent = Constant(_checked(_typed(key, request.body[key])))
    return compare(name.field, "!=", sent), compare(name.field, "=", sent)


def _compare(left: Bound, sign: str, right: Bound) -> Condition:
    if sign in ("~", "!~"):
        condition = _like(left.operand, sign, right)
    else:
        condition = compare(_dated(left, right), sign, _dated(right, left), strict=left.strict or right.strict)
    if left.of_request and right.of_job:
        return _across(left.operand, right.operand, sign, condition)
    if right.of_request and left.of_job:
        return _across(right.operand, left.operand, sign, condition)
    return condition


def _across(request_side: Operand, job_side: Operand, sign: str, condition: Condition) -> Condition:
    """An empty request value never matches an empty job field, so anonymous callers don't own jobs without an owner."""
    assert isinstance(request_side, Constant)
    assert isinstance(job_side, JobField | JobPath)
    if not is_empty(request_side.value):
        return condition
    return never if sign == "=" else both(condition, not_empty(job_side))


def _like(left: Operand, sign: str, right: Bound) -> Condition:
    if not isinstance(right.operand, Constant):
        return compare(left, sign, right.operand)
    text = written(right.operand.value) if right.spelled is None else right.spelled
    if text is not None and len(text) > MAX_PATTERN:
        raise Denied(f"the request looks for a text of more than {MAX_PATTERN} characters")
    if text is None or not right.wild:
        return compare(left, sign, Constant(text))
    if not has_wildcard(text):
        return compare(left, sign, Constant(without_escapes(text)))
    if ends_in_escape(text):
        return sign == "!~" and compare(left, "~", Constant(""))  # no text matches it
    return compare(left, sign, Wildcard(canonical_pattern(text)))


def _dated(side: Bound, other: Bound) -> Operand:
    """A text that is compared with a date is converted to the date format."""
    if other.is_date and isinstance(side.operand, Constant) and isinstance(side.operand.value, str):
        return Constant(canonical_date(side.operand.value) or side.operand.value)
    return side.operand


# -- the request's values --------------------------------------------------------------------------


def _request_sides(name: RequestValue, request: RequestFacts) -> Iterator[Bound]:
    wild = name.part != "auth" or name.path in (("id",), ("email",))
    is_date = name.part == "body" and len(name.path) == 1 and FIELDS.get(name.path[0]) is FieldKind.DATE
    strict = name.part == "auth" and len(name.path) > 1 and bool(request.auth)
    for value in request_values(name, request):
        yield Bound(
            Constant(_checked(value)),
            of_request=True,
            is_date=is_date and name.modifier != "isset",
            wild=wild,
            spelled=_spelled(name, request),
            strict=strict,
        )


def _spelled(name: RequestValue, request: RequestFacts) -> str | None:
    value = request.auth.get(name.path[0]) if name.part == "auth" and len(name.path) == 1 else None
    return str(value).lower() if isinstance(value, bool) else None


def request_values(name: RequestValue, request: RequestFacts) -> list[Value]:
    match name.modifier:
        case "isset":
            return [int(_is_set(name, request))]
        case "length":
            return [_length(request.auth.get(name.path[0])) if request.auth else None]
        case "each":
            found = request.auth.get(name.path[0])
            elements = found if isinstance(found, list) else [found]
            return [scalar(element) for element in elements] or [None]
        case "lower":
            text = written(_request_value(name, request))
            return [None if text is None else lowered(text)]
        case _:
            return [_request_value(name, request)]


def _request_value(name: RequestValue, request: RequestFacts) -> Value:
    match name.part:
        case "method":
            return request.method
        case "context":
            return request.context
        case "headers":
            return scalar(_anywhere(request.headers, name.path))
        case "query":
            return scalar(_anywhere(request.query, name.path))
        case "body":
            return _body_value(name.path, request)
        case _:
            return _auth_value(name.path, request.auth)


def _body_value(path: Sequence[str], request: RequestFacts) -> Value:
    if len(path) == 1 and path[0] in DOCUMENTS and path[0] in request.body:
        return _document(path[0], request)
    if len(path) == 1 and path[0] in request.body:
        return _typed(path[0], request.body[path[0]])
    return scalar(_anywhere(request.body, path))


def _document(name: str, request: RequestFacts) -> str:
    """A document of the body as text, written once: it may be a megabyte, and a rule may name it 200 times."""
    if name not in request.documents:
        request.documents[name] = canonical(request.body[name])
    return request.documents[name]


def _auth_value(path: Sequence[str], auth: Mapping[str, Any]) -> Value:
    first, *rest = path
    value = auth.get(first)
    if rest and value is not None and not isinstance(value, dict | list):
        raise Denied(f"@request.auth.{first} has no parts")
    return scalar(below(value, [int(step) if step.isdigit() and len(step) < 10 else step for step in rest]))


def _anywhere(value: Any, path: Sequence[str]) -> Any:
    """In a body, a number may also be a key."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and len(step) < 10 and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _is_set(name: RequestValue, request: RequestFacts) -> bool:
    source: Mapping[str, Any] = getattr(request, name.part)
    *way, last = name.path
    holder = _anywhere(source, way)
    if isinstance(holder, list):
        return last.isdigit() and len(last) < 10 and int(last) < len(holder)
    return isinstance(holder, Mapping) and last in holder


def _length(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    return 0 if is_empty(scalar(value)) else 1


def _typed(key: str, value: Any) -> Value:
    """A value sent for a job field, converted to the field's type."""
    kind = FIELDS.get(key)
    if kind is None:
        return scalar(value)
    if kind is FieldKind.NUMBER:
        return _number(key, value)
    if isinstance(value, dict | list):
        return ""
    text = ("true" if value else "false") if isinstance(value, bool) else written(scalar(value)) or ""
    return (canonical_date(text) or "") if kind is FieldKind.DATE else text


def _number(key: str, value: Any) -> int | float:
    if key == "priority" and isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int | float):
        return int(value) if isinstance(value, bool) else value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0
    return 0 if number != number or abs(number) == float("inf") else number


def _checked(value: Value) -> Value:
    """Deny texts that databases can't store."""
    if isinstance(value, str):
        if UNUSABLE.search(value):
            raise Denied("the request has a text that is not valid Unicode")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


# -- macros ----------------------------------------------------------------------------------------


def macro(name: str, now: datetime) -> Value:
    """A date as text, or a number; all in UTC."""
    now = now.astimezone(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    month, year = today.replace(day=1), today.replace(month=1, day=1)
    millisecond, day = timedelta(milliseconds=1), timedelta(days=1)
    match name:
        case "@weekday":
            return now.isoweekday() % 7
        case "@second" | "@minute" | "@hour" | "@day" | "@month" | "@year":
            return int(getattr(now, name[1:]))
    dates = {
        "@now": now,
        "@yesterday": now - day,
        "@tomorrow": now + day,
        "@todayStart": today,
        "@todayEnd": today + day - millisecond,
        "@monthStart": month,
        "@monthEnd": (month + 31 * day).replace(day=1) - millisecond,
        "@yearStart": year,
        "@yearEnd": year.replace(year=year.year + 1) - millisecond,
    }
    return rfc3339(dates[name])
