"""Schedules as rows of a list, with the outcomes of their last runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from treadle.dashboard import words
from treadle.model.durations import format_ms
from treadle.model.job import Job, from_ms
from treadle.model.status import Status
from treadle.policy.cron import time_zone
from treadle.policy.schedule import Schedule
from treadle.policy.schedule_outlook import Run, clock_change, next_runs
from treadle.queue import Queue

LAST = 7
_TICKS = {
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.EXPIRED: "failed",
    Status.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class LastRun:
    at: datetime
    kind: str
    """completed, failed, cancelled, skipped, or running for a job that has not ended."""
    job: Job | None
    local: str
    took: str


@dataclass(frozen=True, slots=True)
class RunTime:
    day: str
    time: str
    offset: str
    utc: str
    away: str
    later: str
    """The distance from the run before."""
    note: str
    is_changed: bool


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    id: str
    topic: str
    when: str
    rule: str
    timezone: str
    next: str
    next_local: str
    last: Sequence[LastRun]
    missed: str
    overlap: str
    enabled: bool
    problem: str
    runs: Sequence[RunTime]
    clock_words: str
    failed: LastRun | None

    @property
    def last_words(self) -> str:
        kinds = ", ".join(one.kind for one in self.last)
        return f"Last runs, newest last: {kinds}" if kinds else "No run yet"

    @property
    def has_clock_change(self) -> bool:
        return any(one.note for one in self.runs)


async def schedule_rows(queue: Queue, schedules: Sequence[Schedule], now_ms: int) -> list[ScheduleRow]:
    jobs = await queue.schedules.recent_jobs(schedules, LAST)
    return [_row(one, jobs, now_ms) for one in schedules]


def _row(schedule: Schedule, jobs: Mapping[str, Job], now_ms: int) -> ScheduleRow:
    last = last_runs(schedule, jobs)
    runs = run_times(schedule, now_ms)
    next_ms = schedule.next_ms
    off = "off" if not schedule.enabled else "never again"
    return ScheduleRow(
        schedule.id,
        schedule.topic,
        schedule.description.removesuffix(f" ({schedule.timezone})"),
        schedule.cron or f"every {format_ms(schedule.every_ms or 0)}",
        schedule.timezone,
        off if next_ms is None else _away(next_ms, now_ms),
        "" if next_ms is None else _local(from_ms(next_ms), schedule.timezone),
        last,
        schedule.missed,
        schedule.overlap,
        schedule.enabled,
        schedule.problem or "",
        runs,
        clock_words(schedule, now_ms),
        next((one for one in reversed(last) if one.kind == "failed"), None),
    )


def last_runs(schedule: Schedule, jobs: Mapping[str, Job]) -> list[LastRun]:
    """Jobs and skipped slots, newest last."""
    found = [_ran(jobs[id_], schedule.timezone) for id_ in schedule.recent[-LAST:] if id_ in jobs]
    found += [
        LastRun(at, "skipped", None, _local(at, schedule.timezone), event.message)
        for event in schedule.events[-LAST:]
        if (at := from_ms(event.at_ms))
    ]
    return sorted(found, key=lambda one: one.at)[-LAST:]


def _ran(job: Job, timezone: str) -> LastRun:
    at = job.scheduled_at or job.created_at
    took = words.span(job.started_at, job.ended_at) if job.started_at and job.ended_at else ""
    return LastRun(at, _TICKS.get(job.status, "running"), job, _local(at, timezone), took)


def run_times(schedule: Schedule, now_ms: int) -> list[RunTime]:
    found: list[RunTime] = []
    before: Run | None = None
    for run in next_runs(schedule, now_ms):
        found.append(_run_time(run, before, now_ms))
        before = run
    return found


def _run_time(run: Run, before: Run | None, now_ms: int) -> RunTime:
    at_ms = run.at.timestamp() * 1000
    return RunTime(
        f"{run.local:%a} {run.local.day} {run.local:%b}",
        _clock(run.local),
        offset_words(run.local),
        f"{_clock(run.at)} UTC",
        _away(at_ms, now_ms),
        "" if before is None else f"{_distance(run.at - before.at)} later",
        run.note,
        run.is_changed,
    )


def offset_words(local: datetime) -> str:
    offset = f"{local:%z}"
    return f"{offset[:3]}:{offset[3:5]}"


def _distance(length: timedelta) -> str:
    """24 h, 25 h, 7 d: whole units where there are some, so that a clock change stands out."""
    seconds = round(length.total_seconds())
    if seconds % 86_400 == 0 and seconds > 86_400:
        return f"{seconds // 86_400} d"
    if seconds % 3600 == 0:
        return f"{seconds // 3600} h"
    return f"{seconds // 60} min" if seconds % 60 == 0 and seconds < 3600 else words.duration(seconds * 1000)


def clock_words(schedule: Schedule, now_ms: int) -> str:
    """About the zone's next clock change, if it has one."""
    change = clock_change(schedule, now_ms)
    if change is None:
        return ""
    way = "forward" if change.forward else "back"
    when = change.local
    return f"Clocks go {way} on {when:%a} {when.day} {when:%b %Y} at {when:%H:%M}."


def _clock(when: datetime) -> str:
    return f"{when:%H:%M:%S}" if when.second else f"{when:%H:%M}"


def _away(at_ms: float, now_ms: int) -> str:
    return f"in {words.duration(at_ms - now_ms)}" if at_ms > now_ms else "now"


def _local(when: datetime | None, timezone: str) -> str:
    if when is None:
        return words.DASH
    local = when.astimezone(time_zone(timezone))
    return f"{local:%a} {local.day} {local:%b}, {_clock(local)}"
