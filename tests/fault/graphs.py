"""Random graphs of up to 30 steps: declared as flows, and worked out in memory to know what has to come out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tests.fault.journal import Pen
from treadle import Context, Queue, Retry
from treadle.policy.graph import depending, ends, links

Payload = dict[str, Any]
MOST_STEPS = 30
ITEMS = 12


class Step(NamedTuple):
    """Satisfies `policy.graph.Declared`."""

    name: str
    after: tuple[str, ...] | None
    kind: str
    """`async`, `thread`, `map`, `external`, `skipped` or `shaky`: it fails on the job's first attempt."""


class Graph(NamedTuple):
    topic: str
    steps: list[Step]

    def before(self, name: str) -> tuple[str, ...]:
        return links(self.steps)[name]

    @property
    def external(self) -> list[str]:
        return [step.name for step in self.steps if step.kind == "external"]

    def results(self) -> dict[str, Any]:
        """What every step returns."""
        found: dict[str, Any] = {}
        for step in self.steps:
            found[step.name] = _value(step, [found[one] for one in self.before(step.name)])
        return found

    def result(self) -> Any:
        found, last = self.results(), ends(self.steps)
        return found[last[0]] if len(last) == 1 else {name: found[name] for name in last}

    def depending(self, name: str) -> set[str]:
        return depending(self.steps, name)


def _value(step: Step, inputs: list[Any]) -> Any:
    if step.kind == "skipped":
        return None
    if step.kind == "external":
        return answer_to(step.name)
    value = _sum(step.name, inputs)
    return [value + item for item in range(ITEMS)] if step.kind == "map" else value


def answer_to(name: str) -> int:
    return len(name) * 1000


def _sum(name: str, inputs: list[Any]) -> int:
    total = sum(map(ord, name))
    for one in inputs:
        total += one or 0 if one is None or isinstance(one, int) else sum(one)
    return total % 1_000_003


def random_graph(seed: int) -> Graph:
    random = Random(seed)
    steps: list[Step] = []
    for number in range(random.randrange(2, MOST_STEPS + 1)):
        names = [step.name for step in steps]
        after = None if random.random() < 0.3 else tuple(random.sample(names, min(len(names), random.randrange(4))))
        kind = random.choices(["async", "thread", "map", "external", "skipped", "shaky"], [8, 3, 2, 1, 1, 1])[0]
        steps.append(Step(f"s{number}", after, kind))
    return Graph(f"graph_{seed}", steps)


def make_graphs(url: str, pen: Pen, seeds: range) -> Queue:
    queue = Queue(url)
    for seed in seeds:
        _declare(queue, pen, random_graph(seed))
    return queue


def _declare(queue: Queue, pen: Pen, graph: Graph) -> None:
    flow = queue.flow(graph.topic, retry=Retry(50, backoff="fixed", delay="20ms"), parallel=5)
    listing = any(step.kind == "map" for step in graph.steps)
    for step in graph.steps:
        after = None if step.after is None else list(step.after)
        if step.kind == "external":
            flow.external(step.name, after=after)
        elif step.kind == "map" and listing:
            source = _source(flow, graph, step, after)
            flow.step(name=step.name, map=source, limit=4)(_mapped(graph, step, pen))
        else:
            when = (lambda ctx, payload: False) if step.kind == "skipped" else None
            flow.step(name=step.name, after=after, when=when)(_plain(graph, step, pen))


def _source(flow: Any, graph: Graph, step: Step, after: list[str] | None) -> str:
    """A step that returns the list to map over; the reference does not know it, and nothing else comes after it."""
    name = f"list_{step.name}"

    @flow.step(name=name, after=after)
    async def numbers(ctx: Context, payload: Payload) -> list[int]:
        return list(range(ITEMS))

    return name


def _mapped(graph: Graph, step: Step, pen: Pen) -> Callable[..., Any]:
    async def item(ctx: Context, payload: Payload, number: int) -> int:
        pen.write(f"{step.name}.{number}", ctx)
        await asyncio.sleep(0.002)  # work, in which it may be killed
        return _sum(step.name, [ctx.results[one] for one in graph.before(step.name)]) + number

    return item


def _plain(graph: Graph, step: Step, pen: Pen) -> Callable[..., Any]:
    def run(ctx: Context) -> int:
        pen.write(step.name, ctx)
        inputs = [ctx.results[one] for one in graph.before(step.name)]  # an error if one of them has not ended
        if step.kind == "shaky" and ctx.attempt == 1:
            raise RuntimeError("as told")
        return _sum(step.name, inputs)

    def in_thread(ctx: Context, payload: Payload) -> int:
        time.sleep(0.003)  # the same
        return run(ctx)

    async def on_loop(ctx: Context, payload: Payload) -> int:
        await asyncio.sleep(0.003)  # the same
        return run(ctx)

    return in_thread if step.kind == "thread" else on_loop
