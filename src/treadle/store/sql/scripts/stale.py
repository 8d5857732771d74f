"""Telling that jobs are stale: one line of news about many, and a mark for each topic and status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.model import events
from treadle.policy.retention import Rules
from treadle.store.sql.rows import NOBODY
from treadle.store.sql.scripts.common import Script, as_facts, event_row, numbers
from treadle.store.sql.scripts.outbox import offer
from treadle.store.values import EndedAt, StaleJob


def mark_stale(jobs: Sequence[StaleJob], retention: Rules) -> Script[int]:
    """Returns how many were told. Jobs at or before their mark were told earlier; requeued ones are left out."""
    kinds = sorted({(one.topic, one.status) for one, _ in jobs})
    rows = [{"topic": topic, "status": status} for topic, status in kinds]
    yield "make_stale_marks", rows
    marks = {(topic, status): tuple(place) for topic, status, *place in (yield "lock_stale_marks", rows)}
    new = sorted((one for one in jobs if one.job.place > marks[one.job.topic, one.job.status]), key=_place)
    if not new:
        return 0
    ended = dict((yield "lock_ended", numbers(one.job.n for one in new)))
    told = [one for one in new if ended.get(one.job.n) == one.job.ended_at]
    if told:
        now: int = (yield "clock", [])[0][0]
        news = [[one.job.n, one.stale_at] for one in told]
        yield "add_events", [event_row(NOBODY, events.STALE, None, None, "", news, now)]
        facts = as_facts((yield "job_facts", numbers(one.job.n for one in told)))
        yield from offer([(job, events.STALE) for job in facts], now, retention)
    yield "move_stale_marks", _marks(new)
    return len(told)


def _place(one: StaleJob) -> EndedAt:
    return one.job.place


def _marks(jobs: Sequence[StaleJob]) -> list[dict[str, Any]]:
    last = {(one.topic, one.status): one.place for one, _ in jobs}
    return [
        {"topic": topic, "status": status, "ended_at": place.ended_at, "n": place.n}
        for (topic, status), place in last.items()
    ]
