"""Seed 000, edge cases and assumptions that concern the engine."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.acceptance.conftest import Start
from tests.servers import PostgresServer, find_postgres, needed
from tests.waiting import after_failures, in_status, until
from treadle import Context, InvalidInput, InvalidPayload, PayloadTooLarge, Queue, Status, WrongState
from treadle.model.durations import duration_ms
from treadle.model.settings import Settings


async def test_1_a_payload_over_one_mebibyte_is_refused(queue: Queue) -> None:
    with pytest.raises(PayloadTooLarge, match="the limit is 1,048,576") as refused:
        await queue.enqueue("mail", {"text": "x" * 1_048_576})
    assert refused.value.code == "payload_too_large"


async def test_2_a_job_over_its_execution_limit_fails_and_the_default_limit_is_ten_minutes(
    queue: Queue, start: Start
) -> None:
    assert duration_ms(queue.register("usual", lambda: None).handler.template.timeout) == 600_000

    @queue.job(timeout="100ms")
    async def endless() -> None:
        await asyncio.Event().wait()

    await start(queue)
    late = await after_failures(queue, await endless.enqueue(), 1)
    assert (late.status, late.error_type) == (Status.PENDING, "TimeoutError")


async def test_2_a_long_job_can_be_split_into_smaller_jobs(queue: Queue, start: Start) -> None:
    @queue.job
    async def part(payload: dict[str, int]) -> int:
        return payload["n"]

    @queue.job
    async def whole(ctx: Context) -> list[str]:
        return [(await ctx.enqueue("part", {"n": n})).id for n in range(3)]

    await start(queue)
    ids = await (await whole.enqueue()).result(timeout="30s")
    assert [await queue.result(id, timeout="30s") for id in ids] == [0, 1, 2]


async def test_3_a_job_of_a_topic_without_a_worker_stays_pending_until_there_is_one(queue: Queue, start: Start) -> None:
    job = await queue.enqueue("orphan")
    queue.register("other", lambda: None)
    worker = await start(queue)
    await in_status(queue, await queue.enqueue("other"), "completed")
    assert (await queue.get(job.id)).status is Status.PENDING
    assert "no live worker serves topic orphan" in await queue.why(job.id)
    worker.stop()
    queue.register("orphan", lambda: "at last")
    await start(queue)
    assert await job.result(timeout="30s") == "at last"


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    with PostgresServer(needed(find_postgres), log=tmp_path / "postgres.log") as server:
        yield server


async def test_4_when_postgresql_is_away_the_worker_tries_again_and_no_job_is_lost(
    own_postgres: PostgresServer, start: Start
) -> None:
    done: list[int] = []
    async with Queue(own_postgres.create_database("jobs")) as queue:
        queue.register("mail", lambda payload: done.append(payload["n"]))
        worker = await start(queue)
        await queue.enqueue_many("mail", [{"n": n} for n in range(10)])
        await until(lambda: len(done) == 10)
        await asyncio.to_thread(own_postgres.stop)
        await until(lambda: worker.metrics.store_errors > 0)
        await asyncio.to_thread(own_postgres.start)

        async def enqueue() -> bool:
            try:
                await queue.enqueue("mail", {"n": 10}, idempotency_key="once")
            except Exception:
                return False
            return True

        await until(enqueue)
        await until(lambda: 10 in done)

        async def all_completed() -> bool:
            return await queue.count(status="completed") == 11

        await until(all_completed)
        assert sorted(done) == list(range(11))
        worker.stop()


async def test_4_when_sqlite_is_locked_the_worker_waits_and_no_job_is_lost(sqlite_url: str, start: Start) -> None:
    done: list[int] = []
    async with Queue(sqlite_url) as queue:
        queue.register("mail", lambda payload: done.append(payload["n"]))
        worker = await start(queue)
        somebody = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        somebody.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(queue.enqueue_many("mail", [{"n": n} for n in range(10)]))
        assert not (await asyncio.wait({waiting}, timeout=0.3))[0]
        somebody.execute("COMMIT")
        somebody.close()
        for job in await waiting:
            await in_status(queue, job, "completed")
        assert sorted(done) == list(range(10))
        worker.stop()


ENQUEUE = """
import asyncio, sys
from treadle import Queue

