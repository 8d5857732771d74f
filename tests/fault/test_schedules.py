"""Schedulers that are killed: each slot makes one job, no slot is forgotten."""

import asyncio
import random
from typing import Any

import pytest

from tests.fault.crash import MOMENTS, Crash
from tests.fault.crew import Crew
from tests.fault.scale import scaled
from tests.waiting import nothing_live, until
from treadle import Job, Queue
from treadle.model.job import to_ms
from treadle.policy.schedule import KIND, Schedule
from treadle.queue.schedules.records import body_of
from treadle.store.values import RecordWrite

EVERY_MS = 1_000
TRIALS = scaled(1, 100)
SECONDS = scaled(5, 300)
LONGEST_COMMIT_US = 4_000


@pytest.fixture
async def queue(crew: Crew) -> Any:
    async with Queue(crew.url) as queue:
        yield queue


async def _due_now(queue: Queue, schedule_id: str) -> Schedule:
    """A daily schedule with its slot at this very moment."""
    now = await queue.store.now()
    schedule = Schedule(id=schedule_id, topic="quick", every_ms=86_400_000, created_ms=now - 86_400_000, next_ms=now)
    write = RecordWrite(KIND, schedule.id, schedule.id, body_of(schedule), now)
    assert await queue.store.write_records([write]) != [None]
    return schedule


async def _made(queue: Queue) -> list[Job]:
    return [job for job in await queue.list(limit=1000) if job.schedule_id is not None]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_leader_that_is_killed_in_the_due_second_fires_once(crew: Crew, queue: Queue, moment: str) -> None:
    chance = random.Random(moment)
    expected = set()
    for trial in range(TRIALS):
        schedule = await _due_now(queue, f"s{trial}")
        expected.add((schedule.id, schedule.next_ms))
        hand = crew.hire(crash=Crash("fire", moment, 1, chance.randrange(LONGEST_COMMIT_US)))
        assert await hand.gone() == -9, hand.tail()
    crew.hire()

    async def all_fired() -> bool:
        return len(await _made(queue)) >= len(expected) and await nothing_live(queue)

    await until(all_fired, 60, crew.tails, every=0.05)
    await crew.dismiss()
    found = [(job.schedule_id, to_ms(job.scheduled_at)) for job in await _made(queue) if job.scheduled_at]
    assert len(found) == len(expected)
    assert set(found) == expected


@pytest.mark.timeout(SECONDS + 120)
async def test_four_schedulers_of_which_one_is_always_killed_miss_no_slot_and_double_none(
    crew: Crew, queue: Queue
) -> None:
    """A leader's term is 800 ms here: another one takes over within the next slot or two."""
    made = await queue.schedules.create("quick", every=EVERY_MS / 1000, missed="all")
    chance = random.Random(7)
    for _ in range(4):
        crew.hire()
    end = asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < end:
        now = await queue.store.now()
        to_next_slot = EVERY_MS - (now - made.created_ms) % EVERY_MS
        await asyncio.sleep(to_next_slot / 1000 + chance.uniform(-0.02, 0.05))  # the moment of the kill
        victim = chance.choice(crew.alive)
        victim.kill()
        await victim.gone()
        crew.hire()
    crew.hire()
    last = await queue.store.now()

    async def caught_up() -> bool:
        schedule = await queue.schedules.get(made.id)
        return schedule.next_ms is not None and schedule.next_ms > last

    await until(caught_up, 60, crew.tails, every=0.05)
    await queue.schedules.disable(made.id)
    await until(lambda: nothing_live(queue), 60, crew.tails, every=0.05)
    await crew.dismiss()
    slots = sorted(to_ms(job.scheduled_at) for job in await _made(queue) if job.scheduled_at)
    assert slots == list(range(slots[0], slots[-1] + 1, EVERY_MS)), "each slot once, none missing"
    assert slots[0] == made.created_ms + EVERY_MS
    assert slots[-1] > last - EVERY_MS
