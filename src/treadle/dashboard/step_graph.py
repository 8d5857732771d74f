"""The steps of a flow drawn as a graph: ranks from top to bottom, or a list with a rail where that would be too wide.

A step's rank is one more than the highest of those it comes after. Text never scales, so coordinates are pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from treadle.dashboard import words
from treadle.dashboard.step_rows import StepRow
from treadle.model.steps import StepSpec, StepState
from treadle.policy.graph import is_graph, links

NODE_W, NODE_H = 176, 56
GAP_X, GAP_Y = 16, 36
# A line that passes a rank needs less room than a node.
LINE_W = 24
SWEEPS = 8
NAME_CHARACTERS = 20
FACT_CHARACTERS = 24
# Drawings of more steps are lists with a rail.
MOST_DRAWN = 24
ROW_H, LANE_W, MOST_LANES = 48, 14, 6
PASSED = frozenset({StepState.COMPLETED, StepState.SKIPPED})


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    name: str
    """As far as there is room for it."""
    status: str
    fact: str
    took: str
    bad: bool
    kind: str
    """`person`, `map` or nothing."""
    x: float
    y: float
    bar: Sequence[tuple[str, float, float]] = ()
    """Of a map: the shares of its items, as state, start and width."""


@dataclass(frozen=True, slots=True)
class Line:
    path: str
    later: bool
    """It is still to come."""


@dataclass(frozen=True, slots=True)
class Drawing:
    width: float
    height: float
    nodes: Sequence[Node]
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class StepGraph:
    wide: Drawing | None
    """None: there are too many steps."""
    tall: Drawing
    kinds: Sequence[str]
    """What the legend explains."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a node says."""

    status: str = ""
    fact: str = ""
    took: str = ""
    bad: bool = False
    items: Mapping[str, int] | None = None


def template_graph(specs: Sequence[StepSpec]) -> StepGraph | None:
    """None for steps that come one after the other."""
    return step_graph(specs, {spec.name: Shown(fact=_fact(spec)) for spec in specs}) if is_graph(specs) else None


def _fact(spec: StepSpec) -> str:
    limit = "" if spec.timeout_ms is None else words.duration(spec.timeout_ms)
    if spec.external:
        return f"a person, {limit}" if limit else "a person"
    if spec.map is not None:
        return f"each of {spec.map}, {spec.limit} at once"
    return limit if spec.cancelable else "not cancelable"


def job_graph(
    specs: Sequence[StepSpec], steps: Sequence[Mapping[str, Any]], rows: Sequence[StepRow]
) -> StepGraph | None:
    """The steps of a job with what they have done; None if they come one after the other."""
    if not is_graph(specs):
        return None
    entries = {step["id"]: step for step in steps}
    shown = {
        row.id: Shown(row.status, row.note, row.took, row.bad, entries[row.id]["items"])
        for row in rows
        if row.id in entries
    }
    return step_graph([spec for spec in specs if spec.name in shown], shown)


def step_graph(specs: Sequence[StepSpec], shown: Mapping[str, Shown]) -> StepGraph:
    before = {name: [one for one in names if one in shown] for name, names in links(specs).items()}
    kinds = {spec.name: "person" if spec.external else "map" if spec.map else "" for spec in specs}
    make = _maker(shown, kinds)
    wide = _ranked(before, shown, make) if len(specs) <= MOST_DRAWN else None
    found = [kind for kind in ("map", "person") if kind in kinds.values()]
    return StepGraph(wide, _railed(before, shown, make), found)


def _maker(shown: Mapping[str, Shown], kinds: Mapping[str, str]) -> Callable[[str, float, float], Node]:
    def make(name: str, x: float, y: float) -> Node:
        one = shown[name]
        room = FACT_CHARACTERS - len(one.took)
        return Node(
            name,
            _cut(name, NAME_CHARACTERS - (kinds[name] != "") * 3),
            one.status,
            _cut(one.fact, room),
            one.took,
            one.bad,
            kinds[name],
            x,
            y,
            _bar(one.items),
        )

    return make


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bar(items: Mapping[str, int] | None) -> list[tuple[str, float, float]]:
    if not items or not items["total"]:
        return []
    whole = NODE_W - 24
    failed = items["failed"] / items["total"] * whole
    done = items["done"] / items["total"] * whole
    parts = [("failed", 0.0, round(failed, 1)), ("completed", round(failed, 1), round(done, 1))]
    return [part for part in parts if part[2]]


# -- ranks -----------------------------------------------------------------------------------------


def _ranked(
    before: Mapping[str, Sequence[str]], shown: Mapping[str, Shown], make: Callable[[str, float, float], Node]
) -> Drawing:
    rank: dict[str, int] = {}
    for name, names in before.items():
        rank[name] = max((rank[one] + 1 for one in names), default=0)
    ranks: list[list[str]] = [[] for _ in range(max(rank.values(), default=0) + 1)]
    for name in before:
        ranks[rank[name]].append(name)
    chains = [_chain(one, name, rank, ranks) for name, names in before.items() for one in names]
    neighbours: dict[str, tuple[list[str], list[str]]] = {one: ([], []) for row in ranks for one in row}
    for chain in chains:
        for upper, lower in pairwise(chain):
            neighbours[lower][0].append(upper)
            neighbours[upper][1].append(lower)
    middle = _placed(ranks, neighbours)
    left = min((middle[name] - NODE_W / 2 for name in before), default=0.0)
    width = max((middle[name] + NODE_W / 2 for name in before), default=0.0) - left
    top = {name: number * (NODE_H + GAP_Y) for number, row in enumerate(ranks) for name in row}
    nodes = [make(name, round(middle[name] - NODE_W / 2 - left, 1), top[name]) for name in before]
    lines = [_curve([(middle[one] - left, top[one]) for one in chain], _is_later(chain[0], shown)) for chain in chains]
    return Drawing(round(width, 1), len(ranks) * (NODE_H + GAP_Y) - GAP_Y, nodes, lines)


