"""Schedules with failed newest runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.dashboard.schedule_rows import LAST
from treadle.insights.error_text import read_error
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.schedule import Schedule
from treadle.queue import Queue

BAD = frozenset((Status.FAILED, Status.EXPIRED))


@dataclass(frozen=True, slots=True)
class FailingSchedule:
    id: str
    failures: int
    """In a row, up to the newest run that has ended."""
    job_id: str
    error: str
    next_ms: int | None


async def failing_schedules(queue: Queue) -> Sequence[FailingSchedule]:
    """Enabled schedules with a failed newest run, in two reads, however many schedules exist."""
    schedules = [one for one in await queue.schedules.list() if one.enabled and one.recent]
    jobs = await queue.schedules.recent_jobs(schedules, LAST)
    return [failing for one in schedules if (failing := _failing(one, jobs))]


def _failing(schedule: Schedule, jobs: Mapping[str, Job]) -> FailingSchedule | None:
    ended = [jobs[id_] for id_ in reversed(schedule.recent[-LAST:]) if id_ in jobs and jobs[id_].ended]
    failures = next((i for i, job in enumerate(ended) if job.status not in BAD), len(ended))
    if not failures:
        return None
    newest = ended[0]
    error = read_error(newest.last_error, newest.error_type)
    text = error.line[:200].rstrip(".") + "." if error else ""
    return FailingSchedule(schedule.id, failures, newest.id, text, schedule.next_ms)
