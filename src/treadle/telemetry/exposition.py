"""The text that Prometheus reads: what the store counts, what the workers and the server of this process did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from treadle.errors import TreadleError

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.store.base import Stats
    from treadle.telemetry.requests import HttpMetrics
    from treadle.worker.metrics import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Counting a large queue takes a while, and nobody's dashboards are fresher than that.
FRESH_S = 1.0
# A server without its database still answers, and says so.
PATIENCE_S = 5.0


class _Reading(NamedTuple):
    stats: Stats
    stale_at: float


_readings: WeakKeyDictionary[Queue, _Reading] = WeakKeyDictionary()


async def exposition(queue: Queue, worker_metrics: Sequence[Metrics] = (), http: HttpMetrics | None = None) -> bytes:
    """All metrics as text. Counts of jobs are read from the store at most once a second."""
    from treadle.telemetry.prometheus import render  # only who is scraped pays for the library

    return render(await _stats(queue), worker_metrics, http)


async def _stats(queue: Queue) -> Stats | None:
    """None: the store does not answer."""
    last = _readings.get(queue)
    if last and time.monotonic() < last.stale_at:
        return last.stats
    asked = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await queue.open()
            stats = await queue.store.stats()
    except (TreadleError, TimeoutError, OSError):
        return None
    now = time.monotonic()
    # However large the queue: counting it takes a tenth of the time at most.
    _readings[queue] = _Reading(stats, now + max(FRESH_S, 9 * (now - asked)))
    return stats
