"""The options of a schedule, as users give them, and what they mean for the stored one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

from pydantic_core import from_json

from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import CodeDefined, InvalidInput
from treadle.model.job import to_ms
from treadle.policy.schedule import Missed, Overlap, Schedule, check_end, check_names


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule, besides its topic and its cron expression."""

    every: Duration | None
    timezone: str
    payload: Any
    scope: str | None
    scope_id: str | None
    enabled: bool
    missed: Missed
    overlap: Overlap
    jitter: Duration
    start_at: datetime | None
    end_at: datetime | None


class NewSchedule(ScheduleOptions, total=False):
    id: str | None
    created_by: str | None


class ScheduleChanges(ScheduleOptions, total=False):
    topic: str
    cron: str | None


class CodeSchedule(ScheduleOptions, total=False):
    """One of the schedules in `@queue.job(schedule=[…])`."""

    id: str
    cron: str


# Results of runs and the origin of the schedule, which an edit keeps.
STATE = ("created_by", "created_ms", "last_ms", "last_job_id", "recent", "events")
_TIMES = {"start_at": "start_ms", "end_at": "end_ms"}
_DURATIONS = {"every": "every_ms", "jitter": "jitter_ms"}
_PLAIN = frozenset("cron timezone scope scope_id enabled missed overlap".split())


def schedule_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts arguments to the fields of a schedule."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _TIMES:
            found[_TIMES[name]] = None if value is None else to_ms(value, name)
        elif name in _DURATIONS:
            found[_DURATIONS[name]] = None if value is None else duration_ms(value, name)
        elif name == "payload":
            found[name] = schedule_payload(value)
        elif name in _PLAIN:
            found[name] = value
        else:
            raise InvalidInput(f"{name}: a schedule has no such option", field=name)
    return found


def schedule_payload(value: Any) -> dict[str, Any]:
    from treadle.model.payload import dumps_object

    found: dict[str, Any] = from_json(dumps_object(value))
    check_names(found)
    return found


def edit(schedule: Schedule, changes: Mapping[str, Any], now: int) -> Schedule:
    given = dict(changes)
    topic = given.pop("topic", schedule.topic)
    if topic != schedule.topic and schedule.code is not None:
        message = f"schedule {schedule.id} is defined in {schedule.source}; its topic can only be changed there"
        raise CodeDefined(message, id=schedule.id)
    definition = schedule_fields(given)
    # The given one replaces the other.
    if definition.get("cron") is not None:
        definition.setdefault("every_ms", None)
    elif definition.get("every_ms") is not None:
        definition.setdefault("cron", None)
    edited = replace(schedule, topic=topic, **definition)
    if edited == schedule:
        return schedule
    if edited.end_ms != schedule.end_ms:
        check_end(edited, now)
    return replanned(schedule, replace(edited, version=schedule.version + 1, updated_ms=now, problem=None), now)


_TIMING = ("cron", "every_ms", "timezone", "start_ms", "end_ms", "enabled")


def replanned(old: Schedule, new: Schedule, now: int) -> Schedule:
    """A change of anything but the times keeps the next run, or an edit in the due second would lose it."""
    if all(getattr(old, name) == getattr(new, name) for name in _TIMING):
        return new.now_standing(next_ms=old.next_ms, held=old.held)
    return planned(new, now)


def planned(schedule: Schedule, now: int) -> Schedule:
    """With its next run after now, to avoid a catch-up run."""
    return schedule.now_standing(next_ms=schedule.next_after(now) if schedule.enabled else None, held=False)


def stopped(schedule: Schedule, now: int, problem: str) -> Schedule:
    stopped = replace(schedule, enabled=False, problem=problem, version=schedule.version + 1, updated_ms=now)
    return planned(stopped, now)
