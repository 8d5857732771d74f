"""Plain functions that a coroutine makes steps: in threads of the worker's own, a few per job, never twice at once."""

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.waiting import ended, until
from tests.worker.conftest import Start
from treadle import Context, Job, Queue, Retry
from treadle.worker.threads import PLACES

SOON = Retry(3, backoff=[0.001])


class Gate:
    """Functions wait here, and are counted."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = self.most = self.calls = 0
        self._lock = threading.Lock()

    def enter(self, number: int = 0) -> int:
        with self._lock:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.open.wait(60)
        with self._lock:
            self.inside -= 1
        return number


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_a_job_with_many_blocking_steps_leaves_threads_for_others(queue: Queue, start: Start, gate: Gate) -> None:
    @queue.job
    async def many(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.step("wait", gate.enter, n, key=n) for n in range(100)))

    @queue.job
    async def other(ctx: Context) -> int:
        return int(await ctx.step("quick", lambda: 7))

    await start(queue)
    jobs = [await many.enqueue() for _ in range(5)]
    await until(lambda: gate.inside == 5 * PLACES)
    assert await (await other.enqueue()).result("30s") == 7
    assert gate.most == 5 * PLACES
    gate.open.set()
    for job in jobs:
        assert await job.result("60s") == list(range(100))


async def test_the_users_own_threads_and_those_of_steps_do_not_wait_for_each_other(
    queue: Queue, start: Start, gate: Gate
) -> None:
    @queue.job
    async def holds_threads() -> None:
        await asyncio.gather(*(asyncio.to_thread(gate.enter) for _ in range(64)))

    @queue.job
    async def other(ctx: Context) -> int:
        return int(await ctx.step("quick", lambda: 7))

    await start(queue)
    held = await holds_threads.enqueue()
    await until(lambda: gate.inside > 0)
    assert await (await other.enqueue()).result("30s") == 7
    gate.open.set()
    assert (await ended(queue, held)).status == "completed"


async def test_the_time_of_a_step_begins_when_its_function_does(queue: Queue, start: Start, gate: Gate) -> None:
    def slow() -> None:
        time.sleep(0.1)  # its work

    @queue.job(max_attempts=1)
    async def many(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step("slow", slow, key=n, timeout="10s") for n in range(PLACES * 3)))

    @queue.job(max_attempts=1)
    async def waits_in_line(ctx: Context) -> list[int]:
        held = [ctx.step("held", gate.enter, n, key=n) for n in range(PLACES)]
        in_line = ctx.step("in_line", gate.enter, 7, timeout="300ms")
        asyncio.get_running_loop().call_later(0.5, gate.open.set)
        return await asyncio.gather(*held, in_line)

    await start(queue)
    assert (await ended(queue, await many.enqueue())).status == "completed"
    job = await ended(queue, await waits_in_line.enqueue())
    assert (job.status, job.last_error) == ("completed", None)


async def test_a_function_over_its_time_is_not_tried_again_while_it_still_runs(
    queue: Queue, start: Start, gate: Gate
) -> None:
    def slow_at_first() -> str:
        if not gate.calls:
            gate.enter()
        else:
            gate.calls += 1
            assert not gate.inside
        return "done"

    @queue.job(max_attempts=1)
    async def tries(ctx: Context) -> str:
        return str(await ctx.step("slow", slow_at_first, timeout="50ms", retry=SOON))

    await start(queue)
    job = await tries.enqueue()
    await until(lambda: gate.inside)
    asyncio.get_running_loop().call_later(0.3, gate.open.set)
    assert await job.result("30s") == "done"
    assert (gate.calls, gate.most) == (2, 1)


async def test_a_function_sees_the_limit_of_its_own_step_when_it_asks(queue: Queue, start: Start) -> None:
    asked = threading.Event()

    def asks(ctx: Context) -> None:
        while True:
            asked.set()
            ctx.check_cancelled()
            time.sleep(0.005)  # a handler that looks now and then

    @queue.job(max_attempts=1)
    async def limited(ctx: Context) -> str:
        first = asyncio.ensure_future(ctx.step("limited", asks, ctx, timeout="50ms"))
        await until(asked.is_set)
        ctx.check_cancelled()
        with pytest.raises(TimeoutError, match="step limited ran longer than its limit of 50ms"):
            await first
        ctx.check_cancelled()
        return "went on"

    await start(queue)
    assert await (await limited.enqueue()).result("30s") == "went on"


async def test_a_function_that_ends_after_a_cancel_is_kept_and_does_not_outlive_its_attempt(
    queue: Queue, start: Start, gate: Gate
) -> None:
    @queue.job
    async def cancelled(ctx: Context) -> None:
        await ctx.step("slow", gate.enter, 7)
        raise AssertionError("no code of the handler follows")

    worker = await start(queue)
    job = await cancelled.enqueue()
    await until(lambda: gate.inside)
    await queue.cancel(job.id)
    running = worker._engine.slots.slots if worker._engine else []
    await until(lambda: any(slot.attempt and slot.attempt.interrupt for slot in running))
    assert (await job.refresh()).status == "cancelling"
    gate.open.set()
    job = await ended(queue, job)
    assert (job.status, _states(job)) == ("cancelled", {"slow": "completed"})


def _states(job: Job) -> dict[str, Any]:
    return {step["id"]: step["status"] for step in job.steps}


# -- a cancel that waited for a step -------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [True, False])
async def test_a_cancel_that_waited_for_a_step_ends_its_job_when_the_step_ends(
    queue: Queue, start: Start, wait: bool
) -> None:
    """It is asked while a step inside of a declared one must finish; the declared one ends without another await."""
    inside, let_go = asyncio.Event(), asyncio.Event()

    async def must_finish() -> str:
        inside.set()
        await let_go.wait()
        return "done"

    flow = queue.flow("careful")

    @flow.step
    async def outer(ctx: Context, payload: object) -> str:
        done = await ctx.step("inner", must_finish, cancelable=False)
        if wait:
            await asyncio.sleep(0)  # one turn of the loop
        return str(done)

    @flow.step
    async def after(ctx: Context, payload: object) -> str:
        raise AssertionError("no step begins once a cancel was asked")

    worker = await start(queue, slots=1)
    job = await queue.enqueue("careful")
    await asyncio.wait_for(inside.wait(), 60)
    await queue.cancel(job.id)
    running = worker._engine.slots.slots if worker._engine else []
    await until(lambda: any(slot.attempt and slot.attempt.interrupt for slot in running))
    let_go.set()
    job = await ended(queue, job, 20)  # sooner than the grace
    assert job.status == "cancelled"
    assert (await event_messages(queue, job))[-1] != "timeout: the handler did not stop within the grace period"
    assert _states(job)["after"] == "cancelled"
    assert worker.metrics.stuck == 0
    await until(lambda: worker.metrics.free_slots() == 1)


async def event_messages(queue: Queue, job: Job) -> list[str]:
    return [event.message for event in await queue.events(job.id)]
