"""Handlers on the loop: what they return, raise and leave behind."""

import asyncio
import contextvars
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import deaf_until, ended, event_types, for_ever, give_way, in_status, until
from tests.worker.conftest import Start
from treadle import CancelPolicy, Context, Fail, Job, Queue, Retry, RetryAfter, Snooze, Worker
from treadle.worker import shutdown

AT_ONCE = Retry(3, backoff=[0.001])


@dataclass
class Order:
    number: int
    lines: list[str]


async def test_a_result_is_stored_and_progress_is_full(queue: Queue, start: Start) -> None:
    @queue.job
    async def greet(ctx: Context, order: Order) -> dict[str, Any]:
        return {"number": order.number, "lines": len(order.lines)}

    await start(queue)
    job = await greet.enqueue(Order(7, ["a", "b"]))
    assert await job.result("60s") == {"number": 7, "lines": 2}
    job = await job.refresh()
    assert (job.status, job.progress, job.attempt) == ("completed", 100, 1)
    assert job.started_at is not None
    assert job.locked_by is None


async def test_a_handler_may_take_nothing_only_the_context_or_only_the_payload(queue: Queue, start: Start) -> None:
    @queue.job
    async def nothing() -> str:
        return "nothing"

    @queue.job
    async def context_only(ctx: Context) -> str:
        return ctx.topic

    @queue.job
    async def payload_only(payload: dict[str, Any]) -> Any:
        return payload["x"]

    await start(queue)
    jobs = [await nothing.enqueue(), await context_only.enqueue(), await payload_only.enqueue({"x": 5})]
    assert [await job.result("60s") for job in jobs] == ["nothing", "context_only", 5]


async def test_a_failure_is_tried_again_by_the_policy_and_then_failed(queue: Queue, start: Start) -> None:
    attempts = []

    @queue.job(retry=AT_ONCE)
    async def fragile(ctx: Context) -> None:
        attempts.append((ctx.attempt, ctx.is_retry, ctx.is_last_attempt))
        raise ValueError(f"attempt {ctx.attempt}")

    worker = await start(queue)
    job = await ended(queue, await fragile.enqueue())
    assert attempts == [(1, False, False), (2, True, False), (3, True, True)]
    assert (job.status, job.error_type, job.attempt) == ("failed", "ValueError", 3)
    assert job.last_error is not None
    assert job.last_error.startswith("Traceback")
    assert "in fragile" in job.last_error
    assert "executor.py" not in job.last_error
    assert job.last_error.rstrip().endswith("ValueError: attempt 3")
    await until(lambda: worker.metrics.failed == 1)
    assert worker.metrics.retried == 2


async def test_the_jobs_own_number_of_attempts_wins(queue: Queue, start: Start) -> None:
    @queue.job(retry=AT_ONCE)
    async def fragile(ctx: Context) -> None:
        raise ValueError(ctx.max_attempts)

    await start(queue)
    job = await ended(queue, await fragile.options(max_attempts=1).enqueue())
    assert (job.status, job.attempt) == ("failed", 1)


async def test_fail_ends_the_job_immediately(queue: Queue, start: Start) -> None:
    @queue.job
    async def hopeless() -> None:
        raise Fail("never")

    await start(queue)
    job = await ended(queue, await hopeless.enqueue())
    assert (job.status, job.attempt, job.error_type) == ("failed", 1, "Fail")


async def test_retry_after_names_the_delay(queue: Queue, start: Start) -> None:
    @queue.job
    async def later(ctx: Context) -> str:
        if not ctx.is_retry:
            raise RetryAfter("50ms")
        return "second"

    await start(queue)
    job = await later.enqueue()
    assert await job.result("60s") == "second"
    assert (await job.refresh()).attempt == 2


