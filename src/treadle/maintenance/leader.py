"""Which worker does the maintenance.

Every worker asks the store to be elected and asks again at a third of the term, long before it is
over. The store grants the term to one holder at a time, by its own clock. A leader that can't reach the
store stops leading when its term is over by its own clock, counted from before it asked: never later
than the store thinks. So there may be no leader for a while, but never two.

Even two would do no harm: each duty re-checks in its own statement what it moves. Leading only keeps
the cost of maintenance the same however many workers there are.
"""

from __future__ import annotations

import asyncio
import logging
import time

from treadle.store.base import Store
from treadle.worker.backoff import jittered

log = logging.getLogger("treadle.maintenance")

NAME = "maintenance"


class Leader:
    def __init__(self, store: Store, holder: str, term_ms: int) -> None:
        self._store = store
        self._holder = holder
        self._term_ms = term_ms
        self._until = 0.0
        self._elected = asyncio.Event()

    @property
    def leads(self) -> bool:
        return time.monotonic() < self._until

    async def elected(self) -> None:
        await self._elected.wait()

    async def tick(self) -> None:
        asked = time.monotonic()
        if await self._store.elect(NAME, self._holder, self._term_ms):
            if not self.leads:
                log.info("%s leads the maintenance", self._holder)
            self._until = asked + self._term_ms / 1000
            self._elected.set()
        else:
            self._until = 0.0
            self._elected.clear()
        await asyncio.sleep(jittered(self._term_ms / 3000, 0.2))

    async def resign(self) -> None:
        """Let somebody else lead at once."""
        if self.leads:
            self._until = 0.0
            await self._store.resign(NAME, self._holder)
