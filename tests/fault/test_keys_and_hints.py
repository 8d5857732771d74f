"""Fault 36: many clients, one job for each key. Faults 29 and 30: no hints, behind a pooler or lost."""

from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.audit import audit, read
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.zygote import Zygote
from tests.servers import PgBouncer
from tests.waiting import nothing_live, until
from treadle import Job, Queue
from treadle.store.postgres.store import PostgresStore

PROCESSES, CLIENTS_EACH, KEYS = scaled(3, 10), scaled(5, 10), scaled(40, 1_000)


@pytest.fixture
async def queue(crew: Crew) -> AsyncIterator[Queue]:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        yield queue


async def test_many_clients_with_the_same_keys_make_one_job_for_each(crew: Crew, queue: Queue) -> None:
    hands = [crew.hire("many_keys", keys=KEYS, clients=CLIENTS_EACH, seed=number) for number in range(PROCESSES)]
    for hand in hands:
        assert await hand.gone(600) == 0, hand.tail()
    answers = defaultdict(list)
    for entry in crew.journal.entries():
        answers[entry.phase].append(entry.job_id)
    ledger = await read(queue)
    assert len(ledger.jobs) == len(answers) == KEYS
    for key, ids in answers.items():
        assert len(ids) == PROCESSES * CLIENTS_EACH
        assert len(set(ids)) == 1
        assert ledger.jobs[ids[0]].key == key
    print(f"\n{PROCESSES * CLIENTS_EACH} clients x {KEYS} keys: {len(ledger.jobs)} jobs")


async def test_a_job_with_a_lost_hint_is_found_by_polling(crew: Crew, queue: Queue) -> None:
    """Fault 30: this worker hears nothing from other processes."""
    crew.hire(deaf=True, poll="300ms", lease="5s")
    await until(queue.store.workers, 60, crew.tails)
    jobs: list[Job] = [await queue.enqueue("quick"), await queue.enqueue("quick", delay="500ms")]
    await until(lambda: nothing_live(queue), 30, crew.tails)
    stopped = await queue.enqueue("patient")
    await until(lambda: stopped.id in crew.journal.by_job("start"), 60, crew.tails)
    await queue.cancel(stopped.id, "found without a hint")
    await until(lambda: nothing_live(queue), 30, crew.tails)
    await crew.dismiss()
    ledger = await audit(queue, crew.journal, expected={job.id for job in [*jobs, stopped]})
    assert ledger.jobs[stopped.id].status == "cancelled"


async def test_workers_behind_pgbouncer_work_by_polling_and_survive_its_restart(
    pgbouncer_url: str, pgbouncer: PgBouncer, tmp_path: Path, zygote: Zygote
) -> None:
    """Fault 29: in transaction mode there is no LISTEN, and no client keeps a session."""
    crew = Crew(pgbouncer_url, tmp_path, zygote, pooled=True)
    try:
        async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
            team = [crew.hire(poll="200ms", lease="2s") for _ in range(2)]
            assert isinstance(queue.store, PostgresStore)
            assert queue.store.pools.pooled
            await until(queue.store.workers, 60, crew.tails)
            topics = ["quick", "threaded", "slow", "shaky", "gated"] * scaled(20, 400)
            jobs = [await queue.enqueue(topic, {"key": 1, "ms": 20}, max_attempts=50) for topic in topics]
            await until(lambda: crew.journal.entries("done"), 60, crew.tails)
            team[0].kill()
            await team[0].gone()
            pgbouncer.restart()
            crew.hire(poll="200ms", lease="2s")
            await until(lambda: nothing_live(queue), 60, crew.tails, every=0.1)
            await crew.dismiss()
            ledger = await audit(queue, crew.journal, expected={job.id for job in jobs}, lost=crew.lost())
            assert len(ledger.with_status("completed")) == len(jobs)
    finally:
        crew.kill_all()
