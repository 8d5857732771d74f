"""`ctx.enqueue(…, with_outcome=True)` in a step: the new job is stored with the end of its step."""

import asyncio
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import after_failures, ended, in_status, until
from tests.worker import wait_handlers as handlers
from tests.worker.conftest import Start
from treadle import Concurrency, Context, Job, Queue, Retry, Status
from treadle.model.errors import StoreBusy

IN_STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "coroutine": (handlers.follows_up_in_a_step, {}),
    "thread": (handlers.follows_up_in_a_step_in_thread, {}),
    "process": (handlers.follows_up_in_a_step_in_thread, {"process": True}),
    "async process": (handlers.follows_up_in_a_step, {"process": True}),
}
LATER = Retry(2, backoff="fixed", delay="1h")
SOON = Retry(2, backoff="fixed", delay="1ms")


async def follow_ups(queue: Queue) -> list[Any]:
    return sorted((job.payload or {}).get("of", "") for job in await queue.list(topic="next"))


@pytest.mark.parametrize("kind", [*IN_STEPS, "flow"])
async def test_it_is_there_though_the_job_parks_after_the_step(queue: Queue, start: Start, kind: str) -> None:
    """And once only, when the job has completed."""
    if kind == "flow":
        flow = queue.flow("orders", retry=SOON)
        flow.step(name="pay")(handlers.enqueues)
        flow.external("approve")
    else:
        function, options = IN_STEPS[kind]
        queue.register("orders", function, retry=SOON, **options)
    job = await queue.enqueue("orders", {"waits": True})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    assert await follow_ups(queue) == ["pay"]
    await queue.signal(job.id, "approve", "yes")
    assert (await ended(queue, job)).status is Status.COMPLETED
    assert await follow_ups(queue) == ["pay"]


@pytest.mark.parametrize("kind", [*IN_STEPS, "flow"])
async def test_it_is_there_though_the_attempt_fails_after_the_step(queue: Queue, start: Start, kind: str) -> None:
    if kind == "flow":
        flow = queue.flow("orders", retry=LATER)
        flow.step(name="pay")(handlers.enqueues)

        @flow.step
        async def ship(ctx: Context, payload: dict[str, Any]) -> None:
            raise ValueError("no van")
    else:
        function, options = IN_STEPS[kind]
        queue.register("orders", function, retry=LATER, **options)
    job = await queue.enqueue("orders", {"fails": True})
    await start(queue)
    await after_failures(queue, job, 1)
    assert await follow_ups(queue) == ["pay"]


async def test_a_step_that_fails_stores_none_of_its_tries(queue: Queue, start: Start) -> None:
    tries: list[int] = []

    @queue.job(max_attempts=1)
    async def orders(ctx: Context) -> None:
        async def pay() -> None:
            tries.append(1)
            await ctx.enqueue("next", {"of": f"try {len(tries)}"}, with_outcome=True)
            if len(tries) < 3:
                raise ValueError("not yet")

        await ctx.step("pay", pay, retry=Retry(3, backoff="fixed", delay="1ms"))

    job = await orders.enqueue()
    await start(queue)
    assert (await ended(queue, job)).status is Status.COMPLETED
    assert await follow_ups(queue) == ["try 3"]


async def test_each_step_has_its_own(queue: Queue, start: Start) -> None:
    """Gathered steps, a step in a step, and the handler around them, which is the only one that fails."""

    @queue.job(max_attempts=1)
    async def orders(ctx: Context) -> None:
        async def inner(name: str) -> None:
            await ctx.enqueue("next", {"of": name}, with_outcome=True)

        async def outer() -> None:
            await ctx.enqueue("next", {"of": "outer"}, with_outcome=True)
            await ctx.step("inner", inner, "inner")
            raise ValueError("outer fails")

        await ctx.enqueue("next", {"of": "handler"}, with_outcome=True)
        await asyncio.gather(*(ctx.step("one", inner, f"one {i}", key=i) for i in range(3)))
        await ctx.step("outer", outer)

    job = await orders.enqueue()
    await start(queue)
    assert (await ended(queue, job)).status is Status.FAILED
    assert await follow_ups(queue) == ["inner", "one 0", "one 1", "one 2"]


@pytest.mark.parametrize("kind", ["coroutine", "process", "flow"])
async def test_a_refused_one_fails_its_step(queue: Queue, start: Start, kind: str) -> None:
    async def idle() -> None: ...

    queue.register("next", idle, concurrency=Concurrency("reject_same_scope"))
    if kind == "flow":
        flow = queue.flow("orders", retry=SOON)
        flow.step(name="pay")(handlers.enqueues)
    else:
        function, options = IN_STEPS[kind]
        queue.register("orders", function, retry=SOON, **options)
    await queue.pause("next")
    first = await queue.enqueue("next")
    job = await queue.enqueue("orders", {})
    await start(queue)
    found = await ended(queue, job)
    assert (found.status, found.error_type, found.attempt) == (Status.FAILED, "FollowUpRefused", 1)
    assert (found.steps[0]["status"], "was refused" in found.steps[0]["error"]) == ("failed", True)
    assert [one.id for one in await queue.list(topic="next")] == [first.id]


async def test_an_answer_that_got_lost_stores_it_once(queue: FaultyQueue, start: Start) -> None:
    function, _ = IN_STEPS["coroutine"]
    queue.register("orders", function)
    queue.faults.fail("checkpoint", times=1, lose_answer=True)
    job = await queue.enqueue("orders", {})
    await start(queue)
    assert (await ended(queue, job)).status is Status.COMPLETED
    assert queue.faults.calls["checkpoint"] >= 2
    assert await follow_ups(queue) == ["pay"]


async def test_a_locked_key_holds_up_only_its_own_step(queue: FaultyQueue, start: Start) -> None:
    """Steps of other jobs are stored; this one follows when the key is free."""
    locked = True

    @queue.job
    async def orders(ctx: Context, payload: dict[str, Any]) -> None:
        async def pay() -> None:
            if payload["follows"]:
                await ctx.enqueue("next", {"of": "pay"}, with_outcome=True)

        await ctx.step("pay", pay)

    async def checkpoint(call: Any, lease: int, checkpoints: Any) -> Any:
        if locked and any(one.jobs for one in checkpoints):
            raise StoreBusy("a key is locked")
        return await call(lease, checkpoints)

    queue.faults.around("checkpoint", checkpoint)
    job = await orders.enqueue({"follows": True})
    await start(queue)
    await until(lambda: queue.faults.calls["checkpoint"] >= 3)
    assert (await ended(queue, await orders.enqueue({"follows": False}))).status is Status.COMPLETED
    assert (await job.refresh()).status is Status.PROCESSING
    locked = False
    assert (await ended(queue, job)).status is Status.COMPLETED
    assert await follow_ups(queue) == ["pay"]


async def test_one_after_its_step_has_ended_is_refused(queue: Queue, start: Start) -> None:
    late: list[asyncio.Task[Job]] = []
    done = asyncio.Event()

    @queue.job(max_attempts=1)
    async def orders(ctx: Context) -> str:
        async def pay() -> None:
            async def afterwards() -> Any:
                await done.wait()
                return await ctx.enqueue("next", with_outcome=True)

            late.append(asyncio.create_task(afterwards()))

        await ctx.step("pay", pay)
        done.set()
        await asyncio.wait(late)
        return str(late[0].exception())

    job = await orders.enqueue()
    await start(queue)
    assert "step pay has ended" in str(await job.result("30s"))
    assert await queue.count(topic="next") == 0
