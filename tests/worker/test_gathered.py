"""Thousands of gathered steps and waits: linear work, a loop that others can use, and nothing left behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.counting import counted
from tests.faulty import FaultyQueue
from tests.waiting import after_failures, ended, event_types, give_way, in_status, until
from tests.worker import wait_handlers as handlers
from tests.worker.conftest import Start
from treadle import Context, Job, Queue, Retry, Status

SOON = Retry(3, backoff="fixed", delay="1ms")
LATER = Retry(3, backoff="fixed", delay="1h")


# -- waits cost nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["wait", "sleep"])
async def test_waits_cost_nothing_while_nothing_happens(queue: Queue, start: Start, what: str) -> None:
    """A branch works meanwhile, so the job is not set aside."""
    assert await _idle_work(queue, start, what, 1000) < 2 * await _idle_work(queue, start, what, 1)


async def _idle_work(queue: Queue, start: Start, what: str, count: int) -> int:
    """Of the worker's loop in some turns, while so many waits are open."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def busy() -> None:
        begun.set()
        await go.wait()

    async def both(ctx: Context, payload: dict[str, Any]) -> None:
        if what == "wait":
            waits = [ctx.wait_external("approve", key=i) for i in range(count)]
        else:
            waits = [ctx.sleep("1h", key=i) for i in range(count)]
        await asyncio.gather(*waits, ctx.step("work", busy))

    topic = f"{what}s_{count}"
    queue.register(topic, both, max_attempts=1)
    worker = await start(queue)
    job = await queue.enqueue(topic, {})
    await begun.wait()
    assert worker._engine is not None
    steps = next(worker._engine.slots.running()).steps
    assert steps is not None
    await until(lambda: len(steps.branches.blocked()) == count)
    with counted() as work:
        await give_way(300)
    go.set()
    await until(lambda: _set_aside(queue, job))
    worker.stop()
    await worker.done
    return work.steps


async def _set_aside(queue: Queue, job: Job) -> bool:
    now = await queue.get(job.id)
    return now.status == Status.WAITING or (now.status == Status.PENDING and now.attempt == 0 and bool(now.steps))


# -- linear ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["step", "careful step", "failing step", "wait"])
async def test_the_work_of_gathered_steps_is_linear(queue: Queue, start: Start, what: str) -> None:
    """Calls and returns on the worker's loop, for n and for 8 n."""
    few, many = await _work_a_step(queue, start, what, 150), await _work_a_step(queue, start, what, 1200)
    assert many < few * 1.25


async def _work_a_step(queue: Queue, start: Start, what: str, count: int) -> float:
    failed: set[int] = set()

    async def one(i: int) -> int:
        if what == "failing step" and i not in failed:
            failed.add(i)
            raise ValueError("once")
        return i

    async def gathers(ctx: Context, payload: dict[str, Any]) -> None:
        if what == "wait":
            await asyncio.gather(*(ctx.wait_external("w", key=i) for i in range(count)))
        retry = SOON if what == "failing step" else None
        careful = what == "careful step"
        steps = [ctx.step("s", one, i, key=i, retry=retry, cancelable=not careful) for i in range(count)]
        await asyncio.gather(*steps)

    topic = f"many_{count}"
    queue.register(topic, gathers, max_attempts=1, timeout="10m")
    worker = await start(queue)
    with counted() as work:
        job = await queue.enqueue(topic, {})
        seen = await (in_status(queue, job, Status.WAITING) if what == "wait" else ended(queue, job))
    worker.stop()
    await worker.done
    assert seen.steps[0]["items"]["total"] == count
    return work.steps / count


async def test_gathered_steps_begin_in_turns(queue: Queue, start: Start) -> None:
    """No turn of the loop does more for 2,000 steps than for 250."""
    assert await _most_in_a_turn(queue, start, 2000) <= max(await _most_in_a_turn(queue, start, 250), 50)


