"""Logs start, end and duration of jobs at info level; at high rates, a few lines a second and a count of the rest."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from treadle.store.values import Claimed, Settlement
from treadle.telemetry.log_context import facts_of

log = logging.getLogger("treadle.worker")

LINES_PER_S = 20


class LineQuota:
    """A number of lines per second."""

    def __init__(self) -> None:
        self._left = 0
        self._until = 0.0

    def take(self, wanted: int) -> int:
        now = time.monotonic()
        if now >= self._until:
            self._left, self._until = LINES_PER_S, now + 1.0
        taken = min(wanted, self._left)
        self._left -= taken
        return taken


class JobLog:
    def __init__(self) -> None:
        self._starts = LineQuota()
        self._ends = LineQuota()
        self._untold = 0

    def starts(self, wanted: int) -> int:
        """How many of the next jobs get a log line for their start."""
        return self._starts.take(wanted) if log.isEnabledFor(logging.INFO) else 0

    def started(self, job: Claimed) -> None:
        tried = f" (attempt {job.attempt} of {job.max_attempts})" if job.attempt > 1 else ""
        log.info("%s started%s", job.topic, tried, extra=facts_of(job))

    def completed(self, settlements: Sequence[Settlement]) -> None:
        """Other endings are logged one by one, with their reason."""
        if not settlements or not log.isEnabledFor(logging.INFO):
            return
        told = self._ends.take(len(settlements))
        for one in settlements[:told]:
            log.info("%s completed in %s", one.job.topic, _shown(one.ran_ms or 0), extra=facts_of(one.job))
        if told < len(settlements):
            if not self._untold:
                asyncio.get_running_loop().call_later(1.0, self.sum_up)
            self._untold += len(settlements) - told

    def sum_up(self) -> None:
        untold, self._untold = self._untold, 0
        if untold:
            log.info("%d more jobs completed", untold)


def _shown(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
