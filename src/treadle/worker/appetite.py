"""How many jobs to ask for: what the free slots take now, and what all slots will start within 100 ms."""

from __future__ import annotations

import math
import time

from treadle.worker.executor import Executor

AHEAD_S = 0.1
MOST_AT_ONCE = 1000
# Over which time the rate is averaged. Long enough that ten jobs of a second each, ending together, don't
# look like a hundred a second; short enough to reach full speed in about 100 ms, because the rate feeds itself.
MEMORY_S = 1.0
# When endings pile up unwritten, more work would only make the pile higher.
MOST_UNWRITTEN = 4 * MOST_AT_ONCE


class Appetite:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._rate = 0.0
        self._measured_at = time.monotonic()
        self._finished = 0

    def limit(self, unwritten: int) -> int:
        """How many more to claim; 0: enough for now. Sets the mark at which the executor asks again."""
        self._measure()
        ahead = min(int(self._rate * AHEAD_S), MOST_AT_ONCE)
        self._executor.low_water = ahead // 2
        waiting, free = len(self._executor.inbox), self._executor.free
        if waiting > max(ahead // 2, free):
            return 0
        return max(0, min(free + ahead - waiting, MOST_AT_ONCE, MOST_UNWRITTEN - unwritten))

    def free(self) -> int:
        """How many of them would start at once."""
        return max(0, self._executor.free - len(self._executor.inbox))

    def _measure(self) -> None:
        now = time.monotonic()
        elapsed = now - self._measured_at
        if elapsed <= 0:
            return
        finished = self._executor.finished
        weight = 1 - math.exp(-elapsed / MEMORY_S)
        self._rate += weight * ((finished - self._finished) / elapsed - self._rate)
        self._measured_at, self._finished = now, finished
