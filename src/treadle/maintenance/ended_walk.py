"""Walks over ended jobs in the order in which they ended, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.store.protocol import Store
from treadle.store.values import FIRST_ENDED, EndedAt, EndedJob

BATCH = 1000
FIRST_SPAN_MS = 60_000
LEAST_SPAN_MS = 1_000


class EndedWalk:
    """A place among the ended jobs that only moves forward.

    PostgreSQL's index on ends gives ranges but no order, so it has to sort all of a range to find its first jobs. The
    walk therefore asks for short spans of time, whose length it fits to the jobs that it finds.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._span_ms = FIRST_SPAN_MS
        self.place = FIRST_ENDED

    async def next(self, until: int) -> Sequence[EndedJob]:
        """The next jobs that ended not later than this; empty: there are none."""
        if self.place == FIRST_ENDED:
            first = await self._store.first_ended(until)
            if first is None:
                return ()
            self.place = EndedAt(first, 0)
        while until >= self.place.ended_at:
            end = min(self.place.ended_at + self._span_ms, until)
            found = await self._store.ended_jobs(self.place, end, BATCH)
            self._fit(found)
            if found:
                self.place = found[-1].place
                return found
            if end == until:
                break
            self.place = EndedAt(end, 0)
        return ()

    def _fit(self, found: Sequence[EndedJob]) -> None:
        """The next span: about two batches long where jobs are dense, ever longer where there are none."""
        if len(found) < BATCH:
            self._span_ms *= 2
        else:
            self._span_ms = max(2 * (found[-1].ended_at - found[0].ended_at), LEAST_SPAN_MS)