async def _most_in_a_turn(queue: Queue, start: Start, count: int) -> int:
    turns = [0]

    async def one() -> None:
        turns[-1] += 1

    async def gathers(ctx: Context, payload: dict[str, Any]) -> None:
        async with _each_turn(turns):
            await asyncio.gather(*(ctx.step("s", one, key=i) for i in range(count)))

    queue.register(f"turns_{count}", gathers, max_attempts=1, timeout="10m")
    worker = await start(queue)
    job = await queue.enqueue(f"turns_{count}", {})
    assert (await ended(queue, job)).status is Status.COMPLETED
    worker.stop()
    await worker.done
    return max(turns)


@contextlib.asynccontextmanager
async def _each_turn(turns: list[int]) -> AsyncIterator[None]:
    """Begins a new number at every turn of the loop."""

    async def beat() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)  # one beat a turn

    turns.append(0)
    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()


async def test_a_job_with_thousands_of_steps_holds_up_no_other(queue: FaultyQueue, start: Start) -> None:
    """Its neighbour's step is in one of the next writes, not after all of its own."""
    writes: list[set[str]] = []
    all_ran, ended_too = asyncio.Event(), asyncio.Event()
    left = 2000

    async def checkpoint(call: Any, lease: int, checkpoints: Any) -> Any:
        await ended_too.wait()
        writes.append({step.name for one in checkpoints for step in one.steps})
        return await call(lease, checkpoints)

    queue.faults.around("checkpoint", checkpoint)

    @queue.job(max_attempts=1)
    async def many(ctx: Context) -> None:
        async def one() -> None:
            nonlocal left
            left -= 1
            if not left:
                all_ran.set()

        await asyncio.gather(*(ctx.step("mine", one, key=i) for i in range(2000)))

    @queue.job(max_attempts=1)
    async def single(ctx: Context) -> None:
        await all_ran.wait()
        step = asyncio.ensure_future(ctx.step("neighbours", give_way))
        await give_way(50)
        ended_too.set()
        await step

    await start(queue, slots=2)
    jobs = [await many.enqueue(), await single.enqueue()]
    for job in jobs:
        assert (await ended(queue, job)).status is Status.COMPLETED
    assert ["neighbours" in write for write in writes].index(True) <= 4 < len(writes)


# -- nothing outlives its attempt --------------------------------------------------------------------


@pytest.mark.parametrize("flow", [False, True])
async def test_a_gathered_step_is_over_before_its_attempt_is_settled(queue: Queue, start: Start, flow: bool) -> None:
    running: list[int] = []
    most: list[int] = []

    async def slow(ctx: Context) -> None:
        running.append(1)
        most.append(len(running))
        try:
            await asyncio.Event().wait()
        finally:
            await give_way(3)
            running.pop()

    async def wrong(ctx: Context) -> None:
        await until(lambda: running)
        raise ValueError("no")

    async def both(ctx: Context, payload: dict[str, Any]) -> None:
        await asyncio.gather(ctx.step("slow", slow, ctx), ctx.step("wrong", wrong, ctx))

    if flow:
        queue.flow("both", retry=SOON).step(name="outer")(both)
    else:
        queue.register("both", both, retry=SOON)
    job = await queue.enqueue("both", {})
    await start(queue)
    seen = await ended(queue, job)
    assert (seen.status, seen.attempt) == (Status.FAILED, 3)
    assert (running, max(most)) == ([], 1)


async def test_a_step_that_a_cancel_must_wait_for_is_waited_for(queue: Queue, start: Start) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def careful() -> str:
        begun.set()
        await go.wait()
        return "careful"

    async def wrong() -> None:
        await begun.wait()
        raise ValueError("no")

    @queue.job(retry=LATER)
    async def both(ctx: Context) -> None:
        await asyncio.gather(ctx.step("careful", careful, cancelable=False), ctx.step("wrong", wrong))

    job = await both.enqueue()
    await start(queue)
    await until(lambda: _failed_once(queue, job))
    assert (await job.refresh()).status is Status.PROCESSING
    go.set()
    seen = await after_failures(queue, job, 1)
    assert {step["id"]: step["status"] for step in seen.steps} == {"careful": "completed", "wrong": "failed"}


