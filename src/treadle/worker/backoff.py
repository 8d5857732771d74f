"""Waiting a little longer after each failure, never in step with the other workers."""

from __future__ import annotations

import random

# With the jitter 3 s: whatever kept the store away, work goes on within 5 s after it is back.
MOST_S = 2.0


class Backoff:
    def __init__(self, first_s: float = 0.05, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    def delay_s(self) -> float:
        delay = self._next_s
        self._next_s = min(delay * 2, self._most_s)
        return jittered(delay)


def jittered(seconds: float, spread: float = 0.5) -> float:
    """Between `seconds` and half as much again, so that many workers spread out over time."""
    return seconds * random.uniform(1.0, 1.0 + spread)
