"""Logs a statement that takes much longer than it usually does, with what to do.

The usual time is a moving average of each statement's own times, so nothing has to be configured. A statement that has
always been slow is usual.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("treadle.store")

TIMES_USUAL = 20
LEAST_S = 0.25
# What is usual is not known before, and the first statements of a process also plan and connect.
KNOWN_AFTER = 20
# How much one statement counts in the average.
WEIGHT = 0.05
REPEAT_S = 60.0


class SlowStatements:
    """Thread-safe enough: an observation that is lost changes nothing."""

    __slots__ = ("_advice", "_clock", "_told_at", "_usual")

    def __init__(self, advice: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._advice = advice
        self._clock = clock
        self._usual: dict[str, tuple[int, float]] = {}
        """By statement, how often it was seen and how long it takes."""
        self._told_at: dict[str, float] = {}

    def observe(self, name: str, seconds: float) -> None:
        seen, usual = self._usual.get(name, (0, seconds))
        if seconds > LEAST_S and seen >= KNOWN_AFTER and seconds > TIMES_USUAL * usual:
            self._tell(name, seconds, usual)
            seconds = TIMES_USUAL * usual  # one that hangs for minutes must not become usual
        self._usual[name] = (seen + 1, usual + WEIGHT * (seconds - usual))

    def _tell(self, name: str, seconds: float, usual: float) -> None:
        now = self._clock()
        if now - self._told_at.get(name, float("-inf")) >= REPEAT_S:
            self._told_at[name] = now
            log.warning("statement %s took %.1f s, usually %.1f ms; %s", name, seconds, usual * 1000, self._advice)
