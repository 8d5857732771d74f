"""Seed 000, user story 10: register handlers in code (`app.Jobs().Register`, here `queue.register`)."""

import asyncio
from collections import Counter

from tests.acceptance.conftest import Another, Start
from tests.waiting import after_failures, in_status, until
from treadle import Context, Queue, Status


async def test_1_a_registered_worker_begins_to_listen(queue: Queue, start: Start) -> None:
    queue.register("mail_digest", lambda: None)
    worker = await start(queue)

    async def listens() -> bool:
        return [(one.name, list(one.topics)) for one in await queue.store.workers()] == [(worker.name, ["mail_digest"])]

    await until(listens)


async def test_2_the_handler_is_called_with_the_job(queue: Queue, start: Start) -> None:
    calls: list[tuple[str, str, dict[str, str]]] = []

    def handler(ctx: Context, payload: dict[str, str]) -> None:
        calls.append((ctx.job_id, ctx.topic, payload))

    queue.register("mail_digest", handler)
    await start(queue)
    job = await queue.enqueue("mail_digest", {"userId": "123"})
    await in_status(queue, job, "completed")
    assert calls == [(job.id, "mail_digest", {"userId": "123"})]


async def test_3_a_handler_that_returns_nothing_completes_the_job(queue: Queue, start: Start) -> None:
    queue.register("mail_digest", lambda: None)
    await start(queue)
    done = await in_status(queue, await queue.enqueue("mail_digest"), "completed")
    assert done.result_value is None


async def test_4_a_handler_that_raises_fails_the_attempt_and_is_tried_again(queue: Queue, start: Start) -> None:
    def handler() -> None:
        raise ValueError("no such user")

    queue.register("mail_digest", handler)
    queue.register("once", handler, max_attempts=1)
    await start(queue)
    again = await after_failures(queue, await queue.enqueue("mail_digest"), 1)
    assert (again.status, again.error_type) == (Status.PENDING, "ValueError")
    assert again.run_at > again.updated_at
    await in_status(queue, await queue.enqueue("once"), "failed")


async def test_5_jobs_of_one_topic_are_spread_over_its_workers(another: Another, start: Start) -> None:
    """Each worker has one slot and holds its job until all of them have one: none can take them all."""
    by: Counter[int] = Counter()
    together = asyncio.Barrier(3)
    queues = [await another() for _ in range(3)]

    def register(number: int, queue: Queue) -> None:
        async def handler() -> None:
            by[number] += 1
            await together.wait()

        queue.register("mail_digest", handler)

    for number, queue in enumerate(queues):
        register(number, queue)
        await start(queue, slots=1)
    await queues[0].enqueue_many("mail_digest", [{}] * 9)
    await until(lambda: sum(by.values()) == 9)
    assert by == {0: 3, 1: 3, 2: 3}
