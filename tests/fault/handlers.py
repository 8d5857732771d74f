"""Handlers of every kind; each records what it does."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.fault.crash import die
from tests.fault.flows import add_flows
from tests.fault.journal import Pen
from tests.waiting import until_blocking, work_until_told
from treadle import Concurrency, Context, Queue, Retry, Snooze
from treadle.model.errors import LeaseLost
from treadle.policy.lifecycle import Completed, decide
from treadle.store.protocol import Store
from treadle.store.values import Settlement, Touch

AGAIN_SOON = Retry(50, backoff="fixed", delay="50ms")


class Here(NamedTuple):
    """The process of a worker."""

    store: Store
    loop: asyncio.AbstractEventLoop


here: list[Here] = []

TOPICS = "quick threaded slow shaky gated parent child snoozer".split()
"""Topics with jobs that end by themselves, even if their workers are killed."""


def make_queue(url: str, pen: Pen) -> Queue:
    return add_handlers(Queue(url), pen)


def add_handlers(queue: Queue, pen: Pen) -> Queue:
    add_flows(queue, pen)
    flow = queue.flow("three_steps", max_attempts=5)

    @flow.step
    async def first(ctx: Context, payload: dict[str, Any]) -> int:
        pen.write("first", ctx)
        return 1

    @flow.step
    def second(ctx: Context, payload: dict[str, Any]) -> int:
        pen.write("second", ctx)
        return int(ctx.results["first"]) + 1

    @flow.step
    async def third(ctx: Context, payload: dict[str, Any]) -> int:
        pen.write("start", ctx)
        pen.write("third", ctx)
        pen.write("done", ctx)
        return int(ctx.results["second"]) + 1

    @queue.job(retry=AGAIN_SOON)
    async def quick(ctx: Context) -> str:
        pen.write("start", ctx)
        pen.write("done", ctx)
        return ctx.job_id

    @queue.job(retry=AGAIN_SOON)
    def threaded(ctx: Context, payload: dict[str, Any]) -> None:
        pen.write("start", ctx)
        time.sleep(payload.get("ms", 2) / 1000)  # its work
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def slow(ctx: Context, payload: dict[str, Any]) -> None:
        pen.write("start", ctx)
        ctx.progress(10, "begun")
        await asyncio.sleep(payload.get("ms", 30) / 1000)  # its work
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def shaky(ctx: Context) -> None:
        pen.write("start", ctx)
        if _unlucky(ctx):
            raise RuntimeError("shaky, as told")
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON, concurrency=Concurrency("queue_same_scope", keys=("input.key",), limit=2))
    async def gated(ctx: Context) -> None:
        pen.write("start", ctx)
        await asyncio.sleep(0.002)  # its work
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def parent(ctx: Context) -> None:
        pen.write("start", ctx)
        await ctx.enqueue("child", {}, idempotency_key=ctx.job_id, max_attempts=50)
        pen.write("done", ctx)

    queue.register("child", quick.handler.function, retry=AGAIN_SOON)

    @queue.job(retry=AGAIN_SOON)
    async def snoozer(ctx: Context) -> None:
        pen.write("start", ctx)
        if _unlucky(ctx):
            raise Snooze("30ms")
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def deadly(ctx: Context, payload: dict[str, Any]) -> None:
        """Kills its worker, halfway or after its effect, on its first `attempts` attempts."""
        pen.write("start", ctx)
        fatal = ctx.attempt <= payload.get("attempts", 1)
        if fatal and payload.get("when") == "midway":
            die()
        pen.write("effect", ctx)
        if fatal:
            die()
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def doomed(ctx: Context) -> None:
        """Fails on its first attempt."""
        pen.write("start", ctx)
        if ctx.attempt == 1:
            raise RuntimeError("doomed, as told")
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def blocking(ctx: Context, payload: dict[str, Any]) -> None:
        """Blocks the event loop, as no coroutine should."""
        pen.write("start", ctx)
        time.sleep(payload["ms"] / 1000)  # its work
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def beating(ctx: Context, payload: dict[str, Any]) -> None:
        pen.write("start", ctx)
        until = time.monotonic() + payload["ms"] / 1000
        while time.monotonic() < until:
            await ctx.heartbeat()
            await asyncio.sleep(0.02)  # its work
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def patient(ctx: Context) -> None:
        """Waits on its first attempt until it is stopped."""
        pen.write("start", ctx)
        try:
            if ctx.attempt == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            pen.write("told", ctx)
            raise
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    async def stubborn(ctx: Context) -> None:
        """Waits without end on its first attempt and won't be stopped."""
        pen.write("start", ctx)
        while ctx.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pen.write("told", ctx)
        pen.write("done", ctx)

    @queue.job(retry=AGAIN_SOON)
    def frozen(ctx: Context, payload: dict[str, Any]) -> None:
        """On its first attempt: waits until it has been thawed, then tries every write of an owner."""
        pen.write("start", ctx)
        if ctx.attempt == 1:
            _until_there(Path(payload["thawed"]))
            _write_as_if_still_owner(ctx, pen)
            _until_told(ctx, pen)
        pen.write("done", ctx)

    def _write_as_if_still_owner(ctx: Context, pen: Pen) -> None:
        job, store = ctx._call.job, here[0].store
        ending = Settlement(job, decide(job, Completed('"stale"')), 1)
        if ask(store.settle([ending])) == [ending]:
            pen.write("refused_ending", ctx)
        if ask(store.touch(job.lease, [Touch(job.n, job.token, 1, 50, "stale")])) == [(job.n, job.token)]:
            pen.write("refused_progress", ctx)
        if not ask(store.renew(job.lease, 60_000)):
            pen.write("refused_renewal", ctx)

    def ask(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, here[0].loop).result(30)

    return queue


def _unlucky(ctx: Context) -> bool:
    """Sometimes, by the token, which is new with each claim."""
    return random.Random(ctx._call.job.token).random() < 0.4


def _until_there(path: Path) -> None:
    until_blocking(path.exists, 600, every=0.002)


def _until_told(ctx: Context, pen: Pen) -> None:
    try:
        work_until_told(ctx)
    except LeaseLost:
        pen.write("told", ctx)
        raise


def in_own_process(ctx: Context, payload: dict[str, Any]) -> None:
    """For `process=True`: imported by name in a child process."""
    pen = Pen(payload["journal"], f"child-of-{os.getppid()}")
    pen.write("start", ctx)
    if payload.get("die") and ctx.attempt <= payload["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    while ctx.attempt == 1 and payload.get("linger"):
        pen.write("alive", ctx)
        time.sleep(0.02)  # its work
    pen.write("done", ctx)
