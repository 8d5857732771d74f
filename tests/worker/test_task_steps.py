"""`ctx.step(name, task)`: what `@queue.job` returned, as a step of another handler."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import ended, stays, until
from tests.worker import task_step_handlers as handlers
from tests.worker.conftest import Start
from tests.worker.step_handlers import noted
from treadle import Concurrency, Context, Queue, Rate, Retry, Status


async def test_a_task_as_a_step_gets_its_payload_and_a_context(queue: Queue, start: Start) -> None:
    """Of every kind: in a coroutine, in a thread and in a process."""
    queue.register("tasks", handlers.in_coroutine, max_attempts=1)
    job = await queue.enqueue("tasks", {})
    await start(queue)
    awaited, threaded, (pid, in_process), added = await job.result("60s")
    assert (awaited, threaded, in_process, added) == (5, 6, 5, 3)
    assert pid != os.getpid()
    steps = [step["id"] for step in (await job.refresh()).steps]
    assert steps == [
        *("measure", "measure/inner", "measure_in_thread", "measure_in_thread/inner"),
        *("measure_in_process", "measure_in_process/inner", "add"),
    ]


@pytest.mark.parametrize("process", [False, True])
async def test_a_task_is_a_step_of_a_plain_function_too(queue: Queue, start: Start, process: bool) -> None:
    queue.register("tasks", handlers.in_thread, max_attempts=1, process=process)
    job = await queue.enqueue("tasks", {})
    await start(queue)
    threaded, (pid, in_process), added = await job.result("60s")
    assert (threaded, in_process, added) == (5, 5, 6)
    assert pid != os.getpid()


@pytest.mark.parametrize("task", ["third_time", "third_time_in_process"])
async def test_a_tasks_retry_is_that_of_its_step(queue: Queue, start: Start, task: str, tmp_path: Path) -> None:
    path = str(tmp_path / "noted")
    queue.register("retries", handlers.retries, max_attempts=1)
    job = await queue.enqueue("retries", {"task": task, "path": path})
    await start(queue)
    assert await job.result("60s") == 3
    assert noted(path) == ["tried"] * 3


async def test_an_error_of_a_step_in_a_process_is_the_jobs(queue: Queue, start: Start, tmp_path: Path) -> None:
    @queue.job(max_attempts=1)
    async def fails(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.step("third", handlers.third_time_in_process, payload["path"], retry=Retry(1))

    job = await fails.enqueue({"path": str(tmp_path / "noted")})
    await start(queue)
    failed = await ended(queue, job)
    assert failed.error_type == "ValueError"
    assert "_unless_early" in (failed.last_error or ""), "the stack is that of the process"
    assert failed.steps[0]["error"] == failed.last_error


@pytest.mark.parametrize("task", ["endless", "endless_in_process"])
async def test_a_tasks_timeout_is_that_of_its_step(queue: Queue, start: Start, task: str) -> None:
    queue.register("slow", handlers.takes_too_long, max_attempts=1)
    job = await queue.enqueue("slow", {"task": task})
    await start(queue)
    failed = await ended(queue, job)
    assert failed.status is Status.FAILED
    assert failed.error_type == "TimeoutError"
    assert "step slow ran longer than its limit of" in (failed.last_error or "")


@pytest.mark.parametrize("alone", [True, False])
async def test_a_step_in_a_process_ends_with_those_who_wait_for_it(
    queue: Queue, start: Start, tmp_path: Path, alone: bool
) -> None:
    """Its handler stops waiting for it, or its job is cancelled."""
    path = tmp_path / "beats"
    queue.register("gives_up", handlers.gives_up, max_attempts=1)
    job = await queue.enqueue("gives_up", {"path": str(path), "alone": alone})
    await start(queue)
    if not alone:
        await until(path.exists)
        await job.cancel()
    now = await ended(queue, job)
    assert now.status == (Status.COMPLETED if alone else Status.CANCELLED)
    size = path.stat().st_size
    await stays(lambda: path.stat().st_size == size, 0.5)


async def test_a_step_in_a_process_may_wait_for_an_answer(queue: Queue, start: Start) -> None:
    queue.register("asks", handlers.asks, max_attempts=1)
    job = await queue.enqueue("asks", {})
    await start(queue)
    await until(lambda: _waits(queue, job.id))
    await queue.signal(job.id, "asks/yes", "of course")
    assert await job.result("60s") == "of course"


async def _waits(queue: Queue, id: str) -> bool:
    return (await queue.get(id)).status is Status.WAITING


def _capable(queue: Queue) -> Any:
    return queue.job(capability="media")(_nothing)


def _rated(queue: Queue) -> Any:
    return queue.job(rate=Rate(1, "1s"))(_nothing)


def _gated(queue: Queue) -> Any:
    return queue.job(concurrency=Concurrency())(_nothing)


def _keyed(queue: Queue) -> Any:
    return queue.job(idempotent=True)(_nothing)


def _deduplicated(queue: Queue) -> Any:
    return queue.job(dedupe_keys=["input.x"])(_nothing)


async def _nothing(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (_capable, "capability"),
        (_rated, "rate"),
        (_gated, "concurrency"),
        (_keyed, "idempotency_key"),
        (_deduplicated, "dedupe_keys"),
    ],
)
async def test_a_task_that_needs_a_job_is_refused_as_a_step(
    queue: Queue, start: Start, make: Callable[[Queue], Any], named: str
) -> None:
    task = make(queue)

    @queue.job(max_attempts=1)
    async def outer(ctx: Context) -> None:
        await ctx.step("inner", task)

    job = await outer.enqueue()
    await start(queue, topics=["outer"])
    error = (await ended(queue, job)).last_error or ""
    assert f"step inner: _nothing has {named}, which only a job of its own can honour; use ctx.run" in error


async def test_a_payload_that_the_task_does_not_take_fails_the_step(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def outer(ctx: Context) -> None:
        await ctx.step("inner", handlers.measure, {"width": "wide"})

    job = await outer.enqueue()
    await start(queue)
    assert "measure: payload.width: " in ((await ended(queue, job)).last_error or "")


async def test_a_coroutine_with_ctx_is_no_step_of_a_plain_function(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    def outer(ctx: Context) -> None:
        ctx.step("inner", handlers.measure, {"width": 1})

    job = await outer.enqueue()
    await start(queue)
    assert "make this handler a coroutine too, or use ctx.run" in ((await ended(queue, job)).last_error or "")


async def test_a_lambda_around_a_coroutine_is_awaited(queue: Queue, start: Start) -> None:
    async def one() -> int:
        await asyncio.sleep(0)  # a turn of the loop
        return 1

    @queue.job(max_attempts=1)
    async def outer(ctx: Context) -> int:
        result: int = await ctx.step("inner", lambda: one())  # noqa: PLW0108 - that is the point
        return result

    job = await outer.enqueue()
    await start(queue)
    assert await job.result("60s") == 1
