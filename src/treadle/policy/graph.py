"""Steps that come after others than the one declared before them, as pure functions.

A step names only steps that were declared before it. So the order of declaration is an order in which they can run, and
a graph has no cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pydantic_core import to_json

from treadle.model.errors import InvalidInput


class Declared(Protocol):
    """A declared step, as far as the graph depends on it."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> Sequence[str] | None:
        """None: it comes after the one declared before it."""


def checked_after(name: str, after: Iterable[str], declared: Sequence[str]) -> tuple[str, ...]:
    """The names of the steps that `name` comes after, each declared before it and named once."""
    chosen = tuple(after)
    for one in chosen:
        if one == name:
            raise InvalidInput(f"step {name}: after: it can't come after itself, that is a cycle", field="after")
        if one not in declared:
            raise InvalidInput(
                f"step {name}: after: no step {one!r} is declared before it; declare it first, so that no cycle is "
                "possible",
                field="after",
            )
        if chosen.count(one) > 1:
            raise InvalidInput(f"step {name}: after: {one} is named twice", field="after")
    return chosen


def is_graph(steps: Iterable[Declared]) -> bool:
    return any(step.after is not None for step in steps)


def links(steps: Iterable[Declared]) -> dict[str, tuple[str, ...]]:
    """By name, which steps come right before a step."""
    found: dict[str, tuple[str, ...]] = {}
    last: tuple[str, ...] = ()
    for step in steps:
        found[step.name] = last if step.after is None else tuple(step.after)
        last = (step.name,)
    return found


def ends(steps: Sequence[Declared]) -> list[str]:
    """The steps that no other one comes after; their results are the flow's."""
    before = {one for names in links(steps).values() for one in names}
    return [step.name for step in steps if step.name not in before]


def depending(steps: Sequence[Declared], name: str) -> set[str]:
    """The step and everything that comes after it, directly or not."""
    found = {name}
    for step, before in links(steps).items():
        if not found.isdisjoint(before):
            found.add(step)
    return found


def comes_before(steps: Sequence[Declared], one: str, others: Iterable[str]) -> bool:
    """Whether a step has ended when these have."""
    return not depending(steps, one).isdisjoint(others)


def whole_result(results: Mapping[str, str | None], ends: Sequence[str]) -> str | None:
    """A flow's result as JSON text: its only end's, or the results of all ends by name."""
    if len(ends) == 1:
        return results.get(ends[0])
    members = (f"{to_json(name).decode()}:{results.get(name) or 'null'}" for name in ends)
    return f"{{{','.join(members)}}}"
