"""The comparisons of a rule, each with its own answer, so that people see which one decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.policy.rules.binding import Denied, RequestFacts, macro, request_values
from treadle.policy.rules.conditions import JobField, matches, never
from treadle.policy.rules.grammar import Compared, comparisons
from treadle.policy.rules.operands import Macro, Name, RequestValue
from treadle.policy.rules.rule import Rule, parse_rule
from treadle.policy.rules.values import Value


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison for one request and one job."""

    text: str
    holds: bool | None
    """None if it depends on the job and there is none."""
    values: Sequence[tuple[str, Value]]
    """The names in it, as they are written, with their values. Values inside documents are left out."""


def clauses(text: str, request: RequestFacts, job: Mapping[str, Any] | None) -> list[Clause]:
    """The comparisons of a valid rule in the order of its text."""
    return [_clause(left, sign, right, request, job) for left, sign, right in comparisons(text)]


def _clause(left: str, sign: str, right: str, request: RequestFacts, job: Mapping[str, Any] | None) -> Clause:
    text = f"{left} {sign} {right}"
    rule = parse_rule(text)
    assert isinstance(rule.expression, Compared)
    sides = ((left, rule.expression.left), (right, rule.expression.right))
    values = [(written, value) for written, name in sides for value in _values(name, request, job)]
    return Clause(text, _holds(rule, request, job), values)


def _holds(rule: Rule, request: RequestFacts, job: Mapping[str, Any] | None) -> bool | None:
    condition = rule.bind(request)
    if job is not None:
        return matches(condition, job)
    return None if rule.names_job_fields and condition != never else condition != never


def _values(name: Name, request: RequestFacts, job: Mapping[str, Any] | None) -> list[Value]:
    match name:
        case RequestValue():
            try:
                return request_values(name, request)
            except Denied:
                return []
        case Macro():
            return [macro(name.name, request.now)]
        case JobField() if job is not None:
            return [job.get(name.name)]
        case _:
            return []