async def test_snooze_costs_no_attempt(queue: Queue, start: Start) -> None:
    snoozes: list[int] = []

    @queue.job(max_attempts=1)
    async def sleepy(ctx: Context) -> int:
        if len(snoozes) < 2:
            snoozes.append(ctx.attempt)
            raise Snooze("20ms", "not yet")
        return ctx.attempt

    await start(queue)
    job = await sleepy.enqueue()
    assert await job.result("60s") == 1
    assert snoozes == [1, 1]
    attempts = ["job:started", "job:snoozed"] * 2 + ["job:started", "job:completed"]
    assert await event_types(queue, job) == ["job:enqueued", *attempts]


async def test_a_delay_that_is_none_fails_with_the_reason(queue: Queue, start: Start) -> None:
    @queue.job
    async def confused() -> None:
        raise RetryAfter("soon")

    await start(queue)
    job = await ended(queue, await confused.enqueue())
    assert (job.status, job.attempt) == ("failed", 1)
    assert "'soon' is not a duration" in (job.last_error or "")


async def test_a_retry_policy_that_raises_fails_the_job_and_not_the_worker(queue: Queue, start: Start) -> None:
    class Moody(Retry):
        def decide(self, families: Sequence[str], failures: int) -> int | None:
            raise LookupError("which day is it?")

    @queue.job(retry=Moody())
    async def fragile() -> None:
        raise ValueError

    @queue.job
    async def stay() -> str:
        return "here"

    await start(queue, slots=1)
    job = await ended(queue, await fragile.enqueue())
    assert (job.status, job.error_type, job.attempt) == ("failed", "LookupError", 1)
    assert await (await stay.enqueue()).result("60s") == "here"


async def test_an_error_type_decides_about_its_retry(queue: Queue, start: Start) -> None:
    @queue.job(retry=Retry(3, backoff=[0.001], on={LookupError: False}))
    async def picky() -> None:
        raise KeyError("gone")

    await start(queue)
    job = await ended(queue, await picky.enqueue())
    assert (job.status, job.attempt) == ("failed", 1)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_payload_that_its_type_refuses_fails_without_a_retry(
    url: str, queue: Queue, start: Start, kind: str
) -> None:
    called = []

    async def on_loop(order: Order) -> None:
        called.append(order)

    def in_thread(order: Order) -> None:
        called.append(order)

    queue.register("strict", on_loop if kind == "coroutine" else in_thread)
    async with Queue(url) as stranger:
        job = await stranger.enqueue("strict", {"number": "many"})
    await start(queue)
    job = await ended(queue, job)
    assert (job.status, job.error_type, job.attempt) == ("failed", "InvalidPayload", 1)
    assert "payload.number" in (job.last_error or "")
    assert not called


@pytest.mark.parametrize(
    "result", [object(), float("nan"), {"x": "\x00"}, "x" * 1_100_000], ids=["object", "nan", "nul", "too long"]
)
async def test_a_result_that_cannot_be_stored_fails_without_a_retry(queue: Queue, start: Start, result: Any) -> None:
    @queue.job
    async def odd() -> Any:
        return result

    await start(queue)
    job = await ended(queue, await odd.enqueue())
    assert (job.status, job.attempt) == ("failed", 1)
    assert "result" in (job.last_error or "")


