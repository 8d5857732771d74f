"""`ctx`: what a handler knows about its job, and what it can report and request."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import ended, until
from tests.worker import process_handlers as handlers
from tests.worker.conftest import Start
from treadle import Context, Fail, Job, Queue


async def test_the_context_knows_the_job(queue: Queue, start: Start) -> None:
    @queue.job
    async def know(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": ctx.job_id,
            "topic": ctx.topic,
            "attempt": [ctx.attempt, ctx.max_attempts, ctx.is_retry, ctx.is_last_attempt],
            "auth": ctx.auth,
            "payload": ctx.payload,
            "cancelled": ctx.cancelled,
            "repr": repr(ctx),
        }

    await start(queue)
    job = await know.enqueue({"x": 1}, max_attempts=5, created_by="ada", scope="user", scope_id="7")
    assert await job.result("60s") == {
        "id": job.id,
        "topic": "know",
        "attempt": [1, 5, False, False],
        "auth": {"createdBy": "ada", "scope": "user", "scopeId": "7"},
        "payload": {"x": 1},
        "cancelled": False,
        "repr": f"<Context of know {job.id}, attempt 1>",
    }


async def test_start_and_progress_of_a_long_job_are_seen_while_it_runs(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long(ctx: Context) -> None:
        await ctx.progress(12.7, "first")
        ctx.progress(45, "second")  # not awaited: that is all right too
        await let_go.wait()

    await start(queue)
    job = await long.enqueue()

    async def seen() -> Job | None:
        now = await queue.get(job.id)
        return now if now.progress else None

    now = await until(seen)
    assert (now.progress, now.progress_message) == (45, "second")
    assert now.started_at is not None
    assert now.started_at >= now.created_at
    let_go.set()
    assert (await ended(queue, job)).progress == 100


async def test_progress_is_written_a_few_times_a_second_at_most(queue: FaultyQueue, start: Start) -> None:
    @queue.job
    async def chatty(ctx: Context) -> int:
        loop = asyncio.get_running_loop()
        end, said = loop.time() + 1, 0
        while loop.time() < end:
            await ctx.progress(said % 100)
            said += 1
        return said

    await start(queue)
    assert await (await chatty.enqueue()).result("60s") > 100
    assert 1 <= queue.faults.calls["touch"] <= 6


async def test_a_quick_job_costs_no_write_but_its_ending(queue: FaultyQueue, start: Start) -> None:
    @queue.job
    async def quick(ctx: Context) -> None:
        await ctx.progress(50)

    worker = await start(queue)
    await quick.enqueue_many([{}] * 100)
    await until(lambda: worker.metrics.completed == 100)
    assert queue.faults.calls["touch"] == 0


@pytest.mark.parametrize(("percent", "shown"), [(-5, 0), (250, 100), (99.9, 99)])
async def test_the_last_progress_of_a_failed_job_is_kept(
    queue: Queue, start: Start, percent: float, shown: int
) -> None:
    @queue.job
    async def stops(ctx: Context) -> None:
        await ctx.progress(percent, "so far \x00\ud800")
        raise Fail("here")

    await start(queue)
    job = await ended(queue, await stops.enqueue())
    assert (job.status, job.progress, job.progress_message) == ("failed", shown, "so far \\x00\\ud800")


async def test_a_heartbeat_renews_the_lease_now_but_not_in_a_tight_loop(queue: FaultyQueue, start: Start) -> None:
    @queue.job
    async def anxious(ctx: Context) -> str:
        before = (await queue.get(ctx.job_id)).locked_until
        await asyncio.sleep(0.05)  # so that a renewed lease ends later
        for _ in range(50):
            await ctx.heartbeat()
        after = (await queue.get(ctx.job_id)).locked_until
        assert before
        assert after
        return "later" if after > before else "the same"

    await start(queue)
    assert await (await anxious.enqueue()).result("60s") == "later"
    assert queue.faults.calls["touch"] <= 2


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_a_heartbeat_with_a_lease_keeps_it_that_long_over_the_next_renewals(
    queue: FaultyQueue, start: Start, kind: str, tmp_path: Path
) -> None:
    def in_thread(ctx: Context, payload: dict[str, Any]) -> None:
        handlers.holds_on(ctx, payload)

    async def in_coroutine(ctx: Context, payload: dict[str, Any]) -> None:
        await ctx.heartbeat("30m")
        await until(Path(payload["until"]).exists)

    functions: dict[str, Any] = {"coroutine": in_coroutine, "thread": in_thread, "process": handlers.holds_on}
    queue.register("holds", functions[kind], process=kind == "process")
    path = tmp_path / "enough"
    job = await queue.enqueue("holds", {"until": str(path)})
    worker = await start(queue, lease="600ms")

    async def lasts() -> bool:
        until_then = (await job.refresh()).locked_until
        return until_then is not None and (until_then - datetime.now(UTC)).total_seconds() > 1_700

    await until(lasts)
    await asyncio.sleep(0.5)  # two renewals
    assert await lasts()
    path.touch()
    await job.result("60s")
    assert worker.metrics.lease_losses == 0


@pytest.mark.parametrize("lease", ["4s", "61m", "soon", -1])
async def test_a_lease_that_is_too_short_or_too_long_is_refused(queue: FaultyQueue, start: Start, lease: Any) -> None:
    @queue.job(max_attempts=1)
    async def holds(ctx: Context) -> None:
        await ctx.heartbeat(lease)

    job = await holds.enqueue()
    await start(queue)
    await until(lambda: _has_failed(job))
    assert (await job.refresh()).error_type == "InvalidInput"


async def _has_failed(job: Job) -> bool:
    return (await job.refresh()).status == "failed"


async def test_a_heartbeat_while_the_store_is_away_is_no_error_and_its_news_are_written_later(
    queue: FaultyQueue, start: Start
) -> None:
    failures = queue.faults.fail("touch", times=1)

    def progress_of(job_id: str) -> Callable[[], Awaitable[int | None]]:
        async def look() -> int | None:
            return (await queue.get(job_id)).progress

        return look

    @queue.job
    async def reports(ctx: Context) -> int | None:
        await ctx.progress(40, "half way")
        await ctx.heartbeat()
        assert not failures.left
        return await until(progress_of(ctx.job_id))

    await start(queue)
    assert await (await reports.enqueue()).result("60s") == 40


async def test_progress_that_cannot_be_written_does_not_keep_a_job_from_ending(
    queue: FaultyQueue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    queue.faults.fail("touch")

    @queue.job
    async def stops(ctx: Context) -> None:
        await ctx.progress(40, "so far")
        raise Fail("here")

    await start(queue)
    job = await ended(queue, await stops.enqueue())
    assert (job.status, job.progress) == ("failed", 0)
    assert any("the last progress of 1 jobs was not written" in record.message for record in caplog.records)


async def test_an_enqueue_in_a_handler_inherits_creator_and_scope_by_default(queue: Queue, start: Start) -> None:
    @queue.job
    async def child() -> None: ...

    @queue.job
    async def parent(ctx: Context) -> list[str]:
        same = await ctx.enqueue("child")
        other = await ctx.enqueue("child", created_by="bob")
        return [same.id, other.id]

    await start(queue)
    job = await parent.options(created_by="ada", scope="account", scope_id="7").enqueue()
    same, other = [await queue.get(id) for id in await job.result("60s")]
    assert (same.created_by, same.scope, same.scope_id) == ("ada", "account", "7")
    assert (other.created_by, other.scope, other.scope_id) == ("bob", "account", "7")


async def test_the_log_knows_the_job(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @queue.job
    async def talk(ctx: Context) -> None:
        ctx.log.info("hello %s", "there")

    await start(queue)
    job = await talk.enqueue()
    await job.result("60s")
    (record,) = [record for record in caplog.records if record.name == "treadle.jobs.talk"]
    assert record.message == "hello there"
    assert (vars(record)["job_id"], vars(record)["topic"], vars(record)["attempt"]) == (job.id, "talk", 1)
