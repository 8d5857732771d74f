"""What the leader does, and the migrations, as the system page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from treadle.dashboard import words
from treadle.insights.insights import Insights
from treadle.model.job import from_ms
from treadle.queue import Queue
from treadle.store.views import Leadership

TITLES = {
    "reaper": "Take back lost jobs",
    "schedules": "Schedules",
    "webhooks": "Webhooks",
    "stale": "Stale jobs",
    "retention": "Retention",
    "operations": "Bulk operations",
    "tidying": "Statistics and limits",
    "audit": "Audit log",
}
SHOWN_MIGRATIONS = 3


@dataclass(frozen=True, slots=True)
class DutyRow:
    title: str
    every: str
    last: datetime | None
    took: str
    next: datetime | None
    outcome: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Leader:
    worker: str
    since: datetime | None
    until: datetime | None
    reported: datetime | None
    duties: Sequence[DutyRow]


@dataclass(frozen=True, slots=True)
class Migrations:
    newest: Sequence[tuple[str, datetime | None]]
    """Names, and when they were applied."""
    older: Sequence[tuple[str, datetime | None]]
    waiting: Sequence[str]

    @property
    def applied(self) -> int:
        return len(self.newest) + len(self.older)


async def leaders(queue: Queue, found: Sequence[Leadership]) -> list[Leader]:
    return [
        Leader(
            one.worker,
            from_ms(one.since),
            from_ms(one.until),
            from_ms(one.reported_at) if one.duties else None,
            await _duties(queue, one),
        )
        for one in found
    ]


async def _duties(queue: Queue, leader: Leadership) -> list[DutyRow]:
    told = leader.reported_at or 0
    rows = []
    for duty in leader.duties:
        last = None if duty.ended_ms_ago is None else from_ms(told - duty.ended_ms_ago)
        due = None if duty.next_in_ms is None else from_ms(told + duty.next_in_ms)
        outcome = duty.outcome
        if duty.name == "schedules" and not duty.failed:
            due, outcome = await _next_schedule(queue, outcome)
        rows.append(
            DutyRow(
                TITLES.get(duty.name, duty.name),
                "as they are due" if duty.every_ms is None else f"every {words.length_words(duty.every_ms)}",
                last,
                words.duration(duty.took_ms),
                due,
                outcome,
                duty.failed,
            )
        )
    return rows


async def _next_schedule(queue: Queue, outcome: str) -> tuple[datetime | None, str]:
    """The next run of all schedules: the leader itself looks more often."""
    schedule = await queue.schedules.next()
    if schedule is None:
        return None, f"{outcome}; no schedule is enabled"
    return from_ms(schedule.next_ms), f"{outcome}; next: {schedule.id}"


async def migrations(insights: Insights) -> Migrations:
    applied = [(one.name, from_ms(one.applied_at)) for one in await insights.applied_migrations()]
    waiting = await insights.waiting_migrations()
    return Migrations(applied[:SHOWN_MIGRATIONS], applied[SHOWN_MIGRATIONS:], waiting)
