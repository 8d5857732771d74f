"""Where claims of a busy lane start: at a mark instead of at its head.

The rows before a mark are dead, but a look from the head would have to step over them while an old snapshot keeps them
from being vacuumed. Marks exist only while claims come back full, and only where looks from the heads proved slow. Jobs
put in front of a mark are not seen until the next look from the head.
"""

from __future__ import annotations

import time
from typing import Any

from pydantic_core import from_json

from treadle.store.lanes import LanePlace

# How long claims of a busy lane may start at their mark instead of at its head.
MARK_SECONDS = 1.0
# A look from the head can be slow, because it passes everything claimed since an old snapshot. The next one waits this
# many times as long.
LOOK_SHARE = 20
# A look from the heads that takes longer than this has stepped over dead rows. Otherwise claims need no marks.
SLOW_LOOK_S = 0.01
# This many in a row, because the first on a connection is slow: it is planned.
SLOW_LOOKS = 2
MIN_RANK = -(2**31)
_NOT_WANTED = (None, None, None, None)


class LaneMarks:
    def __init__(self) -> None:
        self.places: dict[int, LanePlace] = {}
        """The last place that was claimed in each lane."""
        self._slow_looks = 0
        self._look_at = 0.0
        """When a claim is to start at the heads of its lanes again."""

    def clear(self) -> None:
        self.places.clear()

    def at(self, asked: float) -> tuple[Any, ...]:
        """For a claim at this time: lanes, ranks, times and numbers; no lanes if it starts at their heads."""
        if asked > self._look_at:
            self.places.clear()
        if self._slow_looks < SLOW_LOOKS - 1:
            return _NOT_WANTED
        marks = self.places.values()
        return list(self.places), [rank for rank, _, _ in marks], [at for _, at, _ in marks], [n for _, _, n in marks]

    def remember(self, places: str | None, full: bool, asked: float, marked: bool) -> None:
        """Where the next claim may start in each lane. `places`: where this one ended, as JSON."""
        took = time.monotonic() - asked
        if not marked:
            self._look_at = asked + took + max(MARK_SECONDS, LOOK_SHARE * took)
            self._slow_looks = self._slow_looks + 1 if took > SLOW_LOOK_S else 0
        if not full or not places or self._slow_looks < SLOW_LOOKS:
            self.places.clear()
            return
        for lane, *place in from_json(places):
            self.places[lane] = max(self.places.get(lane, (MIN_RANK, -1, -1)), tuple(place))
