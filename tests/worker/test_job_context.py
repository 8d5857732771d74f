"""Every log line of a handler names its job, on the loop, in threads and in processes."""

import asyncio
from typing import Any

from tests.waiting import ended, give_way
from tests.worker import process_handlers
from tests.worker.conftest import Start
from treadle import Queue
from treadle.telemetry import running_job


def current() -> str | None:
    job = running_job.get()
    return job.id if job else None


async def test_in_a_coroutine_and_in_the_tasks_that_it_starts(queue: Queue, start: Start) -> None:
    @queue.job
    async def look() -> list[str | None]:
        async def deeper() -> str | None:
            await give_way()
            return current()

        return [current(), await asyncio.create_task(deeper()), await asyncio.to_thread(current)]

    await start(queue)
    job = await look.enqueue()
    assert await job.result("60s") == [job.id] * 3


async def test_in_a_thread(queue: Queue, start: Start) -> None:
    @queue.job
    def look() -> str | None:
        return current()

    await start(queue)
    job = await look.enqueue()
    assert await job.result("60s") == job.id


async def test_in_a_process(queue: Queue, start: Start) -> None:
    queue.register("who", process_handlers.who, process=True)
    await start(queue)
    job = await queue.enqueue("who")
    assert await job.result("60s") == job.id


async def test_each_job_sees_itself_in_a_slot_that_had_others(queue: Queue, start: Start) -> None:
    @queue.job
    async def look(payload: dict[str, Any]) -> str | None:
        if payload["wait"]:
            await give_way()
        return current()

    await start(queue, slots=2)
    jobs = await look.enqueue_many([{"wait": i % 2} for i in range(40)])
    assert [await job.result("60s") for job in jobs] == [job.id for job in jobs]


async def test_a_task_that_outlives_its_job_still_speaks_of_that_job(queue: Queue, start: Start) -> None:
    let_go, heard = asyncio.Event(), asyncio.Event()
    left: list[Any] = []

    @queue.job
    async def leave(payload: dict[str, Any]) -> None:
        async def later() -> None:
            await let_go.wait()
            left.append(current())
            heard.set()

        if payload["leave"]:
            left.append(asyncio.create_task(later()))

    await start(queue, slots=1)
    first = await leave.enqueue({"leave": True})
    await ended(queue, first)
    await ended(queue, await leave.enqueue({"leave": False}))
    let_go.set()
    await asyncio.wait_for(heard.wait(), 60)
    assert left[1] == first.id