async def test_an_error_with_text_no_database_takes_is_stored_all_the_same(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def rude() -> None:
        raise ValueError("nul \x00, surrogate \ud800, " + "long " * 20_000)

    await start(queue)
    job = await ended(queue, await rude.enqueue())
    assert job.status == "failed"
    assert "\\x00" in (job.last_error or "")
    assert "\\ud800" in (job.last_error or "")
    assert len(job.last_error or "") < 40_000


async def test_an_exit_in_a_handler_fails_the_job_and_not_the_worker(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def leave() -> None:
        raise SystemExit(3)

    @queue.job
    async def stay() -> str:
        return "here"

    await start(queue, slots=1)
    job = await ended(queue, await leave.enqueue())
    assert (job.status, job.error_type) == ("failed", "SystemExit")
    assert await (await stay.enqueue()).result("60s") == "here"


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_raises_generator_exit_fails_and_the_slot_goes_on(
    queue: Queue, start: Start, waits: bool
) -> None:
    @queue.job(max_attempts=1)
    async def leaves() -> None:
        if waits:
            await give_way()
        raise GeneratorExit

    @queue.job
    async def follows() -> str:
        return "done"

    await start(queue, slots=1)
    job = await ended(queue, await leaves.enqueue())
    assert (job.status, job.error_type) == ("failed", "GeneratorExit")
    assert await (await follows.enqueue()).result("60s") == "done"


async def test_a_cancelled_task_of_the_handlers_own_is_a_failure(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def waits_for_a_cancelled_task() -> None:
        task = asyncio.create_task(for_ever())
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await task

    await start(queue)
    job = await ended(queue, await waits_for_a_cancelled_task.enqueue())
    assert (job.status, job.error_type) == ("failed", "asyncio.exceptions.CancelledError")


async def test_a_handler_that_cancels_its_own_task_does_not_take_the_slot_with_it(queue: Queue, start: Start) -> None:
    @queue.job
    async def suicidal() -> str:
        task = asyncio.current_task()
        assert task
        task.cancel()
        return "done"

    @queue.job
    async def stay() -> str:
        return "here"

    await start(queue, slots=1)
    assert await (await suicidal.enqueue()).result("60s") == "done"
    for _ in range(3):
        assert await (await stay.enqueue()).result("60s") == "here"


async def test_a_cancel_left_behind_by_a_handler_does_not_take_the_slot_while_it_waits(
    queue: Queue, start: Start
) -> None:
    hit, loop = asyncio.Event(), asyncio.get_running_loop()

    def strike(task: asyncio.Task[Any]) -> None:
        if worker.metrics.free_slots() == 0:
            loop.call_soon(strike, task)
            return
        task.cancel()
        hit.set()

    @queue.job
    async def leaves_a_bomb() -> None:
        task = asyncio.current_task()
        assert task
        loop.call_soon(strike, task)

    @queue.job
    async def stay() -> str:
        return "here"

    worker = await start(queue, slots=1)
    await leaves_a_bomb.enqueue()
    await asyncio.wait_for(hit.wait(), 60)
    for _ in range(3):
        assert await (await stay.enqueue()).result("60s") == "here"


async def test_a_cancel_left_behind_that_hits_when_the_slot_is_given_a_job_does_not_lose_it(
    queue: FaultyQueue, start: Start
) -> None:
    slot: list[asyncio.Task[Any]] = []

    @queue.job
    async def who() -> str:
        task = asyncio.current_task()
        assert task
        slot.append(task)
        return "here"

    queue.faults.after("claim", lambda claim: slot[0].cancel() if claim.jobs and slot else None)
    await start(queue, slots=1)
    for _ in range(3):
        assert await (await who.enqueue()).result("60s") == "here"
    assert len(set(slot)) == 1


def test_ctrl_c_in_a_handler_ends_the_program_and_its_job_is_given_back(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "CLEAN_UP_S", 0.05)
    queue = Queue(sqlite_url)
    worker = Worker(queue, drain=0)

    @queue.job
    async def interrupted() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a program with no handler of its own
        signal.raise_signal(signal.SIGINT)

    async def work() -> None:
        await queue.open()
        await interrupted.enqueue()
        await worker.run()

    async def leave() -> list[Job]:
        worker.stop()
        await until(lambda: worker.metrics.released)
        jobs = await queue.list()
        await queue.close()
        return list(jobs)

    before = signal.getsignal(signal.SIGINT)
    try:
        with asyncio.Runner() as runner:
            with pytest.raises(KeyboardInterrupt):
                runner.run(work())
            (job,) = runner.run(leave())
    finally:
        signal.signal(signal.SIGINT, before)
    assert (job.status, job.attempt) == ("pending", 0)


async def test_context_variables_do_not_leak_into_the_next_job(queue: Queue, start: Start) -> None:
    request = contextvars.ContextVar("request", default="nobody")

    @queue.job
    async def tracing(payload: dict[str, Any]) -> list[str]:
        before = request.get()
        request.set(payload["name"])
        await give_way()
        return [before, request.get()]

    await start(queue, slots=1)
    jobs = [await tracing.enqueue({"name": name}) for name in "abc"]
    assert [await job.result("60s") for job in jobs] == [["nobody", "a"], ["nobody", "b"], ["nobody", "c"]]


async def test_a_handler_over_its_limit_fails_with_a_timeout_error(queue: Queue, start: Start) -> None:
    stopped = asyncio.Event()

    @queue.job(timeout="100ms", max_attempts=1)
    async def slow() -> None:
        try:
            await for_ever()
        finally:
            stopped.set()

    await start(queue)
    job = await ended(queue, await slow.enqueue())
    assert stopped.is_set()
    assert (job.status, job.error_type) == ("failed", "TimeoutError")
    assert (job.last_error or "").rstrip().endswith("limit of 100ms")


async def test_a_timeout_is_tried_again_like_any_failure(queue: Queue, start: Start) -> None:
    @queue.job(timeout="100ms", retry=AT_ONCE)
    async def slow_at_first(ctx: Context) -> int:
        if not ctx.is_retry:
            await for_ever()
        return ctx.attempt

    await start(queue)
    assert await (await slow_at_first.enqueue()).result("60s") == 2


async def test_a_slots_next_job_can_use_timeouts_after_one_was_interrupted(queue: Queue, start: Start) -> None:
    @queue.job(timeout="50ms", max_attempts=1)
    async def slow() -> None:
        await for_ever()

    @queue.job
    async def careful() -> str:
        try:
            async with asyncio.timeout(0.01):
                await for_ever()
        except TimeoutError:
            task = asyncio.current_task()
            assert task
            return f"timed out, {task.cancelling()} cancels left"
        return "?"

    await start(queue, slots=1)
    await ended(queue, await slow.enqueue())
    assert await (await careful.enqueue()).result("60s") == "timed out, 0 cancels left"


async def test_a_handler_that_swallows_its_cancel_is_shown_as_stuck_and_keeps_its_slot(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = asyncio.Event()

    @queue.job(timeout="50ms", max_attempts=1, cancel=CancelPolicy(grace="100ms"))
    async def stubborn() -> None:
        await deaf_until(let_go)

    @queue.job
    async def other() -> str:
        return "ran"

    worker = await start(queue, slots=2)
    job = await stubborn.enqueue()
    await until(lambda: worker.metrics.stuck)
    assert (await queue.get(job.id)).status == "processing"
    assert await (await other.enqueue()).result("60s") == "ran"
    let_go.set()
    assert (await ended(queue, job)).error_type == "TimeoutError"
    assert worker.metrics.stuck == 1
    assert sum("is stuck" in record.message for record in caplog.records) == 1


async def test_jobs_start_by_priority_and_then_by_age(queue: Queue, start: Start) -> None:
    order: list[str] = []

    @queue.job
    async def note(payload: dict[str, Any]) -> None:
        order.append(payload["name"])

    for name, priority in [("a", "low"), ("b", "normal"), ("c", "critical"), ("d", "normal")]:
        await note.enqueue({"name": name}, priority=priority)
    await start(queue, slots=1)
    await until(lambda: len(order) == 4)
    assert order == ["c", "b", "d", "a"]


async def test_only_the_chosen_topics_are_worked_on(queue: Queue, start: Start) -> None:
    @queue.job
    async def mine() -> None: ...

    @queue.job
    async def not_mine() -> None: ...

    left = await not_mine.enqueue()
    await start(queue, topics=["mine"])
    await (await mine.enqueue()).result("60s")
    assert (await left.refresh()).status == "pending"


async def test_a_capability_is_needed_for_the_jobs_that_ask_for_it(queue: Queue, start: Start) -> None:
    @queue.job(capability="media")
    async def transcode(ctx: Context) -> None: ...

    @queue.job
    async def anything() -> None: ...

    left = await transcode.enqueue()
    await start(queue)
    await (await anything.enqueue()).result("60s")
    assert (await left.refresh()).status == "pending"
    await start(queue, capabilities=["media"])
    await in_status(queue, left, "completed")
