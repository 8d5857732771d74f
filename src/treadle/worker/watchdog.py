"""One tick for all slots: handlers over their limit, handlers that won't stop, jobs that wait too long."""

from __future__ import annotations

import asyncio
import logging
import time

from treadle.telemetry.context import facts_of
from treadle.worker.executor import Executor
from treadle.worker.metrics import Metrics
from treadle.worker.run import Interrupt, Run

log = logging.getLogger("treadle.worker")

TICK_S = 0.05
# A job that was claimed too early is somebody else's sooner job.
WAITS_AT_MOST_S = 0.5


class Watchdog:
    def __init__(self, executor: Executor, metrics: Metrics) -> None:
        self._executor = executor
        self._metrics = metrics

    async def tick(self) -> None:
        await self._executor.active.wait()
        await asyncio.sleep(TICK_S)
        self._metrics.fold()
        now = time.monotonic()
        for slot, run in self._executor.running():
            if run.interrupt is not None:
                self._notice_stuck(run, now)
            elif now >= run.deadline:
                slot.interrupt(Interrupt.TIMEOUT, f"over its limit of {run.recipe.limit()}")
        waited = self._executor.inbox.take_older_than(now - WAITS_AT_MOST_S)
        self._executor.release(waited, "claimed too early: no slot was free")

    def _notice_stuck(self, run: Run, now: float) -> None:
        if run.stuck or now < run.interrupted_at + run.recipe.stuck_after_s:
            return
        run.stuck = True
        self._metrics.stuck += 1
        log.warning(
            "job %s (%s) is stuck: its handler did not stop within %.1f s (%s); its slot stays busy",
            run.job.id,
            run.job.topic,
            run.recipe.grace_s,
            run.interrupt.value if run.interrupt else "",
            extra=facts_of(run.job),
        )
