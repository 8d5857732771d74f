"""A rule for one request, before its body is known.

What names neither the body nor the job is evaluated once. So a request that no body can help is refused unread, and a
request for many jobs evaluates only the rest for each of them. The language has no negation: a rule that is false with
every open comparison true is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from treadle.policy.rules.binding import MAX_COMPARISONS, Denied, RequestFacts, compared
from treadle.policy.rules.conditions import Condition, every, never, size, some
from treadle.policy.rules.grammar import Compared, Every, Expression, Some
from treadle.policy.rules.operands import Changed, RequestValue

Join: TypeAlias = Callable[[Iterable[Condition]], Condition]


class _Joined(NamedTuple):
    join: Join
    parts: tuple[_Node, ...]


_Node: TypeAlias = Condition | Compared | _Joined
"""A comparison with the body stays open."""


class PreparedRule:
    """`bind` gives the condition for a body."""

    def __init__(self, expression: Expression, request: RequestFacts) -> None:
        self._request = request
        try:
            self._node = _prepared(expression, request)
        except Denied:
            self._node = never

    @property
    def hopeless(self) -> bool:
        """No body makes it true for any job."""
        return _at_best(self._node) is False

    def bind(self, body: Mapping[str, Any]) -> Condition:
        """An evaluation error denies access."""
        try:
            condition = _bound(self._node, replace(self._request, body=body, documents={}))
        except Denied:
            return never
        return condition if size(condition) <= MAX_COMPARISONS else never


def _prepared(expression: Expression, request: RequestFacts) -> _Node:
    match expression:
        case Compared():
            return expression if _names_body(expression) else compared(expression, request)
        case Every():
            return _joined(every, [_prepared(part, request) for part in expression.parts])
        case Some():
            return _joined(some, [_prepared(part, request) for part in expression.parts])


def _names_body(comparison: Compared) -> bool:
    return any(
        isinstance(name, Changed) or (isinstance(name, RequestValue) and name.part == "body")
        for name in (comparison.left, comparison.right)
    )


def _joined(join: Join, parts: list[_Node]) -> _Node:
    """One condition for all parts that are known. Open ones stay, because an error in any of them denies access."""
    known = [part for part in parts if not isinstance(part, Compared | _Joined)]
    left = [part for part in parts if isinstance(part, Compared | _Joined)]
    return _Joined(join, (join(known), *left)) if left else join(known)


def _at_best(node: _Node) -> Condition:
    match node:
        case Compared():
            return True
        case _Joined():
            return node.join([_at_best(part) for part in node.parts])
        case _:
            return node


def _bound(node: _Node, request: RequestFacts) -> Condition:
    match node:
        case Compared():
            return compared(node, request)
        case _Joined():
            return node.join([_bound(part, request) for part in node.parts])
        case _:
            return node
