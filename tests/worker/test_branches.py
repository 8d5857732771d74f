"""A handler with several branches is set aside only when none of them can go on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import in_status, job_where, until
from tests.worker import wait_handlers as handlers
from tests.worker.conftest import Start
from tests.worker.step_handlers import noted
from treadle import Context, Job, Queue, Status
from treadle.model.steps import LARGE_RESULT_BYTES


def states(job: Job) -> dict[str, str]:
    return {step["id"]: step["status"] for step in job.steps}


def note_in(noted: list[str]) -> Any:
    async def note(word: str) -> str:
        noted.append(word)
        return word

    return note


async def test_a_branch_goes_on_after_its_sleep_while_another_waits(queue: Queue, start: Start) -> None:
    noted: list[str] = []
    note = note_in(noted)

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> list[Any]:
        async def nap() -> str:
            await ctx.sleep("50ms")
            await ctx.step("first", note, "first")
            return str(await ctx.step("second", note, "second"))

        return list(await asyncio.gather(ctx.wait_external("approve"), nap()))

    job = await both.enqueue()
    await start(queue)
    seen = await job_where(queue, job, lambda now: "second" in states(now) and now.status is Status.WAITING)
    assert states(seen) == {"approve": "waiting", "sleep": "completed", "first": "completed", "second": "completed"}
    assert (seen.attempt, noted) == (0, ["first", "second"])
    await queue.signal(job.id, "approve", "yes")
    assert await job.result("30s") == ["yes", "second"]
    assert noted == ["first", "second"]


async def test_a_sleep_ends_while_another_branch_works(queue: Queue, start: Start) -> None:
    noted: list[str] = []
    note, slept = note_in(noted), asyncio.Event()

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> list[Any]:
        async def nap() -> str:
            await ctx.sleep("50ms")
            slept.set()
            return str(await ctx.step("after", note, "after"))

        return list(await asyncio.gather(nap(), ctx.step("work", slept.wait)))

    job = await both.enqueue()
    await start(queue)
    assert await job.result("30s") == ["after", True]
    seen = await job.refresh()
    assert states(seen) == {"sleep": "completed", "work": "completed", "after": "completed"}
    assert seen.steps[0]["startedAt"] is not None
    assert noted == ["after"]


@pytest.mark.parametrize("size", [1, LARGE_RESULT_BYTES])
async def test_a_branch_goes_on_after_its_answer_while_another_waits(queue: Queue, start: Start, size: int) -> None:
    """Also if the answer is so large that it is read when it is asked for."""
    noted: list[str] = []
    note = note_in(noted)

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> list[Any]:
        async def one() -> int:
            answer = await ctx.wait_external("one")
            await ctx.step("thanks", note, "thanks")
            return len(answer)

        return list(await asyncio.gather(one(), ctx.wait_external("two")))

    job = await both.enqueue()
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    await queue.signal(job.id, "one", "x" * size)
    await until(lambda: noted)
    seen = await in_status(queue, job, Status.WAITING)
    assert states(seen) == {"one": "completed", "two": "waiting", "thanks": "completed"}
    await queue.signal(job.id, "two", 2)
    assert await job.result("30s") == [size, 2]
    assert noted == ["thanks"]


async def test_a_branch_goes_on_with_a_large_result_while_another_waits(queue: Queue, start: Start) -> None:
    """The result of a finished step is read when it is asked for; what follows it runs all the same."""
    noted: list[str] = []
    note = note_in(noted)

    async def page() -> str:
        return "x" * LARGE_RESULT_BYTES

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> list[Any]:
        async def read() -> int:
            text = await ctx.step("page", page)
            if not noted:
                noted.append("waits")
                await ctx.wait_external("first")
            await ctx.step("after", note, "after")
            return len(text)

        return list(await asyncio.gather(read(), ctx.wait_external("approve")))

    job = await both.enqueue()
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    await queue.signal(job.id, "first", 1)
    await until(lambda: noted == ["waits", "after"])
    seen = await in_status(queue, job, Status.WAITING)
    assert states(seen)["approve"] == "waiting"
    await queue.signal(job.id, "approve", 2)
    assert await job.result("30s") == [LARGE_RESULT_BYTES, 2]


async def test_a_branch_in_a_task_of_its_own_goes_on(queue: Queue, start: Start) -> None:
    """It hears of the end of its sleep a few turns of the loop later."""
    noted: list[str] = []
    note = note_in(noted)

    @queue.job(max_attempts=1)
    async def both(ctx: Context) -> list[Any]:
        async def nap() -> str:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.sleep("50ms"))
            return str(await ctx.step("after", note, "after"))

        return list(await asyncio.gather(ctx.wait_external("approve"), nap()))

    job = await both.enqueue()
    await start(queue)
    await until(lambda: noted)
    await queue.signal(job.id, "approve", 1)
    assert await job.result("30s") == [1, "after"]


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("handler", [handlers.works_next_to_a_wait, handlers.works_in_groups_next_to_a_wait])
async def test_a_branch_finishes_its_steps_while_another_waits(
    queue: Queue, start: Start, tmp_path: Path, handler: Any, process: bool
) -> None:
    """Between two steps nothing is under way, and yet the branch can go on."""
    path = str(tmp_path / "noted")
    queue.register("both", handler, max_attempts=1, process=process)
    job = await queue.enqueue("both", {"path": path})
    await start(queue)
    seen = await in_status(queue, job, Status.WAITING)
    assert (noted(path), states(seen)) == (["work"] * 20, {"approve": "waiting", "work": "completed"})
    await queue.signal(job.id, "approve", "yes")
    assert await job.result("30s") == ["yes", 20]
