"""Retention: how fast a pass deletes jobs past their time, and what a drain beside it keeps of its rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from bench import scenarios
from bench.scenarios import Figures
from treadle import Queue
from treadle.maintenance import Retention
from treadle.store.views import MAINTENANCE


async def beside_a_drain(
    url: str, folder: Path, old: int, jobs: int, server_cpu: Callable[[], float], limit: float
) -> Figures:
    """The jobs to drain are loaded, and `old` ones are past their time. The pass goes on until all of them are gone."""
    async with Queue(url) as queue:
        # The worker must not lead: it would delete the same jobs.
        assert await queue.store.elect(MAINTENANCE, "bench", 3_600_000)
        retention = Retention(queue.store, queue.site)
        started = time.monotonic()
        marking = asyncio.create_task(retention.mark())
        passing = asyncio.create_task(retention.delete())
        drained = await scenarios.drain(url, folder, jobs, server_cpu, limit)
        meanwhile = not passing.done()
        deleted = await passing
        took = time.monotonic() - started
        await marking
    return {
        "drain beside retention /s": drained["drain /s"],
        "deleted by retention /s": deleted / took,
        "deleted by retention": float(deleted),
        "retention outlasted the drain": float(meanwhile),
    }
