"""Undoing endings: for requeues and deletions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.model import events
from treadle.policy.history import ran_ms
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

    @classmethod
    def taken(cls, n: int, status: str, ended_at: int, started_at: int | None, topic: str) -> EndedRow:
        """An ending to delete, with only the fields that the tally needs."""
        return cls(n, status, 0, ended_at, started_at, None, None, None, topic, None)

    def undone(self) -> dict[str, Any]:
        """The tally row that takes this ending back, in the minute in which it was counted."""
        return {
            "minute": self.ended_at // 60_000,
            "writer": 0,
            "topic": self.topic,
            "status": self.status,
            "count": -1,
            "run_ms": -ran_ms(self.started_at, self.ended_at),
        }


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
    "drop_all_answers",
    "drop_output",
    "drop_channels",
    "drop_jobs",
)

# The fields of a deleted job that listeners may need: its id and its owner.
_TOLD = ("id", "topic", "scope", "scopeId", "createdBy")
