"""Waits a little longer after each failure, with jitter so that workers don't retry in step."""

from __future__ import annotations

import asyncio
import random

from treadle.telemetry.outages import OutageLog

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


class StoreRetry:
    """A part of the process that calls the store until it answers: reports the outage, and pauses between two calls."""

    def __init__(self, outage: OutageLog, doing: str) -> None:
        self._outage = outage.caller(doing)
        self._backoff = Backoff()
        self._failing = False

    def failed(self, error: Exception) -> None:
        """The store did not answer."""
        self._failing = True
        self._outage.failed(error)

    async def pause(self) -> None:
        """Until the next call, the longer the more have failed."""
        self._failing = True
        await asyncio.sleep(self._backoff.delay_s())

    def worked(self) -> None:
        """Called after every successful call, so it does nothing unless the last call failed."""
        if self._failing:
            self._failing = False
            self._backoff.reset()
            self._outage.worked()


def jittered(seconds: float, spread: float = 0.5) -> float:
    """Between `seconds` and 1.5 times that, so that many workers spread out over time."""
    return seconds * random.uniform(1.0, 1.0 + spread)
