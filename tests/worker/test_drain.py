"""A worker that an operator asked to drain claims nothing more, finishes its jobs and stops."""

import asyncio
import contextlib

import pytest

from tests.faulty import FaultyQueue
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
    monkeypatch.setattr(assembly, "FOLLOW_DRAINS_S", 0.05)
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


async def test_a_drain_that_is_called_off_lets_the_worker_go_on(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> str:
        await let_go.wait()
        return "finished"

    worker = await start(queue, slots=2, name="mine")
    first = await long.enqueue()
    await in_status(queue, first, "processing")
    assert await queue.drain("mine")
    await until(lambda: worker.drained)
    second = await long.enqueue()
    assert await queue.undrain("mine")
    await in_status(queue, second, "processing")
    assert not worker.drained
    let_go.set()
    assert await first.result() == await second.result() == "finished"
    third = await long.enqueue()
    assert await third.result() == "finished"
    assert not worker.stopping


async def test_a_change_of_mind_before_the_last_job_ended_counts(
    queue: FaultyQueue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the worker has not heard of it by then."""
    monkeypatch.setattr(interrupts, "LOOK_EVERY_S", 3600)
    let_go = asyncio.Event()

    @queue.job
    async def long() -> str:
        await let_go.wait()
        return "finished"

    worker = await start(queue, slots=1, name="mine", lease="1h")
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    assert await queue.drain("mine")
    await until(lambda: worker.drained)
    worker._engine.interrupts.look = lambda: None  # type: ignore[union-attr, method-assign]
    assert await queue.undrain("mine")
    assert worker.drained
    let_go.set()
    await until(lambda: not worker.drained)
    assert await (await long.enqueue()).result() == "finished"


async def test_a_drain_of_the_program_s_own_is_not_called_off_by_a_heartbeat(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> None:
        await let_go.wait()

    worker = await start(queue, slots=1, name="mine")
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    worker.drain()
    assert worker._engine
    await worker._engine.ask_again()
    assert worker.drained
    let_go.set()
    await worker.done


async def test_jobs_that_a_draining_worker_has_not_started_go_to_others(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> None:
        await let_go.wait()

    first = await start(queue, slots=1, prefetch=5, name="first")
    jobs = [await long.enqueue() for _ in range(3)]
    await in_status(queue, jobs[0], "processing")
    await queue.drain("first")
    await until(lambda: first.drained)
    await start(queue, slots=2, name="second")

    async def holders() -> list[str | None]:
        return [(await job.refresh()).locked_by for job in jobs]

    async def shared() -> bool:
        return await holders() == ["first", "second", "second"]

    await until(shared)
    assert [(await job.refresh()).attempt for job in jobs] == [1, 1, 1]
    let_go.set()
    await first.done


async def test_a_lost_lease_does_not_forget_the_drain(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await let_go.wait()
        await let_go.wait()

    worker = await start(queue, slots=1, name="mine")
    job = await stubborn.enqueue()
    await in_status(queue, job, "processing")
    await queue.drain("mine")
    await until(lambda: worker.drained)
    assert worker._engine
    engine, lost = worker._engine, worker._engine.slots.lease
    await queue.store.close_lease(lost.id)
    engine.lease_lost(lost)
    await until(lambda: engine.slots.lease is not lost)
    assert [one.draining for one in await queue.store.workers() if one.name == "mine"] == [True]
    await engine.ask_again()
    assert worker.drained
    let_go.set()
    await worker.done


async def test_a_name_without_a_live_worker_is_told(queue: Queue) -> None:
    assert not await queue.drain("nobody")
    assert not await queue.undrain("nobody")


async def _nothing() -> None: ...
