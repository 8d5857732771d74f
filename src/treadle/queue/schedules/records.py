"""Schedules as records. A record is due when the scheduler should look at its schedule.

Every write is a compare-and-set on the record's version, so an edit and a run never overwrite each other. The `version`
that users see counts changes of the definition only: a schedule that ran since it was read can still be edited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import NamedTuple

from pydantic_core import from_json, to_json

from treadle.model.errors import ScheduleNotFound, StoreUnavailable
from treadle.policy.schedule import KIND, Schedule, ScheduleEvent
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

# How often to retry a change when a run came in between.
TRIES = 20

_FIELDS = frozenset(one.name for one in fields(Schedule))


class Stored(NamedTuple):
    """A schedule and the version of its record."""

    schedule: Schedule
    version: int

    def write(self, changed: Schedule, due: int | None) -> RecordWrite:
        return RecordWrite(KIND, changed.id, changed.id, body_of(changed), due, self.version)


def body_of(schedule: Schedule) -> str:
    return to_json({name: getattr(schedule, name) for name in _FIELDS}).decode()


def schedule_from(record: Record) -> Schedule:
    found = {name: value for name, value in from_json(record.body).items() if name in _FIELDS}
    found["recent"] = tuple(found["recent"])
    found["events"] = tuple(ScheduleEvent(*one) for one in found["events"])
    return Schedule(**found)


def due_of(schedule: Schedule) -> int | None:
    return schedule.next_ms if schedule.enabled else None


def write_of(schedule: Schedule, version: int | None = None) -> RecordWrite:
    return RecordWrite(KIND, schedule.id, schedule.id, body_of(schedule), due_of(schedule), version)


async def read_schedule(store: Store, schedule_id: str) -> Stored:
    """ScheduleNotFound if there is none."""
    known = isinstance(schedule_id, str) and len(schedule_id) <= 100
    record = (await store.get_records([(KIND, schedule_id)]))[0] if known else None
    if record is None:
        raise not_found(schedule_id)
    return Stored(schedule_from(record), record.version)


async def change_schedule(
    store: Store, schedule_id: str, how: Callable[[Schedule, int], Awaitable[Schedule]]
) -> Schedule:
    """Write what `how(schedule, now)` returns; the same object means no change."""
    for _ in range(TRIES):
        old, version = await read_schedule(store, schedule_id)
        new = await how(old, await store.now())
        if new is old:
            return old
        if (await store.write_records([write_of(new, version)]))[0]:
            return new
    raise busy(schedule_id)


def not_found(schedule_id: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule has the id {str(schedule_id)[:60]!r}", id=str(schedule_id)[:60])


def busy(schedule_id: str) -> StoreUnavailable:
    return StoreUnavailable(f"schedule {schedule_id} is changed too often just now; try again")
