"""Settling: batched, kept while the store is unavailable, never dropped, never invented."""

import asyncio
from typing import Any

import pytest

from tests.faulty import Around, FaultyQueue
from tests.waiting import ended, stays, until
from tests.worker.conftest import Start
from treadle import Context, Queue, Retry
from treadle.queue import steering
from treadle.store.values import FollowUpsBusy, Settlement


def noop(queue: Queue) -> Any:
    @queue.job
    async def quick(payload: dict[str, Any]) -> Any:
        return payload.get("x")

    return quick


@pytest.mark.every_store
async def test_many_endings_are_written_in_few_batches(queue: FaultyQueue, start: Start) -> None:
    quick, sizes = noop(queue), []

    queue.faults.before("settle", lambda batch: sizes.append(len(batch)))
    await quick.enqueue_many([{}] * 2000)
    worker = await start(queue)
    await until(lambda: worker.metrics.completed == 2000)
    assert sum(sizes) == 2000
    assert len(sizes) < 500
    assert max(sizes) <= 1000


async def test_immediate_writes_one_job_at_a_time(queue: FaultyQueue, start: Start) -> None:
    quick, sizes = noop(queue), []

    queue.faults.before("settle", lambda batch: sizes.append(len(batch)))
    await quick.enqueue_many([{}] * 50)
    worker = await start(queue, immediate=True)
    await until(lambda: worker.metrics.completed == 50)
    assert sizes == [1] * 50


async def test_endings_wait_while_the_store_is_away(queue: FaultyQueue, start: Start) -> None:
    quick, failures = noop(queue), queue.faults.fail("settle", times=4)
    await start(queue)
    jobs = await quick.enqueue_many([{"x": i} for i in range(20)])
    assert [await job.result("60s") for job in jobs] == list(range(20))
    assert failures.left == 0


async def test_an_answer_lost_after_the_commit_does_not_end_a_job_twice(queue: FaultyQueue, start: Start) -> None:
    quick = noop(queue)
    queue.faults.fail("settle", times=1, lose_answer=True)
    worker = await start(queue)
    jobs = await quick.enqueue_many([{"x": i} for i in range(20)])
    assert [await job.result("60s") for job in jobs] == list(range(20))
    await until(lambda: worker.metrics.completed + worker.metrics.lease_losses == 20)
    assert worker.metrics.lease_losses == 0


async def test_the_ending_of_a_job_that_was_taken_away_is_refused_and_told_of(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    taken = False

    @queue.job
    async def slow(ctx: Context) -> str:
        nonlocal taken
        if taken:
            return "second"
        taken = True
        await steering.release(queue.store, [ctx.job_id])
        return "first"

    worker = await start(queue, slots=1)
    assert await (await slow.enqueue()).result("60s") == "second"
    await until(lambda: worker.metrics.lease_losses == 1)
    assert any("were no longer ours when they ended" in record.message for record in caplog.records)


async def test_one_ending_that_cannot_be_stored_fails_alone(queue: FaultyQueue, start: Start) -> None:
    quick = noop(queue)

    def refuse(batch: list[Settlement]) -> None:
        if any(one.transition.result == '"bad"' for one in batch):
            raise ValueError("this value \x00 is not for me")

    queue.faults.before("settle", refuse)
    await start(queue)
    jobs = await quick.enqueue_many([{"x": "bad" if i == 5 else i} for i in range(10)])
    done = [await ended(queue, job) for job in jobs]
    assert sum(job.status == "completed" for job in done) == 9
    assert (done[5].status, done[5].error_type) == ("failed", "ResultNotStored")
    assert "this value" in (done[5].last_error or "")


async def test_an_error_of_the_store_that_passes_makes_no_failure(queue: FaultyQueue, start: Start) -> None:
    """A driver error that is not mapped to StoreUnavailable, once."""
    quick = noop(queue)
    queue.faults.fail("settle", times=2, error=RuntimeError("connection is closed"))
    await start(queue)
    jobs = await quick.enqueue_many([{"x": i} for i in range(5)])
    assert [(await ended(queue, job)).status for job in jobs] == ["completed"] * 5


async def test_an_ending_is_not_blamed_on_its_data_while_the_store_does_not_answer(
    queue: FaultyQueue, start: Start
) -> None:
    quick, closed = noop(queue), RuntimeError("connection is closed")
    worker = await start(queue, maintenance=False)
    await until(lambda: worker.metrics.slots)
    away = queue.faults.fail("settle", error=closed)

    async def now(call: Around) -> Any:
        if away.left:
            away.stop()
            raise closed
        return await call()

    queue.faults.around("now", now)
    assert await (await quick.enqueue({"x": 1})).result("60s") == 1
    assert not away.left


async def test_a_retry_is_picked_up_when_it_is_due_without_any_hint(queue: FaultyQueue, start: Start) -> None:
    queue.faults.mute()
    tries: list[int] = []

    @queue.job(retry=Retry(2, backoff=["100ms"]))
    async def fragile(ctx: Context) -> None:
        tries.append(ctx.attempt)
        raise ValueError

    job = await fragile.enqueue()
    await start(queue, poll_interval="1h")
    await ended(queue, job)
    assert tries == [1, 2]


async def test_the_worker_stops_claiming_when_endings_pile_up(
    queue: FaultyQueue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, gate = noop(queue), asyncio.Event()

    async def settle_later(call: Around, batch: list[Settlement]) -> Any:
        await gate.wait()
        return await call(batch)

    monkeypatch.setattr("treadle.worker.claim_budget.MOST_UNWRITTEN", 100)
    queue.faults.around("settle", settle_later)
    await quick.enqueue_many([{}] * 1000)
    worker = await start(queue, slots=10)
    await until(lambda: worker.metrics.claimed >= 100)
    await stays(lambda: worker.metrics.claimed <= 200, 0.3)
    gate.set()
    await until(lambda: worker.metrics.completed == 1000)


async def test_an_ending_with_a_locked_follow_up_is_tried_again_and_holds_up_no_other(
    queue: FaultyQueue, start: Start
) -> None:
    quick = noop(queue)
    tries: list[int] = []
    locked = True

    async def settle(call: Around, batch: list[Settlement]) -> Any:
        left = [one for one in batch if locked and one.transition.result == '"blocked"']
        tries.append(len(left))
        lost = await call([one for one in batch if one not in left])
        if left:
            raise FollowUpsBusy(left, lost)
        return lost

    queue.faults.around("settle", settle)
    worker = await start(queue)
    blocked = await quick.enqueue_many([{"x": "blocked"}] * 3)
    await until(lambda: tries.count(3) > 2)
    for number in range(10):
        assert await (await quick.enqueue({"x": number})).result("60s") == number
    assert [(await queue.get(job.id)).status for job in blocked] == ["processing"] * 3
    locked = False
    assert [await job.result("60s") for job in blocked] == ["blocked"] * 3
    await until(lambda: worker.metrics.completed == 13)
    assert worker.metrics.lease_losses == 0
