"""Deletes jobs that ended long ago, and output before that, in small batches with separate commits."""

from __future__ import annotations

import asyncio
import logging

from treadle.queue.runtime_settings import RuntimeSettings
from treadle.store.protocol import Store

log = logging.getLogger("treadle.maintenance")

BATCH = 1000
# The pause between two batches, so that concurrent enqueues don't slow down.
PAUSE_S = 0.05


class Retention:
    def __init__(self, store: Store, site: RuntimeSettings) -> None:
        self._store = store
        self._site = site

    async def prune(self) -> str:
        """Returns what it did, in words."""
        total = 0
        while deleted := await self._store.prune(await self._keep_ms(), BATCH):
            total += deleted
            await asyncio.sleep(PAUSE_S)
        while await self._store.prune_output((await self._site.settings()).output_after_ms, BATCH):
            await asyncio.sleep(PAUSE_S)
        if total:
            log.info("deleted %d jobs that ended long ago", total)
        return f"{total:,} deleted" if total else "nothing to delete"

    async def _keep_ms(self) -> int:
        """Read before each batch, so that a longer retention applies in the middle of a long pass."""
        settings = await self._site.settings()
        return settings.stale_after_ms + settings.delete_after_ms
