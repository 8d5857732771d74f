"""Endings that are undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.store.scripts.common import Script, numbers


class Ended(NamedTuple):
    n: int
    status: str
    attempt: int
    ended_at: int
    started_at: int | None
    result: str | None
    error: str | None
    error_type: str | None
    topic: str

    def undone(self) -> dict[str, Any]:
        """The tally row that takes this ending back, in the minute in which it was counted."""
        ran = self.ended_at - self.started_at if self.started_at is not None else 0
        return {
            "minute": self.ended_at // 60_000,
            "writer": 0,
            "topic": self.topic,
            "status": self.status,
            "count": -1,
            "run_ms": -max(ran, 0),
        }


def erase(ns: Sequence[int]) -> Script[None]:
    """A job that is in no place any more, and all that hangs on it."""
    if ns:
        for query in ("drop_all_keys", "drop_notes", "drop_events", "drop_deadlines", "drop_jobs"):
            yield query, numbers(ns)
