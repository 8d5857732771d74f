"""Plain functions run in threads, as many as there are slots."""

import asyncio
import contextvars
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.waiting import ended, in_status, until, work_until_told
from tests.worker.conftest import Start
from treadle import CancelPolicy, Context, JobCancelled, Queue, Worker

SECONDS = 60


@dataclass
class Order:
    number: int


async def test_a_plain_function_runs_in_a_thread(queue: Queue, start: Start) -> None:
    @queue.job
    def where(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
        return {"main": threading.current_thread() is threading.main_thread(), **payload}

    await start(queue)
    assert await (await where.enqueue({"x": 1})).result("60s") == {"main": False, "x": 1}


async def test_threads_run_side_by_side_up_to_the_slots(queue: Queue, start: Start) -> None:
    together = threading.Barrier(3)

    @queue.job
    def meet() -> int:
        return together.wait(SECONDS)

    await start(queue, slots=3)
    jobs = await meet.enqueue_many([{}] * 6)
    places = [await job.result("60s") for job in jobs]
    assert sorted(places) == [0, 0, 1, 1, 2, 2]


async def test_a_failure_in_a_thread_has_its_traceback(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    def fragile() -> None:
        raise ValueError("in a thread")

    await start(queue)
    job = await ended(queue, await fragile.enqueue())
    assert (job.status, job.error_type) == ("failed", "ValueError")
    assert "in fragile" in (job.last_error or "")
    assert "threads.py" not in (job.last_error or "")


async def test_an_exit_in_a_thread_fails_the_job_only(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    def leave() -> None:
        raise SystemExit(1)

    @queue.job
    def stay() -> str:
        return "here"

    await start(queue, slots=1)
    assert (await ended(queue, await leave.enqueue())).error_type == "SystemExit"
    assert await (await stay.enqueue()).result("60s") == "here"


async def test_context_variables_of_threads_do_not_leak(queue: Queue, start: Start) -> None:
    request = contextvars.ContextVar("request", default="nobody")

    @queue.job
    def tracing(payload: dict[str, Any]) -> str:
        before = request.get()
        request.set(payload["name"])
        return before

    await start(queue, slots=1)
    jobs = [await tracing.enqueue({"name": name}) for name in "ab"]
    assert [await job.result("60s") for job in jobs] == ["nobody", "nobody"]


@pytest.mark.every_store
async def test_progress_heartbeat_and_enqueue_work_from_a_thread(queue: Queue, start: Start) -> None:
    seen = threading.Event()

    @queue.job
    def child(payload: dict[str, Any]) -> Any:
        return payload["x"]

    @queue.job
    def parent(ctx: Context) -> str:
        ctx.progress(37.9, "half way")
        ctx.heartbeat()
        assert seen.wait(SECONDS)
        job = ctx.enqueue("child", {"x": 1})
        return str(job.id)

    await start(queue)
    job = await parent.options(created_by="ada", scope="account", scope_id="7").enqueue()
    running = await until(lambda: _with_progress(queue, job.id))
    assert (running.progress, running.progress_message) == (37, "half way")
    seen.set()
    made = await queue.get(await job.result("60s"))
    assert (made.created_by, made.scope, made.scope_id) == ("ada", "account", "7")


async def _with_progress(queue: Queue, id: str) -> Any:
    job = await queue.get(id)
    return job if job.progress else None


async def test_a_thread_is_cancelled_at_its_checkpoint(queue: Queue, start: Start) -> None:
    cleaned_up = threading.Event()

    @queue.job
    def careful(ctx: Context) -> None:
        try:
            work_until_told(ctx)
        except JobCancelled:
            assert ctx.cancelled
            cleaned_up.set()
            raise

    await start(queue)
    job = await careful.enqueue()
    await in_status(queue, job, "processing")
    await job.cancel("enough")
    job = await ended(queue, job)
    assert (job.status, job.cancel_reason) == ("cancelled", "enough")
    assert cleaned_up.is_set()


async def test_a_thread_that_finishes_after_a_cancel_is_completed(queue: Queue, start: Start) -> None:
    asked = threading.Event()

    @queue.job
    def hurried() -> str:
        assert asked.wait(SECONDS)
        return "done first"

    await start(queue)
    job = await hurried.enqueue()
    await in_status(queue, job, "processing")
    await job.cancel()
    asked.set()
    assert await job.result("60s") == "done first"


async def test_a_thread_over_its_limit_is_told_at_its_checkpoint(queue: Queue, start: Start) -> None:
    @queue.job(timeout="100ms", max_attempts=1)
    def slow(ctx: Context) -> None:
        work_until_told(ctx)

    await start(queue)
    job = await ended(queue, await slow.enqueue())
    assert (job.status, job.error_type) == ("failed", "TimeoutError")
    assert "in slow" in (job.last_error or "")


async def test_a_thread_over_its_limit_keeps_its_job_until_it_returns_and_has_failed_then(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()

    @queue.job(timeout="50ms", max_attempts=1, cancel=CancelPolicy(grace="50ms"))
    def deaf() -> str:
        let_go.wait(SECONDS)
        return "late"

    worker = await start(queue, slots=1)
    job = await deaf.enqueue()
    await until(lambda: worker.metrics.stuck)
    assert (await job.refresh()).status == "processing"
    let_go.set()
    job = await ended(queue, job)
    assert (job.status, job.error_type) == ("failed", "TimeoutError")
    assert any("is stuck" in record.message for record in caplog.records)


async def test_threads_and_coroutines_share_the_slots(queue: Queue, start: Start) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def enter(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    @queue.job
    def in_thread() -> None:
        enter(1)
        time.sleep(0.01)  # its work
        enter(-1)

    @queue.job
    async def on_loop() -> None:
        enter(1)
        time.sleep(0.001)  # its work
        enter(-1)

    worker = await start(queue, slots=2)
    for _ in range(10):
        await in_thread.enqueue()
        await on_loop.enqueue()
    await until(lambda: worker.metrics.completed == 20)
    assert most == 2


async def test_a_cancel_left_behind_by_an_earlier_job_does_not_take_a_threads_job_from_its_slot(
    queue: Queue, start: Start
) -> None:
    let_go, hit = threading.Event(), asyncio.Event()

    @queue.job
    async def leaves_a_bomb() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task
        loop.call_later(0.1, task.cancel)
        loop.call_later(0.2, hit.set)

    @queue.job
    def patient() -> str:
        assert let_go.wait(SECONDS)
        return "done"

    await start(queue, slots=1)
    await (await leaves_a_bomb.enqueue()).result("60s")
    job = await patient.enqueue()
    await asyncio.wait_for(hit.wait(), 60)
    let_go.set()
    assert await job.result("60s") == "done"
    assert await (await patient.enqueue()).result("60s") == "done"


def test_a_thread_that_outlives_its_workers_loop_ends_without_an_error(sqlite_url: str) -> None:
    """If it raised, pytest would say so."""
    let_go, threads = threading.Event(), []

    async def work() -> None:
        async with Queue(sqlite_url) as queue:

            @queue.job
            def deaf() -> None:
                threads.append(threading.current_thread())
                let_go.wait(SECONDS)

            worker = Worker(queue)
            running = asyncio.create_task(worker.run())
            await deaf.enqueue()
            await until(lambda: threads)
            worker.stop()
            worker.stop()
            await running
            assert worker.left_behind == 1

    asyncio.run(work())
    let_go.set()
    threads[0].join(SECONDS)
    assert not threads[0].is_alive()
