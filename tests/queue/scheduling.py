"""Schedules under test: made due, fired, and the jobs that they made."""

from __future__ import annotations

from dataclasses import replace

from treadle import Job, Queue
from treadle.maintenance.scheduler import Scheduler
from treadle.policy.schedule import KIND
from treadle.queue.schedules.records import body_of, schedule_from
from treadle.store.values import RecordWrite

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def jobs_of(queue: Queue) -> list[Job]:
    """Oldest first."""
    return (await queue.list(limit=1000))[::-1]


async def make_due(queue: Queue, schedule_id: str, ago_ms: int = 0) -> int:
    """Move its next slot this far into the past; returns that time."""
    [record] = await queue.store.get_records([(KIND, schedule_id)])
    assert record
    at = await queue.store.now() - ago_ms
    body = body_of(replace(schedule_from(record), next_ms=at))
    write = RecordWrite(KIND, schedule_id, schedule_id, body, at, record.version)
    assert await queue.store.write_records([write]) != [None]
    return at


async def fire(queue: Queue) -> int:
    return await Scheduler(queue).fire_due()
