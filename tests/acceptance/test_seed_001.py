"""Seed 001: a job queue in PostgreSQL with priorities, batches, progress, recovery, and a list of what never to do."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.conftest import Start, StartProgram, Travel
from tests.acceptance.program import GATE, runs
from tests.waiting import after_failures, in_status, until
from treadle import Context, PayloadTooLarge, Queue, Retry, Status
from treadle.store.postgres.pools import PLAN_SETTINGS
from treadle.store.sql.queries import load
from treadle.store.values import Wants


async def claim(queue: Queue, *topics: str, limit: int = 100) -> list[str]:
    lease = await queue.store.open_lease("claimer", 60_000)
    return [job.id for job in (await queue.store.claim(lease, Wants(topics, [], limit, limit))).jobs]


# -- what it is for ------------------------------------------------------------------------------------------------


async def test_jobs_are_kept_when_the_service_restarts(queue: Queue, program: StartProgram, tmp_path: Path) -> None:
    """Enqueued by one program, run by two others, the first of which ends in between."""
    first, second = await queue.enqueue("note"), await queue.enqueue("note", delay="1h")
    await queue.close()
    one = program()
    await until(lambda: len(runs(tmp_path)) == 1)
    one.stop()
    await queue.requeue((await queue.cancel(second.id)).id)
    program()
    await until(lambda: len(runs(tmp_path)) == 2)
    assert [id for id, _, _ in runs(tmp_path)] == [first.id, second.id]


async def test_jobs_need_nothing_but_the_database(tmp_path: Path) -> None:
    """No Redis, no RabbitMQ: one file, one process, and the job is done."""
    program = (
        "import asyncio, sys\n"
        "from treadle import Queue, Worker\n"
        "queue = Queue(sys.argv[1])\n"
        "@queue.job\n"
        "async def greet(): return 'hello'\n"
        "async def main():\n"
        "    async with queue:\n"
        "        worker = Worker(queue)\n"
        "        running = asyncio.create_task(worker.run())\n"
        "        print(await (await greet.enqueue()).result(timeout='30s'))\n"
        "        worker.stop()\n"
        "        await running\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path}/jobs.db"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("hello\n", 0), done.stderr


async def test_the_job_tells_worker_claim_attempts_progress_and_events(queue: Queue, start: Start) -> None:
    gate = asyncio.Event()

    @queue.job
    async def mail(ctx: Context) -> None:
        ctx.progress(40, "second stage")
        await gate.wait()

    job = await mail.enqueue()
    before = (await queue.get(job.id)).as_json()
    assert (before["attempt"], before["maxAttempts"], before["progress"], before["priority"]) == (0, 3, 0, 50)
    worker = await start(queue)

    async def progressed() -> bool:
        return (await queue.get(job.id)).progress == 40

    await until(progressed)
    now = (await queue.get(job.id)).as_json()
    assert (now["lockedBy"], now["attempt"], now["progressMessage"]) == (worker.name, 1, "second stage")
    assert now["claimedAt"] is not None
    assert now["startedAt"] is not None
    assert now["eventsCount"] == 2
    gate.set()
    await in_status(queue, job, "completed")


# -- claiming in batches -------------------------------------------------------------------------------------------


async def test_a_claim_takes_the_highest_priority_first_then_the_oldest(queue: Queue) -> None:
    explicit, discovered, backfill = 150, 100, 30
    ids = [(await queue.enqueue("mail", priority=p)).id for p in (backfill, discovered, explicit, discovered, backfill)]
    assert await claim(queue, "mail") == [ids[2], ids[1], ids[3], ids[0], ids[4]]


async def test_a_claim_takes_a_batch_of_the_size_that_was_asked_for(queue: Queue) -> None:
    jobs = [job.id for job in await queue.enqueue_many("mail", [{}] * 25)]
    assert await claim(queue, "mail", limit=10) == jobs[:10]
    assert await claim(queue, "mail", limit=10) == jobs[10:20]
    assert await claim(queue, "mail", limit=10) == jobs[20:]
    assert await claim(queue, "mail", limit=10) == []


async def test_a_claim_takes_only_the_types_that_were_asked_for(queue: Queue) -> None:
    mail, report, _ = [await queue.enqueue(topic) for topic in ("mail", "report", "other")]
    assert await claim(queue, "mail", "report") == [mail.id, report.id]


async def test_a_claim_spends_an_attempt_and_names_its_worker(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    await claim(queue, "mail")
    claimed = await queue.get(job.id)
    assert (claimed.status, claimed.attempt, claimed.locked_by) == (Status.PROCESSING, 1, "claimer")
    assert claimed.claimed_at is not None
    assert claimed.started_at is None


async def test_no_job_is_claimed_twice_by_claims_at_the_same_time(url: str, queue: Queue) -> None:
    await queue.enqueue_many("mail", [{}] * 200)
    others = [await Queue(url).open() for _ in range(4)]
    batches = await asyncio.gather(*(claim(other, "mail", limit=10) for other in others for _ in range(10)))
    ids = [id for batch in batches for id in batch]
    assert len(ids) == len(set(ids))
    ids += await claim(queue, "mail", limit=500)
    assert len(ids) == len(set(ids)) == 200
    for other in others:
        await other.close()


async def test_a_claim_that_is_under_way_does_not_hold_up_another(postgres_url: str) -> None:
    """SKIP LOCKED: a claim skips rows that another one has locked, and does not wait for them."""
    async with Queue(postgres_url) as queue:
        jobs = [job.id for job in await queue.enqueue_many("mail", [{}] * 6)]
        slow = await asyncpg.connect(postgres_url)
        async with slow.transaction():
            await slow.execute("SELECT n FROM treadle.ready ORDER BY lane, run_at, n LIMIT 3 FOR UPDATE")
            async with asyncio.timeout(60):
                assert await claim(queue, "mail") == jobs[3:]
        await slow.close()
        assert await claim(queue, "mail") == jobs[:3]


async def test_strict_order_with_one_worker_per_type(queue: Queue, start: Start) -> None:
    order: list[int] = []

    @queue.job
    async def mail(payload: dict[str, int]) -> None:
        await asyncio.sleep(0.001 * (payload["n"] % 3))  # its work
        order.append(payload["n"])

    await queue.enqueue_many("mail", [{"n": n} for n in range(30)])
    await start(queue, slots=1)
    await until(lambda: len(order) == 30)
    assert order == list(range(30))


# -- completing, failing, progress ---------------------------------------------------------------------------------


async def test_complete_sets_progress_to_100_and_the_time(queue: Queue, start: Start) -> None:
    @queue.job
    async def mail(ctx: Context) -> None:
        ctx.progress(30, "sending")

    await start(queue)
    done = await in_status(queue, await mail.enqueue(), "completed")
    assert done.progress == 100
    assert done.completed_at is not None


async def test_fail_puts_the_job_back_while_attempts_are_left_and_then_fails_it(queue: Queue, start: Start) -> None:
    @queue.job(retry=Retry(2, backoff=["1h"]))
    async def mail() -> None:
        raise RuntimeError("boom")

    await start(queue)
    job = await mail.enqueue()
    back = await after_failures(queue, job, 1)
    assert (back.status, back.locked_by, back.claimed_at) == (Status.PENDING, None, None)
    assert back.last_error is not None
    assert "boom" in back.last_error
    await queue.reschedule(job.id, run_at=back.created_at)
    assert (await in_status(queue, job, "failed")).attempt == 2


async def test_progress_of_a_long_job_is_seen_while_it_runs(queue: Queue, start: Start) -> None:
    gates = {percent: asyncio.Event() for percent in (10, 60)}

    @queue.job
    async def mail(ctx: Context) -> None:
        for percent, gate in gates.items():
            ctx.progress(percent, f"stage {percent}")
            await gate.wait()

    await start(queue)
    job = await mail.enqueue()
    for percent, gate in gates.items():

        async def seen(percent: int = percent) -> bool:
            now = await queue.get(job.id)
            return (now.progress, now.progress_message) == (percent, f"stage {percent}")

        await until(seen)
        gate.set()
    await in_status(queue, job, "completed")


# -- stale jobs ----------------------------------------------------------------------------------------------------


async def test_a_stale_job_is_put_back_while_attempts_are_left(queue: Queue, start: Start, travel: Travel) -> None:
    """The one worker that is there serves another topic: it recovers the job, and does not run it."""
    job = await queue.enqueue("mail")
    await claim(queue, "mail")
    queue.register("other", lambda: None)
    await start(queue, lease="10h")
    await travel(60)
    back = await in_status(queue, job, "pending")
    assert (back.attempt, back.locked_by, back.claimed_at) == (1, None, None)
    assert [event.type for event in await queue.events(job.id)] == ["job:enqueued", "job:reclaimed"]


async def test_a_stale_job_without_attempts_is_expired_not_lost(
    queue: Queue, program: StartProgram, tmp_path: Path
) -> None:
    job = await queue.enqueue("wait_for_gate", max_attempts=1)
    worker = program(lease="1s")
    await until(lambda: runs(tmp_path))
    worker.kill9()
    program(lease="1s", reap_interval="50ms")
    expired = await in_status(queue, job, "expired")
    assert expired.last_error == "worker lost"
    (tmp_path / GATE).touch()
    await queue.requeue(job.id)
    await in_status(queue, job, "completed")


# -- never ---------------------------------------------------------------------------------------------------------


def test_never_select_then_update_the_claim_is_one_statement() -> None:
    claim = load("postgres")["claim"].sql
    assert ";" not in claim
    assert all(word in claim for word in ("WITH", "DELETE FROM treadle.ready", "INSERT INTO treadle.running"))


def test_never_claim_without_skip_locked() -> None:
    assert "FOR UPDATE SKIP LOCKED" in load("postgres")["claim"].sql
    assert "SKIP LOCKED" in load("postgres")["peek_lane"].sql


async def test_never_store_large_payloads(queue: Queue) -> None:
    with pytest.raises(PayloadTooLarge, match="store the data elsewhere and pass a reference"):
        await queue.enqueue("mail", {"video": "x" * 2_000_000})


async def test_never_forget_the_index_the_claim_uses_it_next_to_any_backlog(postgres_url: str) -> None:
    """Only jobs that can be claimed are in the table that the claim reads: its primary key is the partial index."""
    async with Queue(postgres_url) as queue:
        await queue.enqueue_many("mail", [{}] * 3000)
        await queue.enqueue_many("mail", [{}] * 3000, delay="1h")
        await queue.enqueue_many("other", [{}] * 3000)
        lease = await queue.store.open_lease("w", 60_000)
        # As the engine runs it: prepared, planned once for all values.
        connection = await asyncpg.connect(postgres_url, server_settings=PLAN_SETTINGS)
        types = "bigint, text[], text[], text[], int, int, bigint, int[], int[], bigint[], bigint[]"
        await connection.execute(f"PREPARE claim ({types}) AS {load('postgres')['claim'].sql}")
        lanes = "'{mail}', '{\"\"}', '{\"\"}'"
        values = f"{lease}, {lanes}, 10, 10, 1000000, '{{}}', '{{}}', '{{}}', '{{}}'"
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE claim ({values})")
        await connection.close()
    nodes = list(plan_nodes(json.loads(text)[0]["Plan"]))
    reads = [node for node in nodes if node.get("Relation Name") == "ready" and "Scan" in node["Node Type"]]
    assert reads
    assert {node.get("Index Name", node["Node Type"]) for node in reads} <= {"ready_pkey", "Tid Scan"}


def plan_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from plan_nodes(part)


def test_the_default_wait_before_a_job_counts_as_stale_is_five_minutes() -> None:
    assert timedelta(milliseconds=Queue("sqlite:///never-opened.db").settings.lease_ms) == timedelta(minutes=5)
