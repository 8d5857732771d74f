"""Waits a little longer after each failure, with jitter so that workers don't retry in step."""

from __future__ import annotations

import random

# 3 s with jitter, so work resumes within 5 s after any outage of the store.
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
    """Between `seconds` and 1.5 times that, so that many workers spread out over time."""
    return seconds * random.uniform(1.0, 1.0 + spread)
