"""Four schedulers over every clock change of every zone from 2020 to 2035: each slot makes one job at its time."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.fault.scale import ASKED
from tests.faulty import Around, faulty
from tests.unit.schedules.clock_changes import (
    HOUR,
    MINUTE,
    ClockChange,
    elapsed_slots,
    every_clock_change,
    fixed_slots,
    walls,
)
from treadle import Queue
from treadle.maintenance.scheduler import Scheduler
from treadle.model.job import to_ms
from treadle.policy.schedule import KIND, Schedule
from treadle.queue.schedules.records import body_of
from treadle.store.values import RecordWrite

AFTER_ALL = to_ms(datetime(2037, 1, 1, tzinfo=UTC))
SCHEDULERS = 4
AT_ONCE = 500
Slots = set[tuple[str | None, datetime | None]]


@pytest.fixture
async def schedulers(url: str) -> AsyncIterator[list[Scheduler]]:
    """Each with its own connections, as in four processes; for all of them it is 2037."""
    queues = [await Queue(url).open() for _ in range(SCHEDULERS)]
    for queue in queues:
        faulty(queue).around("now", _after_all)
    yield [Scheduler(queue) for queue in queues]
    for queue in queues:
        await queue.close()


async def _after_all(_: Around) -> int:
    return AFTER_ALL


def _around(change: ClockChange) -> Iterator[tuple[str, timedelta, list[datetime]]]:
    """Expressions, how long before and after the change they run, and when they should."""
    low = min(change.at + change.before, change.at + change.after).replace(tzinfo=None)
    wall = low + 15 * MINUTE  # in the gap, or the first of two
    fixed = fixed_slots(walls(change, wall.hour * 60 + wall.minute), change)
    yield f"{wall.minute} {wall.hour} * * *", 30 * HOUR, fixed
    yield f"0 {wall.minute} {wall.hour} * * *", 30 * HOUR, fixed
    near = change.at - 2 * HOUR, change.at + 2 * HOUR
    yield "*/30 * * * *", 2 * HOUR, elapsed_slots(*near, change.zone, set(range(24)), {0, 30})


async def _make(queue: Queue, topic: str, changes: list[ClockChange]) -> Slots:
    """A schedule for each change and expression, due since long ago; the slots that it has."""
    writes: list[RecordWrite] = []
    expected: Slots = set()
    for number, change in enumerate(changes):
        for cron, long, slots in _around(change):
            start, end = change.at - long, change.at + long
            schedule = Schedule(
                id=f"{topic}.{number}.{len(writes)}",
                topic=topic,
                cron=cron,
                timezone=change.zone.key,
                missed="all",
                start_ms=to_ms(start),
                end_ms=to_ms(end) - 1,
            )
            due = schedule.next_after(0)
            made = replace(schedule, next_ms=due)
            writes.append(RecordWrite(KIND, made.id, made.id, body_of(made), due))
            expected |= {(made.id, slot) for slot in slots if start <= slot < end}
    assert None not in await queue.store.write_records(writes)
    return expected


async def _made(queue: Queue, topic: str) -> list[tuple[str | None, datetime | None]]:
    pages = (queue.list(topic=topic, limit=1000, offset=1000 * page) for page in itertools.count())
    found: list[tuple[str | None, datetime | None]] = []
    while jobs := await next(pages):
        found += [(job.schedule_id, job.scheduled_at) for job in jobs]
    return found


@pytest.mark.timeout(3600)
async def test_four_schedulers_over_every_clock_change(url: str, schedulers: list[Scheduler]) -> None:
    changes = every_clock_change()
    assert len(changes) > (200 if ASKED == "short" else 5_000)
    async with Queue(url) as queue:
        for number, begin in enumerate(range(0, len(changes), AT_ONCE)):
            topic = f"part{number}"
            expected = await _make(queue, topic, changes[begin : begin + AT_ONCE])
            await asyncio.gather(*(one.fire_due() for one in schedulers))
            found = await _made(queue, topic)
            assert len(found) == len(set(found)), "a slot that made two jobs"
            assert set(found) == expected
