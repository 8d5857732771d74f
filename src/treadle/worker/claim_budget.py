"""How many jobs to claim: enough for the free slots, plus what all slots will start within 100 ms."""

from __future__ import annotations

import math
import time

from treadle.worker.slots import Slots

AHEAD_S = 0.1
MOST_AT_ONCE = 2000
# The time over which the rate is averaged. Long enough that ten jobs of a second each, ending together, don't
# look like a hundred a second; short enough to reach full speed in about 100 ms, because the rate feeds itself.
MEMORY_S = 1.0
# If endings pile up unwritten, more work would only add to them.
MOST_UNWRITTEN = 4 * MOST_AT_ONCE


class ClaimBudget:
    def __init__(self, slots: Slots, most_ahead: int | None = None) -> None:
        self._slots = slots
        self._most_ahead = MOST_AT_ONCE if most_ahead is None else most_ahead
        self._rate = 0.0
        self._measured_at = time.monotonic()
        self._finished = 0

    def limit(self, unwritten: int) -> int:
        """How many more to claim; 0 if there are enough. Sets the mark at which the slots ask again."""
        self._measure()
        ahead = min(int(self._rate * AHEAD_S), self._most_ahead)
        self._slots.low_water = ahead // 2
        waiting = len(self._slots.inbox)
        if waiting > ahead // 2:
            return 0
        return max(0, min(self._slots.free + ahead - waiting, MOST_AT_ONCE, MOST_UNWRITTEN - unwritten))

    def _measure(self) -> None:
        now = time.monotonic()
        elapsed = now - self._measured_at
        if elapsed <= 0:
            return
        finished = self._slots.finished
        weight = 1 - math.exp(-elapsed / MEMORY_S)
        self._rate += weight * ((finished - self._finished) / elapsed - self._rate)
        self._measured_at, self._finished = now, finished
