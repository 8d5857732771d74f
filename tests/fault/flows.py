"""Flows that wait, fail and try again; each records what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fault.journal import Journal, Pen
from treadle import Context, Queue, Retry, WaitTimeout

Payload = dict[str, Any]
STUMBLING = ("one", "two", "three")


def add_flows(queue: Queue, pen: Pen) -> None:
    asking = queue.flow("asking", max_attempts=5)

    @asking.step
    async def prepare(ctx: Context, payload: Payload) -> None:
        pen.write("prepare", ctx)

    asking.external("approve")

    @asking.step
    async def publish(ctx: Context, payload: Payload) -> str:
        pen.write("start", ctx)
        pen.write("publish", ctx)
        pen.write("done", ctx)
        return str(ctx.results["approve"])

    @queue.job(max_attempts=5)
    def asking_briefly(ctx: Context) -> None:
        pen.write("start", ctx)
        ctx.step("prepare", pen.write, "prepare", ctx)
        try:
            ctx.wait_external("approve", timeout="1ms")
        except WaitTimeout:
            ctx.step("timeout", pen.write, "timeout", ctx)
        pen.write("done", ctx)

    add_families(queue, pen)
    add_unsteady_flows(queue, pen)


def add_families(queue: Queue, pen: Pen) -> None:
    @queue.job(max_attempts=5)
    async def leaf(ctx: Context, n: int) -> int:
        pen.write("start", ctx)
        pen.write("done", ctx)
        return n

    @queue.job(max_attempts=5)
    async def family(ctx: Context) -> Any:
        pen.write("start", ctx)
        one = await ctx.run(leaf, {"n": 1})
        many = await ctx.map("leaves", leaf, range(4), limit=2)
        pen.write("done", ctx)
        return [one, *many]


def add_unsteady_flows(queue: Queue, pen: Pen) -> None:
    stumbling = queue.flow("stumbling", max_attempts=1)
    for name in STUMBLING:
        stumbling.step(name=name)(_step(name, pen, fails=1 if name == "three" else 0))
    for topic, delay in (("retrying", "1ms"), ("retrying_later", "1h")):
        flow = queue.flow(topic, max_attempts=5)
        flow.step(name="before")(_step("before", pen))
        flow.step(name="flaky", retry=Retry(3, backoff="fixed", delay=delay))(_step("flaky", pen, fails=2))


def _step(name: str, pen: Pen, fails: int = 0) -> Callable[[Context, Payload], None]:
    """Fails the first times that it is called for a job, in any process."""

    def step(ctx: Context, payload: Payload) -> None:
        pen.write(name, ctx)
        if len(Journal(pen.path).by_job(name)[ctx.job_id]) <= fails:
            raise RuntimeError("as told")
        pen.write("done", ctx)

    return step
