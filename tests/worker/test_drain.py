"""A worker that an operator asked to drain claims nothing more, finishes its jobs and stops."""

import asyncio

import pytest

from tests.waiting import in_status, until
from tests.worker.conftest import Start
from treadle import Queue
from treadle.worker import assembly, interrupts


async def test_a_busy_worker_finishes_its_job_and_stops(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> str:
        await let_go.wait()
        return "finished"

    worker = await start(queue, slots=1, drain="0s", name="one of us")
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    assert await queue.drain("one of us")
    await until(lambda: worker.drained)
    left = await long.enqueue()
    let_go.set()
    await worker.done
    assert await job.result() == "finished"
    assert (await left.refresh()).status == "pending"
    assert list(await queue.store.workers()) == []


async def test_an_idle_worker_stops_long_before_its_next_heartbeat(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "FOLLOW_SETTINGS_S", 0.05)
    queue.register("mail", _nothing)
    worker = await start(queue, name="idle", lease="1h")
    other = await start(queue, name="other", lease="1h")

    async def both_here() -> bool:
        return len(await queue.store.workers()) == 2

    await until(both_here)
    assert await queue.drain("idle")
    await worker.done
    assert not other.stopping


async def test_a_stop_after_a_drain_limits_the_time(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "LOOK_EVERY_S", 0.05)

    @queue.job
    async def forever() -> None:
        await asyncio.Event().wait()

    worker = await start(queue, slots=1, drain="0s", name="busy")
    job = await forever.enqueue()
    await in_status(queue, job, "processing")
    await queue.drain("busy")
    await until(lambda: worker.drained)
    assert not worker.done.done()
    worker.stop()
    await worker.done
    assert (await job.refresh()).status == "pending"


async def test_a_name_without_a_live_worker_is_told(queue: Queue) -> None:
    assert not await queue.drain("nobody")


async def _nothing() -> None: ...
