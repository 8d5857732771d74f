"""kill -9 of workers at random, over many jobs of every kind."""

import random

from tests.fault.audit import audit, in_order
from tests.fault.crew import Crew
from tests.fault.handlers import TOPICS, make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.waiting import nothing_live, until
from treadle import JobRequest, Queue

JOBS = scaled(1_500, 100_000)
KILLS = scaled(15, 1_000)
WORKERS = 3
BYTES_A_JOB = 2 * 80  # in the journal: a start and an end
LOOK_EVERY = 25
"""Kills between two looks at the whole database."""


async def test_workers_killed_at_random_lose_nothing_and_run_nothing_twice_unexplained(crew: Crew) -> None:
    chance = random.Random(20_25)
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        team = [crew.hire() for _ in range(WORKERS)]
        expected: set[str] = set()
        for kill in range(KILLS):
            expected |= await _enqueue(queue, chance, JOBS // KILLS)
            await _some_work(crew, queue, chance)
            victim = team.pop(chance.randrange(WORKERS))
            victim.kill()
            assert await victim.gone() == -9
            team.append(crew.hire())
            if kill % LOOK_EVERY == 0:
                await in_order(queue)
        await until(lambda: nothing_live(queue), 120, crew.tails, every=0.1)
        await crew.dismiss()
        expected |= await _children(queue)
        ledger = await audit(queue, crew.journal, expected=expected, lost=crew.lost())
    assert len(ledger.with_status("completed")) == len(expected)
    print(
        f"\n{KILLS} kills, {len(expected)} jobs, {len(crew.journal.entries('start'))} starts, "
        f"{ledger.count('job:reclaimed')} reclaimed, {ledger.count('job:released')} released"
    )


async def _enqueue(queue: Queue, chance: random.Random, count: int) -> set[str]:
    requests = [_request(chance) for _ in range(count)]
    return {job.id for job in await queue.enqueue_many(requests, max_attempts=50)}


def _request(chance: random.Random) -> JobRequest:
    topic = chance.choice([topic for topic in TOPICS if topic != "child"])
    delay = f"{chance.randrange(1, 500)}ms" if chance.random() < 0.1 else None
    priority = chance.choice(["low", "normal", "high"])
    return JobRequest(topic, {"key": chance.randrange(5), "ms": 5}, {"delay": delay, "priority": priority})


async def _some_work(crew: Crew, queue: Queue, chance: random.Random) -> None:
    """Until a random amount of work has been done since the last kill, or all of it: then an idle worker is killed."""
    enough = crew.journal.size + chance.randrange(BYTES_A_JOB * JOBS // KILLS)

    async def done() -> bool:
        return crew.journal.size >= enough or await nothing_live(queue)

    await until(done, 60, crew.tails)


async def _children(queue: Queue) -> set[str]:
    """One child for each parent, by the key that names it."""
    ledger_parents = {job.id for job in await _all_of(queue, "parent")}
    children = await _all_of(queue, "child")
    assert sorted(job.idempotency_key or "" for job in children) == sorted(ledger_parents)
    return {job.id for job in children}


async def _all_of(queue: Queue, topic: str) -> list:
    found: list = []
    while page := await queue.list(topic=topic, limit=1000, offset=len(found)):
        found += page
    return found
