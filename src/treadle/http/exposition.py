"""The Prometheus text format: counts from the store, and metrics of the workers and the server in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from treadle.model.errors import TreadleError

if TYPE_CHECKING:
    from treadle.http.prometheus import WorkerMetrics
    from treadle.queue import Queue
    from treadle.store.views import Stats
    from treadle.telemetry.http_requests import HttpMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Counting a large queue is slow, and dashboards don't need fresher numbers.
FRESH_S = 1.0
# A server without its database still answers, and reports the outage.
PATIENCE_S = 5.0


class _Reading(NamedTuple):
    stats: Stats
    stale_at: float


_readings: WeakKeyDictionary[Queue, _Reading] = WeakKeyDictionary()


async def exposition(
    queue: Queue, worker_metrics: Sequence[WorkerMetrics] = (), http: HttpMetrics | None = None
) -> bytes:
    """All metrics as text. Job counts are read from the store at most once a second."""
    from treadle.http.prometheus import render  # only scraped servers load the library

    return render(await _stats(queue), worker_metrics, http)


async def _stats(queue: Queue) -> Stats | None:
    """None if the store does not answer."""
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
    # Spend at most a tenth of the time on counting, even for a very large queue.
    _readings[queue] = _Reading(stats, now + max(FRESH_S, 9 * (now - asked)))
    return stats
