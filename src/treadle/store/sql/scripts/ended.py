"""Endings that are taken back, by requeues and deletions, and jobs that go with all their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.model import events
from treadle.store.sql.rows import NOBODY
from treadle.store.sql.scripts.common import Script, event_row, numbers


class EndedRow(NamedTuple):
    n: int
    status: str
    attempt: int
    ended_at: int
    started_at: int | None
    result: str | None
    error: str | None
    error_type: str | None
    topic: str
    worker: str | None


def erase(ns: Sequence[int]) -> Script[None]:
    """Delete jobs that are in no place any more, with all their rows."""
    if ns:
        now: int = (yield "clock", [])[0][0]
        gone = [dict(zip(_TOLD, row, strict=True)) for row in (yield "departing", numbers(ns))]
        for query in _HANGING_ON_A_JOB:
            yield query, numbers(ns)
        yield "add_events", [event_row(NOBODY, events.DELETED, None, None, "", gone, now)]


_HANGING_ON_A_JOB = (
    "drop_all_keys",
    "drop_notes",
    "drop_events",
    "drop_deadlines",
    "drop_steps",
    "drop_step_results",
    "drop_children",
    "drop_all_answers",
    "drop_output",
    "drop_channels",
    "drop_deliveries",
    "drop_outbox",
    "drop_jobs",
)

# The fields of a deleted job that listeners may need: its id and its owner.
_TOLD = ("id", "topic", "scope", "scopeId", "createdBy")