async def main():
    async with Queue(sys.argv[1]) as queue:
        jobs = await asyncio.gather(*(queue.enqueue("mail") for _ in range(250)))
        print(*(job.id for job in jobs))

asyncio.run(main())
"""


async def test_5_and_6_many_concurrent_enqueues_are_all_stored_under_different_ids(url: str, queue: Queue) -> None:
    command = [sys.executable, "-c", ENQUEUE, url]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    ids = [id for process in processes for id in process.communicate(timeout=60)[0].split()]
    assert len(ids) == len(set(ids)) == await queue.count() == 1000
    assert {UUID(id).version for id in ids} == {7}


async def test_6_ids_are_ordered_by_time(queue: Queue) -> None:
    ids = [(await queue.enqueue("mail")).id for _ in range(20)]
    assert ids == sorted(ids)


async def test_7_only_pending_and_failed_jobs_can_be_deleted_never_a_running_one(queue: Queue, start: Start) -> None:
    gate = asyncio.Event()

    @queue.job(max_attempts=1)
    async def mail(payload: dict[str, bool]) -> None:
        if payload.get("fail"):
            raise ValueError("no")
        await gate.wait()

    pending = await queue.enqueue("unserved")
    await queue.delete(pending.id)
    await start(queue)
    failed = await in_status(queue, await mail.enqueue({"fail": True}), "failed")
    await queue.delete(failed.id)
    running = await mail.enqueue()
    await in_status(queue, running, "processing")
    with pytest.raises(WrongState, match="processing"):
        await queue.delete(running.id)
    gate.set()
    await in_status(queue, running, "completed")
    with pytest.raises(WrongState, match="completed"):
        await queue.delete(running.id)


# -- assumptions ---------------------------------------------------------------------------------------------------


async def test_assumption_1_jobs_survive_a_crash_of_the_database(own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database("jobs")
    queue = Queue(url)
    ids = {(await queue.enqueue("mail", {"n": n})).id for n in range(20)}
    await asyncio.to_thread(own_postgres.kill9)
    await asyncio.to_thread(own_postgres.start)
    await queue.close()
    async with Queue(url) as again:
        assert {job.id for job in await again.list()} == ids


ENQUEUE_AND_DIE = """
import asyncio, os, signal, sys
from treadle import Queue

async def main():
    queue = await Queue(sys.argv[1]).open()
    for n in range(20):
        job = await queue.enqueue("mail", {"n": n})
        print(job.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_assumption_1_an_answered_enqueue_survives_a_crash_of_its_process(url: str, queue: Queue) -> None:
    command = [sys.executable, "-c", ENQUEUE_AND_DIE, url]
    died = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, text=True)
    assert died.returncode == -9
    assert {job.id for job in await queue.list()} == set(died.stdout.split())
    assert await queue.count() == 20


async def test_assumption_3_topics_are_lower_snake_case(queue: Queue) -> None:
    await queue.enqueue("mail_digest")
    for topic in ("MailDigest", "mail-digest", "mail digest"):
        with pytest.raises(InvalidInput, match="topic"):
            await queue.enqueue(topic)


async def test_assumption_4_a_payload_is_a_json_object(queue: Queue) -> None:
    assert (await queue.enqueue("mail")).payload == {}
    with pytest.raises(InvalidPayload, match="must be a JSON object"):
        await queue.enqueue("mail", [1, 2])


async def test_assumption_5_a_worker_has_ten_slots_and_they_can_be_chosen(queue: Queue, start: Start) -> None:
    assert Settings().slots == 10
    running, most = 0, 0
    gate = asyncio.Event()

    @queue.job
    async def mail() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    await queue.enqueue_many("mail", [{}] * 12)
    worker = await start(queue)
    await until(lambda: most == 10)
    gate.set()

    async def all_done() -> bool:
        return await queue.count(status="completed") == 12

    await until(all_done)
    assert most == 10
    worker.stop()
    gate.clear()
    most = 0
    await start(queue, slots=3)
    await queue.enqueue_many("mail", [{}] * 4)
    await until(lambda: most == 3)
    gate.set()
