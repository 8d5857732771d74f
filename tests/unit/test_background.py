"""Background tasks that go on after errors and end when they are cancelled."""

import asyncio
import contextlib

import pytest

from tests.waiting import deaf_until, for_ever, give_way
from treadle.model.errors import StoreUnavailable
from treadle.queue.background import end, forever, store_answered
from treadle.telemetry.outages import OutageLog


async def _swallow_a_cancel() -> None:
    """What `asyncio.wait_for` does before Python 3.12 when its future is done at the moment of the cancel."""
    with contextlib.suppress(asyncio.CancelledError):
        await for_ever()


async def test_a_step_that_swallows_its_cancel_is_not_repeated() -> None:
    task = asyncio.create_task(forever("resting", _swallow_a_cancel, OutageLog.of("swallowed")))
    await give_way()
    async with asyncio.timeout(60):
        await end([task])
    assert task.done()


async def test_a_step_that_fails_is_repeated() -> None:
    tries = asyncio.Semaphore(0)

    async def fails() -> None:
        tries.release()
        raise ValueError("no")

    task = asyncio.create_task(forever("failing", fails, OutageLog.of("failed")))
    async with asyncio.timeout(60):
        for _ in range(3):
            await tries.acquire()
        await end([task])
    assert task.cancelled()


async def test_a_task_that_will_not_end_is_waited_for_only_so_long() -> None:
    let_go = asyncio.Event()

    async def stubborn() -> None:
        await deaf_until(let_go)

    task = asyncio.create_task(stubborn())
    await give_way()
    await end([task], 0.01)
    assert not task.done()
    let_go.set()
    await task


@pytest.mark.parametrize("tasks", [0, 2])
async def test_errors_of_ended_tasks_are_ignored(tasks: int) -> None:
    async def fails() -> None:
        raise ValueError("no")

    await end([asyncio.create_task(fails()) for _ in range(tasks)])


async def test_an_outage_ends_when_the_store_answers_and_not_when_a_wait_ends(caplog: pytest.LogCaptureFixture) -> None:
    tries = 0
    waits = asyncio.Event()

    async def step() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StoreUnavailable("the store is away")
        store_answered()
        waits.set()
        await for_ever()

    running = asyncio.create_task(forever("looking", step, OutageLog()))
    async with asyncio.timeout(30):
        await waits.wait()
    assert caplog.messages[-1].startswith("the store is back after")
    await end([running])
