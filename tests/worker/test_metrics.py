"""What a worker counts and times, on every store."""

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import ended, until
from tests.worker.conftest import Start
from treadle import Fail, Queue, Retry, Snooze, Worker
from treadle.telemetry.histogram import Histogram
from treadle.worker.metrics import Times


def folded(worker: Worker, topic: str) -> Times:
    worker.metrics.fold()
    return worker.metrics.topics[topic]


def count(histogram: Histogram) -> int:
    return sum(histogram.counts)


async def test_every_ending_is_counted_by_topic_and_status(queue: Queue, start: Start) -> None:
    @queue.job
    async def fine() -> None: ...

    @queue.job(retry=Retry(2, backoff="fixed", delay="10ms"))
    async def fragile() -> None:
        raise ValueError("broken")

    @queue.job
    async def refused() -> None:
        raise Fail("no")

    jobs = [*await fine.enqueue_many([{}] * 20), await fragile.enqueue(), await refused.enqueue()]
    worker = await start(queue)
    for job in jobs:
        await ended(queue, job)
    metrics = worker.metrics
    await until(lambda: metrics.completed == 20 and metrics.failed == 2)
    assert metrics.ended == {("fine", "completed"): 20, ("fragile", "failed"): 1, ("refused", "failed"): 1}
    assert metrics.retried == 1
    assert count(folded(worker, "fine").runs) == 20
    assert count(folded(worker, "fragile").runs) == 2


async def test_how_long_handlers_run(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()
    began: list[float] = []

    @queue.job
    async def long() -> None:
        began.append(time.monotonic())
        await let_go.wait()

    worker = await start(queue)
    job = await long.enqueue()
    await until(lambda: began and time.monotonic() - began[0] > 0.2)
    let_go.set()
    await ended(queue, job)
    ran = folded(worker, "long").runs
    assert count(ran) == 1
    assert 0.2 <= ran.total < 10


async def test_how_long_jobs_wait_is_told_by_the_databases_clock(queue: Queue, start: Start) -> None:
    """Which is this machine's clock in these tests."""
    starts: list[float] = []

    @queue.job
    async def quick() -> None:
        starts.append(time.time())

    job = await quick.enqueue()
    asked = time.monotonic()
    await until(lambda: time.monotonic() - asked > 0.3)
    worker = await start(queue)
    await ended(queue, job)
    waited = folded(worker, "quick").waits
    assert count(waited) == 1
    assert waited.total >= 0.25
    assert waited.total == pytest.approx(starts[0] - job.run_at.timestamp(), abs=0.2)


async def test_a_delayed_job_waits_from_its_time_on(queue: Queue, start: Start) -> None:
    starts: list[float] = []

    @queue.job
    async def later() -> None:
        starts.append(time.time())

    worker = await start(queue)
    job = await ended(queue, await later.options(delay="700ms").enqueue())
    assert folded(worker, "later").waits.total == pytest.approx(starts[0] - job.run_at.timestamp(), abs=0.2)


async def test_a_time_in_the_past_is_no_wait(queue: Queue, start: Start) -> None:
    starts: list[float] = []

    @queue.job
    async def overdue() -> None:
        starts.append(time.time())

    job = await overdue.options(run_at=datetime(2001, 1, 1, tzinfo=UTC)).enqueue()
    worker = await start(queue)
    await ended(queue, job)
    assert folded(worker, "overdue").waits.total == pytest.approx(starts[0] - job.created_at.timestamp(), abs=0.2)


async def test_a_snoozed_job_waits_from_its_new_time_on(queue: Queue, start: Start) -> None:
    starts: list[float] = []

    @queue.job
    async def patient() -> None:
        starts.append(time.time())
        if len(starts) == 1:
            raise Snooze("700ms")

    worker = await start(queue)
    made = await patient.enqueue()
    job = await ended(queue, made)
    waited = folded(worker, "patient").waits
    assert count(waited) == 2
    twice = starts[0] - made.run_at.timestamp() + starts[1] - job.run_at.timestamp()
    assert waited.total == pytest.approx(twice, abs=0.3)


async def test_time_in_the_worker_counts_as_waiting(queue: Queue, start: Start) -> None:
    """Prefetched jobs wait for a slot and not for the store; the wait counts either way."""
    let_go = threading.Event()

    @queue.job
    def slow() -> None:
        let_go.wait(15)

    jobs = await slow.enqueue_many([{}] * 2)
    worker = await start(queue, slots=1)
    asked = time.monotonic()
    await until(lambda: worker.metrics.free_slots() == 0 and time.monotonic() - asked > 0.3)
    let_go.set()
    for job in jobs:
        await ended(queue, job)
    assert folded(worker, "slow").waits.total >= 0.25


async def test_claims_and_settles_are_timed(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    await quick.enqueue_many([{}] * 50)
    worker = await start(queue)
    await until(lambda: worker.metrics.completed == 50)
    assert count(worker.metrics.claims) >= 1
    assert count(worker.metrics.settles) >= 1
    assert 0 < worker.metrics.settles.total < 10


async def test_slots_are_busy_while_handlers_run(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> None:
        await let_go.wait()

    await long.enqueue_many([{}] * 3)
    worker = await start(queue, slots=5)
    metrics = worker.metrics
    await until(lambda: metrics.slots == 5 and metrics.free_slots() == 2)
    let_go.set()
    await until(lambda: metrics.free_slots() == 5)
    worker.stop()
    await worker.done
    assert (metrics.slots, metrics.free_slots()) == (0, 0)


async def test_what_maintenance_ends_is_counted(queue: Queue, start: Start) -> None:
    @queue.job
    async def never() -> None: ...

    worker = await start(queue, reap_interval="20ms", topics=[])
    job = await never.options(expires="1ms").enqueue()
    await ended(queue, job)
    await until(lambda: worker.metrics.ended == {("never", "expired"): 1})


async def test_a_store_that_fails_is_counted(queue: FaultyQueue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    queue.faults.fail("claim", times=2)
    job = await quick.enqueue()
    worker = await start(queue)
    await ended(queue, job)
    assert worker.metrics.store_errors == 2


async def test_lists_are_folded_while_the_worker_works(queue: Queue, start: Start) -> None:
    """Otherwise a worker that is never scraped would keep a number for every job it ever ran."""

    @queue.job
    async def quick() -> None: ...

    @queue.job
    async def long() -> None:
        await asyncio.Event().wait()

    await long.enqueue()
    worker = await start(queue, drain="0s")
    await quick.enqueue_many([{}] * 500)
    await until(lambda: worker.metrics.completed == 500)
    times = worker.metrics.topics["quick"]
    await until(lambda: not times.new_runs and not times.new_starts)
    assert count(times.runs) == 500
