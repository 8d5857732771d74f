"""Elects the worker that does the maintenance.

Every worker asks the store to be elected and asks again after a third of the term, long before it ends. The store
grants the term to one holder at a time, by the database's clock. A leader that can't reach the store stops leading when
its term ends by its local clock, counted from before it asked, so never later than the store assumes. So there may be
no leader for a while, but never two.

Even two leaders would do no harm: each duty re-checks what it moves in the statement that moves it. The election only
keeps the cost of maintenance independent of the number of workers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence

from treadle.queue.backoff import jittered
from treadle.store.protocol import Store
from treadle.store.values import DutyReport
from treadle.store.views import MAINTENANCE

log = logging.getLogger("treadle.maintenance")


class Leader:
    def __init__(
        self, store: Store, name: str, term_ms: int, report: Callable[[], Sequence[DutyReport]] = lambda: ()
    ) -> None:
        """`report` is stored with each election: the dashboard shows it, and it needs no extra statement."""
        self._store = store
        self._report = report
        # Unique: two workers may have the same name, and the store takes equal holders for the same one.
        self._holder = f"{name} {secrets.token_hex(4)}"
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
        if await self._store.elect(MAINTENANCE, self._holder, self._term_ms, self._report() if self.leads else ()):
            if not self.leads:
                log.info("%s leads the maintenance", self._holder)
            self._until = asked + self._term_ms / 1000
            self._elected.set()
        else:
            self._until = 0.0
            self._elected.clear()
        await asyncio.sleep(jittered(self._term_ms / 3000, 0.2))

    async def resign(self) -> None:
        """Let another worker take over immediately."""
        if self.leads:
            self._until = 0.0
            await self._store.elect(MAINTENANCE, self._holder, 0)
