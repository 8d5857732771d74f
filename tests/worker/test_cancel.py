"""Cancels: of waiting jobs, of running jobs, and of jobs that finish first."""

import asyncio
import threading
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import deaf_until, ended, event_types, for_ever, in_status, until, work_until_told
from tests.worker.conftest import Start
from treadle import CancelPolicy, Context, JobCancelled, Queue
from treadle.queue import steering
from treadle.worker import interrupts


async def test_a_running_coroutine_is_cancelled_at_its_await(queue: Queue, start: Start) -> None:
    cleaned_up = asyncio.Event()

    @queue.job
    async def long(ctx: Context) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            if ctx.cancelled:
                cleaned_up.set()
            raise

    worker = await start(queue)
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    await job.cancel("no longer needed")
    job = await ended(queue, job)
    assert (job.status, job.cancel_reason) == ("cancelled", "no longer needed")
    assert cleaned_up.is_set()
    await until(lambda: worker.metrics.cancelled == 1)
    stored = [name for name in await event_types(queue, job) if name not in ("job:enqueued", "job:started")]
    assert stored == ["job:cancelling", "job:cancelled"]


async def test_a_coroutine_that_finishes_anyway_is_completed(queue: Queue, start: Start) -> None:
    @queue.job
    async def stubborn() -> str:
        try:
            await for_ever()
        except asyncio.CancelledError:
            return "done all the same"
        return "?"

    await start(queue)
    job = await stubborn.enqueue()
    await in_status(queue, job, "processing")
    await job.cancel()
    assert await job.result("60s") == "done all the same"


async def test_a_handler_that_fails_after_its_cancel_is_cancelled(queue: Queue, start: Start) -> None:
    @queue.job
    async def clumsy() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise ValueError("while cleaning up") from None

    await start(queue)
    job = await clumsy.enqueue()
    await in_status(queue, job, "processing")
    await job.cancel()
    job = await ended(queue, job)
    assert (job.status, job.error_type) == ("cancelled", "ValueError")


async def test_a_coroutine_that_swallowed_its_cancel_hears_of_it_again_at_a_checkpoint(
    queue: Queue, start: Start
) -> None:
    @queue.job
    async def forgetful(ctx: Context) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            pass
        with pytest.raises(JobCancelled):
            await ctx.heartbeat()
        await ctx.check_cancelled()

    await start(queue)
    job = await forgetful.enqueue()
    await in_status(queue, job, "processing")
    await job.cancel()
    assert (await ended(queue, job)).status == "cancelled"


async def test_a_job_cancelled_while_it_waits_in_the_worker_never_runs(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "WAITS_AT_MOST_S", 60)
    let_go = asyncio.Event()
    ran: list[str] = []

    @queue.job
    async def quick(payload: dict[str, Any]) -> None: ...

    @queue.job
    async def work(payload: dict[str, Any]) -> None:
        ran.append(payload["name"])
        await let_go.wait()

    worker = await start(queue, slots=1)
    await _warm_up(worker, quick)
    first, *others = await work.enqueue_many([{"name": name} for name in "abcd"])
    await in_status(queue, first, "processing")
    waiting = [await in_status(queue, job, "processing") for job in others[:1]]
    await waiting[0].cancel("changed my mind")
    job = await ended(queue, waiting[0])
    assert (job.status, job.started_at) == ("cancelled", None)
    let_go.set()
    await ended(queue, others[-1])
    assert "b" not in ran


async def _warm_up(worker: Any, quick: Any) -> None:
    """Until the worker believes that jobs are over in no time, and claims ahead."""
    done = worker.metrics.completed
    await quick.enqueue_many([{}] * 500)
    await until(lambda: worker.metrics.completed >= done + 500)


async def test_a_cancel_without_a_hint_is_found_at_the_renewal_of_the_lease(queue: FaultyQueue, start: Start) -> None:
    """As behind a pooler, where there are no notifications."""
    queue.faults.mute()
    started = asyncio.Event()

    @queue.job
    async def long() -> None:
        started.set()
        await for_ever()

    await start(queue, lease="600ms", poll_interval="50ms")
    job = await long.enqueue()
    await asyncio.wait_for(started.wait(), 60)
    await steering.cancel(queue.store, [job.id], "quietly")
    assert (await ended(queue, job)).status == "cancelled"


async def test_a_handler_that_ignores_its_cancel_is_ended_by_the_reaper_and_its_later_word_is_refused(
    queue: Queue, start: Start
) -> None:
    let_go = asyncio.Event()

    @queue.job(cancel=CancelPolicy(grace="200ms"))
    async def deaf() -> str:
        await deaf_until(let_go)
        return "too late"

    worker = await start(queue, reap_interval="50ms")
    job = await deaf.enqueue()
    await in_status(queue, job, "processing")
    await job.cancel()
    job = await ended(queue, job)
    assert job.status == "cancelled"
    await until(lambda: worker.metrics.stuck == 1)
    let_go.set()
    await until(lambda: worker.metrics.lease_losses == 1)
    job = await job.refresh()
    assert (job.status, job.result_value) == ("cancelled", None)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_cancel_in_the_moment_of_the_start_is_told_after_the_start(
    queue: Queue, start: Start, kind: str
) -> None:
    begun = threading.Event()

    async def on_loop(ctx: Context) -> None:
        begun.set()
        await for_ever()

    def in_thread(ctx: Context) -> None:
        begun.set()
        work_until_told(ctx)

    queue.register("brief", on_loop if kind == "async" else in_thread)
    expected = ["job:enqueued", "job:started", "job:cancelling", "job:cancelled"]
    told: list[str] = []

    async def collect() -> None:
        async for event in queue.stream(topic="brief"):
            told.append(event["event"])

    collecting = asyncio.create_task(collect())
    await until(lambda: queue.feed._listeners and queue.feed._follower is not None)
    await start(queue)
    for _ in range(5):
        told.clear()
        begun.clear()
        job = await queue.enqueue("brief")
        await until(begun.is_set, every=0)
        await job.cancel()
        await until(lambda: len(told) >= len(expected))
        assert told == expected
        timeline = await queue.events(job.id)
        assert [event.type for event in timeline] == expected
        assert [event.created_at for event in timeline] == sorted(event.created_at for event in timeline)
    await queue.feed.stop()
    await collecting
