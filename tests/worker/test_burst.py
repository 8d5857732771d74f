"""Workers that end when nothing due is left, and `queue.run_until_empty()`."""

import asyncio
from typing import Any

import pytest

from tests.waiting import for_ever, until
from treadle import Concurrency, Context, Queue, Retry, TreadleError, Worker
from treadle.store.values import Wants
from treadle.worker import burst


async def run(worker: Worker) -> None:
    async with asyncio.timeout(60):
        await worker.run()


async def test_a_burst_runs_what_is_due_and_what_that_enqueues(queue: Queue) -> None:
    @queue.job
    async def parent(ctx: Context, n: int) -> None:
        for i in range(n):
            await ctx.enqueue("child", {"n": i})

    @queue.job(concurrency=Concurrency("queue_same_scope"))
    def child(n: int) -> int:
        return n

    await parent.enqueue(30)
    await run(Worker(queue, burst=True, slots=4))
    stats = await queue.stats()
    assert (stats.completed, stats.pending) == (31, 0)


async def test_a_burst_without_jobs_ends(queue: Queue) -> None:
    queue.register("mail", lambda: None)
    await run(Worker(queue, burst=True))
    assert (await queue.stats()).completed == 0


async def test_delayed_jobs_retries_and_topics_of_others_stay(queue: Queue) -> None:
    @queue.job(retry=Retry(2, backoff=["1h"]))
    def fails() -> None:
        raise ValueError("no")

    await fails.enqueue()
    await fails.options(delay="1h").enqueue()
    await queue.enqueue("not_served")
    await queue.enqueue("fails", capability="gpu")
    await run(Worker(queue, burst=True))
    assert (await queue.stats()).pending == 4
    assert sorted(job.attempt for job in await queue.list()) == [0, 0, 0, 1]


async def test_a_retry_that_is_due_immediately_is_run(queue: Queue) -> None:
    @queue.job(retry=Retry(3, backoff=[0, 0.05]))
    def fails(ctx: Context) -> int:
        if ctx.attempt < 2:
            raise ValueError("no")
        return ctx.attempt

    job = await fails.enqueue()
    await run(Worker(queue, burst=True))
    assert (await job.refresh()).result_value == 2


async def test_jobs_that_a_rate_lets_through_later_are_waited_for(queue: Queue) -> None:
    @queue.job(rate=(2, "200ms"))
    def limited() -> None: ...

    await limited.enqueue_many([{}] * 5)
    await run(Worker(queue, burst=True))
    assert (await queue.stats()).completed == 5


async def test_a_stop_ends_a_burst_too(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.job
    async def waits() -> None:
        started.set()
        await for_ever()

    await waits.enqueue()
    worker = Worker(queue, burst=True, drain="0s")
    running = asyncio.create_task(worker.run())
    await started.wait()
    worker.stop()
    await running
    assert (await queue.stats()).pending == 1


# -- run_until_empty -------------------------------------------------------------------------------------------------


async def test_run_until_empty_returns_the_ended_jobs_in_order(queue: Queue) -> None:
    @queue.job
    async def first(ctx: Context, name: str) -> str:
        await ctx.enqueue("second", {"name": name})
        return name

    @queue.job(max_attempts=1)
    def second(payload: dict[str, Any]) -> None:
        raise ValueError(payload["name"])

    await first.enqueue("a")
    ended = await queue.run_until_empty()
    assert [(job.topic, job.status) for job in ended] == [("first", "completed"), ("second", "failed")]
    assert await ended[0].result() == "a"
    assert "ValueError: a" in (ended[1].last_error or "")
    assert await queue.run_until_empty() == []


def test_run_until_empty_without_an_event_loop(url: str) -> None:
    queue = Queue(url)

    @queue.job
    def add(a: int, b: int) -> int:
        return a + b

    job = add.sync.enqueue(1, 2)
    assert [one.id for one in queue.sync.run_until_empty()] == [job.id]
    assert job.result() == 3
    queue.sync.close()


async def test_a_handler_that_enqueues_itself_for_ever_is_an_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert burst.MOST == 10_000
    monkeypatch.setattr(burst, "MOST", 20)

    @queue.job
    async def again(ctx: Context) -> None:
        await ctx.enqueue("again")

    await again.enqueue()
    with pytest.raises(TreadleError, match="more than 20 jobs have run; does a handler enqueue itself"):
        await queue.run_until_empty()


async def test_reclaim_takes_back_what_lost_its_worker(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    lease = await queue.store.open_lease("gone", 500)
    assert (await queue.store.claim(lease, Wants(["mail"], [], 1, 1))).jobs
    assert await queue.reclaim() == 0
    assert await until(queue.reclaim) == 1
    assert await queue.reclaim() == 0
    assert (await job.refresh()).status == "pending"