def _chain(upper: str, lower: str, rank: dict[str, int], ranks: list[list[str]]) -> list[str]:
    """A line with a place in each rank that it passes."""
    passed = [f"\0{upper}\0{lower}\0{number}" for number in range(rank[upper] + 1, rank[lower])]
    for number, one in enumerate(passed, rank[upper] + 1):
        ranks[number].append(one)
    return [upper, *passed, lower]


def _placed(
    ranks: Sequence[list[str]], neighbours: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> dict[str, float]:
    """The middle of each place: near those it is connected with, and apart from the others in its rank."""
    at: dict[str, float] = {}
    for row in ranks:
        wanted = {one: _mean([at[up] for up in neighbours[one][0] if up in at]) for one in row}
        row.sort(key=lambda one: (wanted[one] is None, wanted[one] or 0.0))
        at |= _apart(row, wanted)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 1
        for row in ranks if down else reversed(ranks):
            near = {one: _mean([at[other] for other in neighbours[one][0 if down else 1]]) for one in row}
            at |= _apart(row, {one: near[one] if near[one] is not None else at[one] for one in row})
    return at


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _apart(row: Sequence[str], wanted: Mapping[str, float | None]) -> dict[str, float]:
    """The row in its order, with enough room between its places, as near to the wanted ones as that allows."""
    found: dict[str, float] = {}
    edge = shift = 0.0
    for number, one in enumerate(row):
        half = _width(one) / 2
        least = edge + GAP_X + half if number else float("-inf")
        want = wanted[one]
        found[one] = max(least, least if want is None and number else want or 0.0)
        shift += found[one] - (found[one] if want is None else want)
        edge = found[one] + half
    back = shift / max(len(row), 1)
    return {one: middle - back for one, middle in found.items()}


def _width(place: str) -> int:
    return LINE_W if place.startswith("\0") else NODE_W


def _curve(points: Sequence[tuple[float, float]], later: bool) -> Line:
    """Through the middle of each place, straight past the ranks between the ends."""
    (x, y), *others = points
    y += NODE_H
    path = [f"M{x:.1f} {y:.1f}"]
    for number, (to_x, to_y) in enumerate(others, 1):
        bend = (to_y - y) * 0.6
        path.append(f"C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
        if number < len(others):
            y += NODE_H
            path.append(f"V{y:.1f}")
    return Line(" ".join(path), later)


def _is_later(name: str, shown: Mapping[str, Shown]) -> bool:
    status = shown[name].status
    return bool(status) and status not in PASSED


# -- a list with a rail ----------------------------------------------------------------------------


def _railed(
    before: Mapping[str, Sequence[str]], shown: Mapping[str, Shown], make: Callable[[str, float, float], Node]
) -> Drawing:
    rows = {name: number for number, name in enumerate(before)}
    after: dict[str, list[str]] = {name: [one for one in before if name in before[one]] for name in before}
    lanes = _lanes(before, after, rows)
    nodes = [make(name, _lane_x(lanes[name]), rows[name] * ROW_H + ROW_H / 2) for name in before]
    lines = [
        _rail(_lane_x(lanes[one]), rows[one], _lane_x(lanes[name]), rows[name], name in _own(one, before, after), later)
        for name, names in before.items()
        for one in names
        for later in [_is_later(one, shown)]
    ]
    used = min(max(lanes.values(), default=0) + 1, MOST_LANES)
    return Drawing(used * LANE_W + 12, len(rows) * ROW_H, nodes, lines)


def _own(name: str, before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]) -> list[str]:
    """The steps whose first line comes from this one."""
    return [one for one in after[name] if before[one][0] == name]


def _lanes(
    before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]], rows: Mapping[str, int]
) -> dict[str, int]:
    """The first step after another one goes on in its lane; each further one opens the next free lane."""
    lanes: dict[str, int] = {}
    free_from: list[int] = []
    """By lane: the row from which it is free again."""

    def take(row: int, until: int) -> int:
        lane = next((number for number, free in enumerate(free_from) if free <= row), None)
        if lane is None:
            free_from.append(until)
            return len(free_from) - 1
        free_from[lane] = until
        return lane

    for name, row in rows.items():
        last = max((rows[one] for one in after[name]), default=row)
        if name not in lanes:
            lanes[name] = take(row, last + 1)
        lane = lanes[name]
        free_from[lane] = max(free_from[lane], last + 1)
        for number, one in enumerate(_own(name, before, after)):
            lanes[one] = lane if number == 0 else take(row + 1, rows[one] + 1)
    return lanes


def _lane_x(lane: int) -> float:
    return 16 + min(lane, MOST_LANES - 1) * LANE_W


def _rail(x: float, row: int, to_x: float, to_row: int, own: bool, later: bool) -> Line:
    """A branch leaves its lane at the top of its line, a join enters one at the bottom."""
    y, to_y = row * ROW_H + ROW_H / 2 + 8, to_row * ROW_H + ROW_H / 2 - 8
    if x == to_x:
        return Line(f"M{x} {y}V{to_y}", later)
    bend = ROW_H - 16
    if own:
        return Line(f"M{x} {y}C{x} {y + bend / 2} {to_x} {y + bend / 2} {to_x} {y + bend}V{to_y}", later)
    return Line(f"M{x} {y}V{to_y - bend}C{x} {to_y - bend / 2} {to_x} {to_y - bend / 2} {to_x} {to_y}", later)
