"""Seed 000, user story 2: register handlers, and jobs are run in the background."""

import asyncio
from collections import Counter

from tests.acceptance.conftest import Another, Start
from tests.waiting import give_way, in_status, until
from treadle import Context, Queue


async def test_1_a_worker_takes_an_enqueued_job_by_itself_and_runs_it(queue: Queue, start: Start) -> None:
    ran = asyncio.Event()

    @queue.job
    async def mail_digest() -> None:
        ran.set()

    await start(queue)
    await mail_digest.enqueue()
    async with asyncio.timeout(30):
        await ran.wait()


async def test_2_the_status_of_a_running_job_is_processing(queue: Queue, start: Start) -> None:
    gate = asyncio.Event()

    @queue.job
    async def mail_digest() -> None:
        await gate.wait()

    worker = await start(queue)
    job = await mail_digest.enqueue()
    running = await in_status(queue, job, "processing")
    assert running.locked_by == worker.name
    assert running.locked_until is not None
    gate.set()
    await in_status(queue, job, "completed")


async def test_3_a_job_that_succeeded_is_completed_and_keeps_its_result(queue: Queue, start: Start) -> None:
    @queue.job
    async def mail_digest() -> dict[str, int]:
        return {"sent": 3}

    await start(queue)
    job = await mail_digest.enqueue()
    done = await in_status(queue, job, "completed")
    assert (done.result_value, done.progress, done.locked_by) == ({"sent": 3}, 100, None)
    assert done.completed_at is not None
    assert await job.result() == {"sent": 3}


async def test_4_a_job_that_raised_is_failed_and_its_error_recorded(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def mail_digest() -> None:
        raise ConnectionError("SMTP connection failed")

    await start(queue)
    failed = await in_status(queue, await mail_digest.enqueue(), "failed")
    assert failed.error_type == "ConnectionError"
    assert failed.last_error is not None
    assert "SMTP connection failed" in failed.last_error
    assert failed.failed_at is not None


async def test_5_of_several_workers_exactly_one_runs_each_job(another: Another, start: Start) -> None:
    ran: Counter[str] = Counter()
    queues = [await another() for _ in range(4)]

    async def mail_digest(ctx: Context) -> None:
        ran[ctx.job_id] += 1
        await give_way()

    for queue in queues:
        queue.register("mail_digest", mail_digest)
        await start(queue)
    jobs = await queues[0].enqueue_many("mail_digest", [{"n": n} for n in range(400)])
    await until(lambda: sum(ran.values()) >= 400)
    assert ran == Counter(job.id for job in jobs)
    await until_completed(queues[0], 400)
    assert ran == Counter(job.id for job in jobs)


async def until_completed(queue: Queue, count: int) -> None:
    async def all_done() -> bool:
        return await queue.count(status="completed") == count

    await until(all_done)
