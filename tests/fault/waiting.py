"""Waiting for the queue."""

from __future__ import annotations

from tests.waiting import until
from treadle import Queue
from treadle.model.errors import StoreUnavailable

__all__ = ["nothing_live", "until"]


async def nothing_live(queue: Queue) -> bool:
    """Whether all jobs have ended; not so if the store can't say."""
    try:
        stats = await queue.stats()
    except StoreUnavailable:
        return False
    return not (stats.pending or stats.processing or stats.cancelling)
