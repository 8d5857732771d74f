"""Schedules: their definition, when they fire, and their description. No clock and no store.

A slot is an instant at which a schedule makes a job. Slots depend only on the schedule's definition, never on the
process that computes them, so all schedulers agree on them, and a slot can be a unique key.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, NamedTuple, Self, cast, get_args

from treadle.model.durations import format_ms
from treadle.model.errors import InvalidInput, InvalidPayload
from treadle.model.job import checked_topic, from_ms, rfc3339, short_text, to_ms
from treadle.model.payload import dumps_object
from treadle.policy.cron import Cron, time_zone

KIND = "schedule"
"""Of its record."""
Missed = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip", "queue"]

MOST_CAUGHT_UP = 100
# Above this number, missed slots are not counted one by one.
MOST_COUNTED = 1000
# A slot handled this late counts as missed. Longer than it takes another process to become the leader.
MISSED_AFTER_MS = 30_000
LEAST_INTERVAL_MS = 1_000
MOST_JITTER_MS = 86_400_000
SHOWN_RUNS = 5
# How many events, and how many of its jobs, a schedule remembers.
MOST_EVENTS = 20
MOST_RECENT = 100
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")
_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
PLACEHOLDERS = ("scheduledAt", "previousAt", "scheduleId")


class ScheduleEvent(NamedTuple):
    at_ms: int
    type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a schedule stands: what its runs change. All times are milliseconds since the epoch."""

    next_ms: int | None = None
    last_ms: int | None = None
    """The last slot, or manual run, that made a job."""
    last_job_id: str | None = None
    held: bool = False
    """`overlap: queue`: the next slot waits for earlier jobs."""
    recent: tuple[str, ...] = ()
    """The ids of its most recent jobs, newest last."""
    problem: str | None = None
    """Why it makes no jobs although it should."""
    events: tuple[ScheduleEvent, ...] = ()
    """The most recent slots that made no job, newest last."""

    def now_standing(self, **changes: Any) -> Self:
        """The same as it stands after a run. What a schedule is does not change by that, so it is not checked again."""
        changed = copy.copy(self)
        for name, value in changes.items():
            if name not in Standing.__slots__:
                raise TypeError(f"{name} is what a schedule is, not how it stands")
            object.__setattr__(changed, name, value)
        return changed

    def with_event(self, at_ms: int, type_: str, message: str) -> Self:
        events = (*self.events, ScheduleEvent(at_ms, type_, message))
        return self.now_standing(events=events[-MOST_EVENTS:])

    def with_job(self, at_ms: int, job_id: str) -> Self:
        recent = (*self.recent, job_id)[-MOST_RECENT:]
        return self.now_standing(last_ms=at_ms, last_job_id=job_id, recent=recent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Standing):
    """When to make jobs of a topic, checked; and how it stands."""

    id: str
    topic: str
    cron: str | None = None
    every_ms: int | None = None
    timezone: str = "UTC"
    payload: dict[str, Any] = field(default_factory=dict)
    scope: str | None = None
    scope_id: str | None = None
    created_by: str | None = None
    enabled: bool = True
    missed: Missed = "one"
    overlap: Overlap = "allow"
    jitter_ms: int = 0
    start_ms: int | None = None
    end_ms: int | None = None
    created_ms: int = 0
    updated_ms: int = 0
    version: int = 1
    """Incremented by each change of the definition, not by runs."""
    source: str | None = None
    """The file of the code that defines it; None if an operator created it."""
    code: str | None = None
    """The fingerprint of the definition in code."""

    def __post_init__(self) -> None:
        checked_id(self.id)
        checked_topic(self.topic)
        _check_timing(self)
        _check_choice(self.missed, Missed, "missed")
        _check_choice(self.overlap, Overlap, "overlap")
        _check_range(self.jitter_ms, 0, MOST_JITTER_MS, "jitterSeconds")
        for name in ("scope", "scope_id", "created_by"):
            short_text(getattr(self, name), name)
        _check_payload(self.payload)

    @property
    def next_run_at(self) -> datetime | None:
        return from_ms(self.next_ms)

    @property
    def last_run_at(self) -> datetime | None:
        return from_ms(self.last_ms)

    @property
    def start_at(self) -> datetime | None:
        return from_ms(self.start_ms)

    @property
    def end_at(self) -> datetime | None:
        return from_ms(self.end_ms)

    @property
    def description(self) -> str:
        """In words: "Every day at 09:00 (Asia/Taipei)"."""
        from treadle.policy.schedule_words import describe

        return describe(self.cron, self.every_ms, self.timezone)

    def next_after(self, after_ms: int) -> int | None:
        """The first slot later than this; None if there is none."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        found = self._next_time(after_ms)
        return None if found is None or (self.end_ms is not None and found > self.end_ms) else found

    def next_runs(self, now_ms: int, count: int = SHOWN_RUNS) -> list[int]:
        """The next slots, even if the schedule is disabled."""
        return list(islice(self._slots_after(now_ms), count))

    def _slots_after(self, after_ms: int) -> Iterator[int]:
        found = self.next_after(after_ms)
        while found is not None:
            yield found
            found = self.next_after(found)

    def _next_time(self, after_ms: int) -> int | None:
        if self.every_ms is not None:
            return self._next_interval(after_ms, self.every_ms)
        after = cast(datetime, from_ms(max(after_ms, 0)))
        found = _cron(cast(str, self.cron)).next_after(after, time_zone(self.timezone))
        return None if found is None else to_ms(found)

    def _next_interval(self, after_ms: int, every_ms: int) -> int:
        """Intervals count from the start, or from one interval after the schedule was created."""
        first = self.created_ms + every_ms if self.start_ms is None else self.start_ms
        return first + max(0, (after_ms - first) // every_ms + 1) * every_ms

    def as_json(self, now_ms: int) -> dict[str, Any]:
        """The schedule in JSON, with every field; null if it has no value."""
        return {
            "id": self.id,
            "topic": self.topic,
            "cron": self.cron,
            "every": None if self.every_ms is None else format_ms(self.every_ms),
            "startAt": _optional_text(self.start_ms),
            "endAt": _optional_text(self.end_ms),
            "timezone": self.timezone,
            "payload": self.payload,
            "scope": self.scope,
            "scopeId": self.scope_id,
            "createdBy": self.created_by,
            "createdAt": _text(self.created_ms),
            "updatedAt": _text(self.updated_ms),
            "version": self.version,
            "enabled": self.enabled,
            "missed": self.missed,
            "overlap": self.overlap,
            "jitterSeconds": self.jitter_ms / 1000 if self.jitter_ms % 1000 else self.jitter_ms // 1000,
            "nextRunAt": _optional_text(self.next_ms),
            "lastRunAt": _optional_text(self.last_ms),
            "lastJobId": self.last_job_id,
            "description": self.description,
            "next": [_text(ms) for ms in self.next_runs(now_ms)],
            "source": self.source,
            "problem": self.problem,
        }


class ScheduleSlot(NamedTuple):
    at_ms: int
    previous_ms: int
    """The previous slot: the last one that made a job, or the previous one by the definition."""
    run_at_ms: int
    """`at_ms` plus the jitter."""


class Firing(NamedTuple):
    """What a due schedule does now."""

    slots: tuple[ScheduleSlot, ...]
    next_ms: int | None
    skipped: int
    """Slots that make no job, counted up to 1,000."""
    held: bool = False


def fire(schedule: Schedule, now_ms: int, live_jobs: int = 0) -> Firing:
    """Which slots make jobs now, given how many jobs of this schedule have not ended."""
    if schedule.next_ms is None or schedule.next_ms > now_ms or not schedule.enabled:
        return Firing((), schedule.next_ms, 0, schedule.held)
    if schedule.overlap == "queue" and live_jobs:
        return Firing((), schedule.next_ms, 0, held=True)
    due, count = _due(schedule, now_ms)
    chosen = _caught_up(schedule, due, now_ms)
    if schedule.overlap == "skip":
        chosen = [] if live_jobs else chosen[-1:]
    next_ms = schedule.next_after(now_ms)
    held = schedule.overlap == "queue" and len(chosen) > 1
    skipped = count - len(chosen)
    if held:  # one at a time, oldest first
        next_ms, chosen = chosen[1], chosen[:1]
    return Firing(tuple(_slots(schedule, chosen)), next_ms, skipped, held)


def _due(schedule: Schedule, now_ms: int) -> tuple[list[int], int]:
    """The newest slots up to now, oldest first, and their total number, counted up to a limit."""
    first = cast(int, schedule.next_ms)
    due = [first]
    for slot in schedule._slots_after(first):
        if slot > now_ms:
            return due[-MOST_CAUGHT_UP:], len(due)
        if len(due) == MOST_COUNTED:
            return _newest(schedule, first, now_ms), MOST_COUNTED
        due.append(slot)
    return due[-MOST_CAUGHT_UP:], len(due)


def _newest(schedule: Schedule, first_ms: int, now_ms: int) -> list[int]:
    found: list[int] = []
    before: int | None = now_ms + 1
    while len(found) < MOST_CAUGHT_UP and (before := _previous(schedule, cast(int, before), first_ms)) is not None:
        found.append(before)
    return found[::-1]


def _previous(schedule: Schedule, before_ms: int, least_ms: int = 0) -> int | None:
    """The last slot before this one: step back further and further until one is found, then bisect."""
    step = 1000
    low = before_ms - step
    while not _any_between(schedule, low, before_ms):
        if low < least_ms:
            return None
        step *= 2
        low = before_ms - step
    high = before_ms
    while high - low > 1:
        middle = (low + high) // 2
        if _any_between(schedule, middle, before_ms):
            low = middle
        else:
            high = middle
    return high if high >= least_ms else None


def _any_between(schedule: Schedule, after_ms: int, before_ms: int) -> bool:
    found = schedule.next_after(after_ms)
    return found is not None and found < before_ms


def _caught_up(schedule: Schedule, due: list[int], now_ms: int) -> list[int]:
    if schedule.missed == "all":
        return due
    # A slot that was held back does not count as missed.
    if schedule.missed == "skip" and not schedule.held and now_ms - due[-1] > MISSED_AFTER_MS:
        return []
    return due[-1:]


def _slots(schedule: Schedule, chosen: list[int]) -> Iterator[ScheduleSlot]:
    previous = schedule.last_ms
    for at_ms in chosen:
        yield slot(schedule, at_ms, previous)
        previous = at_ms


def slot(schedule: Schedule, at_ms: int, previous_ms: int | None) -> ScheduleSlot:
    if previous_ms is None:
        previous_ms = _given_before(schedule, at_ms)
    return ScheduleSlot(at_ms, previous_ms, at_ms + _jitter_ms(schedule, at_ms))


def _given_before(schedule: Schedule, at_ms: int) -> int:
    """The previous slot by the definition alone, for a schedule that has made no job yet."""
    if schedule.every_ms is not None:
        return at_ms - schedule.every_ms
    return _previous(_without_bounds(schedule), at_ms) or at_ms


def _without_bounds(schedule: Schedule) -> Schedule:
    return Schedule(id=schedule.id, topic=schedule.topic, cron=schedule.cron, timezone=schedule.timezone)


def _jitter_ms(schedule: Schedule, at_ms: int) -> int:
    """Random, but the same in every process."""
    digest = hashlib.sha256(f"{schedule.id}|{at_ms}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (schedule.jitter_ms + 1)


def slot_key(schedule_id: str, at_ms: int) -> str:
    """Unique for a schedule and an instant in UTC."""
    return f"{schedule_id}|{at_ms}"


# -- payloads --------------------------------------------------------------------------------------


def rendered_payload(schedule: Schedule, one: ScheduleSlot) -> dict[str, Any]:
    """The payload with its placeholders filled in."""
    values = {
        "scheduledAt": _text(one.at_ms),
        "previousAt": _text(one.previous_ms),
        "scheduleId": schedule.id,
    }
    return cast(dict[str, Any], _rendered(schedule.payload, values))


def _rendered(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: values[found[1]], value)
    if isinstance(value, dict):
        return {key: _rendered(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_rendered(item, values) for item in value]
    return value


def _check_payload(payload: dict[str, Any]) -> None:
    dumps_object(payload)
    for path, text in _texts(payload, "payload"):
        # The text itself may be a secret, so the message does not repeat it.
        if any(name not in PLACEHOLDERS for name in _PLACEHOLDER.findall(text)):
            known = ", ".join("{{%s}}" % one for one in PLACEHOLDERS)
            raise InvalidPayload(f"{path[:200]}: has an unknown placeholder; use {known}", field="payload")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string value with the path to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{path}.{number}")


def check_names(value: Any) -> None:
    """Refuse placeholders in the names of fields: only values are filled in."""
    if isinstance(value, list):
        for item in value:
            check_names(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if _PLACEHOLDER.search(name):
                message = "payload: a field's name has a placeholder; only values can have one"
                raise InvalidPayload(message, field="payload")
            check_names(item)


def check_end(schedule: Schedule, now_ms: int) -> None:
    if schedule.end_ms is not None and schedule.end_ms <= now_ms:
        raise InvalidInput("endAt: it is in the past, so the schedule would never run", field="endAt")


def _text(ms: int) -> str:
    return cast(str, rfc3339(from_ms(ms)))


def _optional_text(ms: int | None) -> str | None:
    return None if ms is None else _text(ms)


# -- checks ----------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def _cron(text: str) -> Cron:
    return Cron(text)


def checked_cron(text: str) -> Cron:
    return _cron(text) if isinstance(text, str) else Cron(text)


def _check_timing(schedule: Schedule) -> None:
    if (schedule.cron is None) == (schedule.every_ms is None):
        raise InvalidInput("give cron or every, one of the two", field="cron")
    time_zone(schedule.timezone)
    if schedule.cron is not None:
        checked_cron(schedule.cron)
    else:
        _check_range(cast(int, schedule.every_ms), LEAST_INTERVAL_MS, None, "every")
    if schedule.start_ms is not None and schedule.end_ms is not None and schedule.end_ms <= schedule.start_ms:
        raise InvalidInput("endAt: must be later than startAt", field="endAt")


def _check_range(value: int, least: int, most: int | None, name: str) -> None:
    if value < least or (most is not None and value > most):
        upper = f" and at most {format_ms(most)}" if most is not None else ""
        raise InvalidInput(f"{name}: must be at least {format_ms(least)}{upper}", field=name)


def _check_choice(value: str, choices: Any, name: str) -> None:
    if value not in get_args(choices):
        raise InvalidInput(f"{name}: {str(value)[:40]!r} is not one of {', '.join(get_args(choices))}", field=name)


def checked_id(value: str) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidInput(
            f"id: {str(value)[:60]!r} is not a schedule's id; use letters, digits, _, - and dots, "
            "at most 100 characters",
            field="id",
        )
    return value
