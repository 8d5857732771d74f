"""`ctx.enqueue(…, with_outcome=True)`: the new job is stored in the transaction that completes its job."""

import asyncio
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import ended, until
from tests.worker import process_handlers as handlers
from tests.worker.conftest import Start
from treadle import Concurrency, Context, InvalidInput, Queue, Status
from treadle.store.values import Settlement


def in_a_coroutine(queue: Queue, **options: Any) -> None:
    queue.register("chain", handlers.async_chain, **options)


def in_a_thread(queue: Queue, **options: Any) -> None:
    queue.register("chain", handlers.chain, **options)


def in_a_process(queue: Queue, **options: Any) -> None:
    queue.register("chain", handlers.chain, process=True, **options)


def in_a_coroutine_of_a_process(queue: Queue, **options: Any) -> None:
    queue.register("chain", handlers.async_chain, process=True, **options)


EVERYWHERE = pytest.mark.parametrize(
    "register", [in_a_coroutine, in_a_thread, in_a_process, in_a_coroutine_of_a_process]
)


@EVERYWHERE
async def test_it_is_there_when_the_job_has_completed(queue: Queue, start: Start, register: Any) -> None:
    register(queue)
    job = await queue.enqueue("chain", {"n": 7}, scope="user", scope_id="u1", created_by="ann")
    await start(queue)
    next_id = await queue.result(job.id, "20s")
    made = await queue.get(next_id)
    assert (made.topic, made.status, made.payload) == ("next", Status.PENDING, {"n": 7})
    assert (made.scope, made.scope_id, made.created_by) == ("user", "u1", "ann")


@EVERYWHERE
async def test_an_attempt_that_fails_stores_none(queue: Queue, start: Start, register: Any) -> None:
    register(queue, max_attempts=1)
    job = await queue.enqueue("chain", {"n": 7, "raises": True})
    await start(queue)
    assert (await ended(queue, job)).status is Status.FAILED
    assert await queue.count(topic="next") == 0


@EVERYWHERE
async def test_a_refused_one_makes_the_job_a_failure(queue: Queue, start: Start, register: Any) -> None:
    async def idle() -> None: ...

    queue.register("next", idle, concurrency=Concurrency("reject_same_scope"))
    register(queue, max_attempts=1)
    await queue.pause("next")
    first = await queue.enqueue("next")
    job = await queue.enqueue("chain", {"n": 7})
    failures: list[str] = []

    @queue.on_failure
    async def note(ctx: Context, error: BaseException) -> None:
        failures.append(str(error))

    worker = await start(queue)
    found = await ended(queue, job)
    assert (found.status, found.error_type) == (Status.FAILED, "FollowUpRefused")
    assert [one.id for one in await queue.list(topic="next")] == [first.id]
    await until(lambda: failures)
    assert "a follow-up job was refused" in failures[0]
    assert worker.metrics.failed == 1


@EVERYWHERE
async def test_bad_input_is_the_handlers_error(queue: Queue, start: Start, register: Any) -> None:
    register(queue, max_attempts=1)
    job = await queue.enqueue("chain", {"n": 7, "options": {"max_attempts": 0}})
    await start(queue)
    assert (await ended(queue, job)).error_type == "InvalidInput"


async def test_it_is_not_there_before_the_outcome(queue: FaultyQueue, start: Start) -> None:
    in_a_coroutine(queue)
    held, go_on = asyncio.Event(), asyncio.Event()

    async def hold(call: Any, batch: list[Settlement], **options: Any) -> Any:
        held.set()
        await go_on.wait()
        return await call(batch, **options)

    queue.faults.around("settle", hold)
    job = await queue.enqueue("chain", {"n": 7})
    await start(queue)
    await held.wait()
    assert await queue.count(topic="next") == 0
    go_on.set()
    await queue.result(job.id, "20s")
    assert await queue.count(topic="next") == 1


async def test_an_answer_that_got_lost_stores_it_once(queue: FaultyQueue, start: Start) -> None:
    in_a_coroutine(queue)
    queue.faults.fail("settle", times=1, lose_answer=True)
    job = await queue.enqueue("chain", {"n": 7})
    await start(queue)
    await queue.result(job.id, "20s")
    await until(lambda: queue.faults.calls["settle"] >= 2)
    assert await queue.count(topic="next") == 1


async def test_a_hook_after_the_outcome_is_too_late(queue: Queue, start: Start) -> None:
    in_a_coroutine(queue)
    refused: list[Exception] = []

    @queue.on_success
    async def late(ctx: Context, result: Any) -> None:
        try:
            await ctx.enqueue("other", with_outcome=True)
        except InvalidInput as error:
            refused.append(error)

    await queue.enqueue("chain", {"n": 7})
    await start(queue)
    await until(lambda: refused)
    assert "has ended" in str(refused[0])


async def test_a_connection_and_the_outcome_are_one_too_many(queue: Queue, start: Start) -> None:
    async def chain(ctx: Context) -> None:
        await ctx.enqueue("next", with_outcome=True, connection=object())

    queue.register("chain", chain, max_attempts=1)
    job = await queue.enqueue("chain")
    await start(queue)
    assert "not both" in ((await ended(queue, job)).last_error or "")