async def _failed_once(queue: Queue, job: Job) -> bool:
    return any(step["status"] == "failed" for step in (await queue.get(job.id)).steps)


async def test_no_step_begins_after_its_handler_has_ended(queue: Queue, start: Start) -> None:
    late: list[asyncio.Task[Any]] = []
    go, ran = asyncio.Event(), list[int]()

    async def run() -> None:
        ran.append(1)

    @queue.job(max_attempts=1)
    async def leaves(ctx: Context) -> None:
        async def afterwards() -> None:
            await go.wait()
            await ctx.step("late", run)

        await ctx.step("first", give_way)
        late.append(asyncio.create_task(afterwards()))

    job = await leaves.enqueue()
    await start(queue)
    assert (await ended(queue, job)).status is Status.COMPLETED
    go.set()
    await asyncio.wait(late)
    assert "has ended" in str(late[0].exception())
    assert ran == []


async def test_a_wait_that_was_left_behind_ends_with_its_handler(queue: Queue, start: Start) -> None:
    tasks: list[asyncio.Task[Any]] = []

    @queue.job(retry=LATER)
    async def leaves(ctx: Context) -> None:
        async def wrong() -> None:
            raise ValueError("no")

        tasks.append(asyncio.create_task(ctx.wait_external("approve")))
        await ctx.step("first", give_way)
        await ctx.step("wrong", wrong)

    job = await leaves.enqueue()
    await start(queue)
    await after_failures(queue, job, 1)
    assert all(task.cancelled() for task in tasks)


# -- several waits that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "group"])
async def test_after_two_timeouts_the_next_attempt_waits_again_for_both(queue: Queue, start: Start, kind: str) -> None:
    function = handlers.two_short_waits_in_a_group if kind == "group" else handlers.two_short_waits
    queue.register("both", function, retry=Retry(2, backoff="fixed", delay="1h"))
    job = await queue.enqueue("both", {"timeout": "50ms"})
    await start(queue)
    seen = await after_failures(queue, job, 1)
    assert {step["status"] for step in seen.steps} == {"failed"}
    for name in ("one", "two"):
        await queue.signal(job.id, name, name)  # each is kept for the next attempt
    await queue.reschedule(job.id, run_at=job.created_at)
    assert await job.result("30s") == ["one", "two"]


async def test_a_timeout_that_one_branch_has_caught_stays_caught(queue: Queue, start: Start) -> None:
    """The wait that nobody caught is waited for again."""
    queue.register("both", handlers.catches_the_first_of_two_waits, retry=LATER)
    job = await queue.enqueue("both", {"timeout": "50ms"})
    await start(queue)
    await after_failures(queue, job, 1)
    await queue.signal(job.id, "two", 2)
    await queue.reschedule(job.id, run_at=job.created_at)
    assert await job.result("30s") == ["WaitTimeout", 2]
    assert (await event_types(queue, job)).count("job:waiting") == 2


# -- hooks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["answer", "early answer", "skipped"])
async def test_on_success_is_called_whatever_the_last_step_is(queue: Queue, start: Start, last: str) -> None:
    heard: list[Any] = []
    flow = queue.flow("orders", max_attempts=1)
    flow.step(name="first")(_first)
    if last == "skipped":
        flow.step(name="second", when=lambda ctx, payload: False)(_first)
    else:
        flow.external("approve", answer=dict[str, int])

    @queue.on_success
    async def hear(ctx: Context, result: Any) -> None:
        heard.append((ctx.job_id, result))

    job = await flow.enqueue({})
    if last == "early answer":
        await queue.signal(job.id, "approve", {"amount": 3})
    await start(queue)
    if last == "answer":
        await in_status(queue, job, Status.WAITING)
        await queue.signal(job.id, "approve", {"amount": 3})
    result = await job.result("30s")
    assert result == (None if last == "skipped" else {"amount": 3})
    await until(lambda: heard)
    assert heard == [(job.id, result)]


async def _first(ctx: Context, payload: dict[str, Any]) -> int:
    return 7
