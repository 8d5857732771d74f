"""`current_context()`, in whatever a handler or a step calls."""

import asyncio
from typing import Any

import pytest

from tests.worker import child_handlers as handlers
from tests.worker.conftest import Start
from treadle import Context, Queue, current_context


async def test_code_without_ctx_finds_its_context(queue: Queue, start: Start) -> None:
    @queue.job
    async def coroutine() -> str:
        await asyncio.sleep(0)  # goes on in another turn of the loop
        await current_context().progress(30)
        return await asyncio.create_task(_id())

    @queue.job
    def thread() -> str:
        return current_context().job_id

    await start(queue)
    for task in (coroutine, thread):
        job = await task.enqueue()
        assert await job.result("30s") == job.id


async def _id() -> str:
    return current_context().job_id


async def test_it_is_the_handlers_own(queue: Queue, start: Start) -> None:
    @queue.job
    async def coroutine(ctx: Context) -> list[bool]:
        async def inner() -> bool:
            return current_context() is ctx

        def in_thread() -> bool:
            return current_context() is ctx

        return [await ctx.step("on the loop", inner), await ctx.step("in a thread", in_thread), await inner()]

    @queue.job
    def thread(ctx: Context) -> bool:
        return bool(ctx.step("inner", lambda: current_context() is ctx))

    await start(queue)
    assert await (await coroutine.enqueue()).result("30s") == [True, True, True]
    assert await (await thread.enqueue()).result("30s") is True


async def test_jobs_that_run_together_have_their_own(queue: Queue, start: Start) -> None:
    meet = asyncio.Barrier(3)

    @queue.job
    async def coroutine() -> list[str]:
        before = current_context().job_id
        await meet.wait()
        return [before, current_context().job_id]

    jobs = [await coroutine.enqueue() for _ in range(3)]
    await start(queue)
    for job in jobs:
        assert await job.result("30s") == [job.id, job.id]


async def test_a_process_has_one_too(queue: Queue, start: Start) -> None:
    queue.register("process", handlers.finds_context, process=True)
    job = await queue.enqueue("process", {})
    await start(queue)
    assert await job.result("30s") == job.id


async def test_a_step_of_a_flow_has_one(queue: Queue, start: Start) -> None:
    flow = queue.flow("index")

    @flow.step
    async def only(payload: dict[str, Any]) -> str:
        return current_context().job_id

    job = await flow.enqueue({})
    await start(queue)
    assert await job.result("30s") == job.id


async def test_what_it_opened_is_closed_with_its_call(queue: Queue, start: Start) -> None:
    """A database connection, say."""

    @queue.job
    async def coroutine() -> bool:
        return current_context().db is current_context().db

    job = await coroutine.enqueue()
    await start(queue)
    assert await job.result("30s") is True


def test_outside_of_a_handler_there_is_none() -> None:
    with pytest.raises(RuntimeError, match="no handler runs here"):
        current_context()
