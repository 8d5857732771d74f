"""Helpers for users' tests: a fresh queue, a clock, jobs that run inline, and assertions."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from treadle import ChildFailed, Context, JobNotFound, Queue, Retry, Status, Worker
from treadle.testing import Clock, assert_enqueued, inline, refute_enqueued


@pytest.fixture
def queue(treadle_queue: Queue) -> Queue:
    return treadle_queue


# -- the clock -------------------------------------------------------------------------------------------------------


async def test_a_delayed_job_is_due_when_the_clock_says_so(queue: Queue, treadle_clock: Clock) -> None:
    queue.register("mail", lambda: "sent")
    job = await queue.enqueue("mail", delay="15m")
    assert await queue.run_until_empty() == []
    treadle_clock.advance("14m")
    assert await queue.run_until_empty() == []
    treadle_clock.advance("1m")
    assert [one.id for one in await queue.run_until_empty()] == [job.id]


async def test_retries_wait_by_the_clock(queue: Queue, treadle_clock: Clock) -> None:
    @queue.job(retry=Retry(3))
    def fragile(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return ctx.attempt

    job = await fragile.enqueue()
    for pause in ("1m", "4m"):
        assert await queue.run_until_empty() == []
        treadle_clock.advance(pause)
    await queue.run_until_empty()
    assert await job.result() == 3


async def test_a_lease_runs_out_by_the_clock(queue: Queue, treadle_clock: Clock) -> None:
    from treadle.store.values import Wants

    queue.register("mail", lambda: "sent")
    job = await queue.enqueue("mail")
    lease = await queue.store.open_lease("gone", 300_000)
    assert (await queue.store.claim(lease, Wants(["mail"], [], 1, 1))).jobs
    assert await queue.run_until_empty() == []
    treadle_clock.advance("6m")
    assert [one.id for one in await queue.run_until_empty()] == [job.id]
    assert (await job.refresh()).attempt == 2


async def test_a_schedule_fires_by_the_clock(queue: Queue, treadle_clock: Clock) -> None:
    @queue.job(schedule="0 3 * * *")
    def nightly() -> None: ...

    await queue.open()
    assert await queue.run_until_empty() == []
    treadle_clock.advance("1d")
    assert [job.topic for job in await queue.run_until_empty()] == ["nightly"]


async def test_a_job_expires_by_the_clock(queue: Queue, treadle_clock: Clock) -> None:
    queue.register("mail", lambda: None)
    job = await queue.enqueue("mail", expires="1h")
    treadle_clock.advance("2h")
    await queue.run_until_empty()
    assert (await job.refresh()).status == "expired"


async def test_a_worker_that_sleeps_is_woken_when_the_clock_moves(queue: Queue, treadle_clock: Clock) -> None:
    queue.register("mail", lambda: "sent")
    worker = Worker(queue, poll_interval="1h", maintenance=False)
    running = asyncio.create_task(worker.run())
    job = await queue.enqueue("mail", delay="1d")
    treadle_clock.advance("1d")
    assert await job.result("60s") == "sent"
    worker.stop()
    await running


async def test_times_of_jobs_follow_the_clock_and_other_queues_do_not(
    queue: Queue, treadle_clock: Clock, sqlite_url: str
) -> None:
    treadle_clock.advance("30d")
    job = await queue.enqueue("mail")
    assert (job.created_at - datetime.now(UTC)).days in (29, 30)
    from treadle.store import clock

    clock.use(None)
    async with Queue(sqlite_url) as other:
        assert abs((await other.enqueue("mail")).created_at - datetime.now(UTC)).total_seconds() < 60


# -- inline ----------------------------------------------------------------------------------------------------------


async def test_inline_an_enqueue_runs_its_handler(queue: Queue) -> None:
    @queue.job(capability="gpu")
    async def outer(ctx: Context, n: int) -> int:
        job = await ctx.enqueue("inner", {"n": n})
        return 2 * job.result_value

    @queue.job
    def inner(n: int) -> int:
        return n + 1

    with inline(queue):
        job = await outer.options(delay="1h").enqueue(4)
        assert (job.status, job.result_value) == ("completed", 10)
        many = await inner.enqueue_many([(1,), (2,)])
        assert [one.result_value for one in many] == [2, 3]
        assert (await queue.enqueue("nobody")).status == "pending"
    assert (await inner.enqueue(1)).status == "pending"
    assert await job.result() == 10


async def test_inline_a_failing_handler_raises(queue: Queue) -> None:
    @queue.job
    async def fails() -> None:
        raise LookupError("no such thing")

    @queue.job(max_attempts=1)
    def fails_for_good() -> None:
        raise ValueError("never")

    with inline(queue):
        with pytest.raises(LookupError, match="no such thing"):
            await fails.enqueue()
        with pytest.raises(ValueError, match="never"):
            await fails_for_good.enqueue()


def test_inline_without_an_event_loop(queue: Queue) -> None:
    @queue.job
    def add(a: int, b: int) -> int:
        return a + b

    with inline(queue):
        assert add.sync.enqueue(1, 2).result() == 3
        assert [job.result() for job in add.sync.enqueue_many([(1, 2), (3, 4)])] == [3, 7]
    assert add.sync.enqueue(1, 2).status == "pending"


# -- assertions ------------------------------------------------------------------------------------------------------


async def test_what_was_enqueued_can_be_asserted(queue: Queue) -> None:
    @queue.job
    def mail(payload: dict[str, Any]) -> None: ...

    await mail.enqueue({"userId": "123", "options": {"html": True, "copies": 2}})
    await mail.enqueue({"userId": "124"})
    assert_enqueued(queue, "mail")
    assert_enqueued(queue, mail, count=2)
    assert_enqueued(queue, "mail", payload={"userId": "123"}, count=1)
    assert_enqueued(queue, "mail", payload={"options": {"html": True}})
    refute_enqueued(queue, "mail", payload={"userId": "125"})
    refute_enqueued(queue, "report")
    await queue.run_until_empty()
    assert_enqueued(queue, "mail", count=2)


async def test_a_failed_assertion_lists_what_was_enqueued(queue: Queue) -> None:
    with pytest.raises(AssertionError, match=r"at least one job of mail expected, found 0\. No job was enqueued"):
        assert_enqueued(queue, "mail")
    await queue.enqueue("mail", {"userId": "123"})
    with pytest.raises(AssertionError) as failed:
        assert_enqueued(queue, "mail", payload={"userId": "9"}, count=1)
    assert str(failed.value) == (
        '1 job of mail with {"userId": "9"} expected, found 0. Enqueued were:\n  mail {"userId": "123"} (pending)'
    )
    with pytest.raises(AssertionError, match=r'at least one job of report expected.*\n  mail \{"userId": "123"\}'):
        assert_enqueued(queue, "report")
    with pytest.raises(AssertionError, match="no job of mail expected, found 1"):
        refute_enqueued(queue, "mail")


def test_assertions_need_no_event_loop_and_leave_nothing_open(queue: Queue) -> None:
    refute_enqueued(queue, "mail")
    assert not queue.sync.is_open
    job = queue.sync.enqueue("mail")
    assert_enqueued(queue, "mail", count=1)
    assert job.refresh().id == job.id
    with pytest.raises(JobNotFound):
        queue.sync.get("nothing")


async def test_inline_a_job_waits_for_its_children(queue: Queue) -> None:
    """Also for theirs, and for many."""

    @queue.job
    async def leaf(n: int) -> int:
        return n * 2

    @queue.job
    async def middle(ctx: Context, n: int) -> int:
        return sum(await ctx.map("leaves", leaf, range(n), limit=2))

    @queue.job
    async def top(ctx: Context) -> int:
        return int(await ctx.run(middle, {"n": 5}, delay="1h")) + 1

    with inline(queue):
        job = await top.enqueue()
    assert (job.status, job.result_value) == (Status.COMPLETED, 21)


async def test_inline_a_child_that_fails_fails_its_parent(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    async def child() -> None:
        raise ValueError("no luck")

    @queue.job(max_attempts=1)
    async def parent(ctx: Context) -> None:
        await ctx.run(child)

    with inline(queue), pytest.raises(ChildFailed, match="no luck"):
        await parent.enqueue()
