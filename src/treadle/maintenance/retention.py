"""Deletes jobs that ended long ago, in small batches that each commit on their own."""

from __future__ import annotations

import asyncio
import logging

from treadle.site import Site
from treadle.store.base import Store

log = logging.getLogger("treadle.maintenance")

BATCH = 1000
# Between two batches: whoever enqueues meanwhile should not notice.
PAUSE_S = 0.05


class Retention:
    def __init__(self, store: Store, site: Site) -> None:
        self._store = store
        self._site = site

    async def prune(self) -> None:
        total = 0
        while deleted := await self._store.prune(await self._keep_ms(), BATCH):
            total += deleted
            await asyncio.sleep(PAUSE_S)
        if total:
            log.info("deleted %d jobs that ended long ago", total)

    async def _keep_ms(self) -> int:
        """Asked before each batch: whoever wants to keep more should not have to wait for the end of a long pass."""
        settings = await self._site.settings()
        return settings.stale_after_ms + settings.delete_after_ms
