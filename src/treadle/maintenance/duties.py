"""The leader's duties and their intervals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from treadle.maintenance.leader import Leader
from treadle.maintenance.reaper import Reaper
from treadle.maintenance.retention import Retention
from treadle.maintenance.scheduler import Scheduler
from treadle.queue.audit import AuditLog
from treadle.queue.backoff import jittered
from treadle.queue.operations import Operations
from treadle.store.values import Moved

if TYPE_CHECKING:
    from treadle.queue import Queue

TIDY_EVERY_S = 60.0
TAKE_OVER_EVERY_S = 30.0
FORGET_EVERY_S = 3600.0
LEAST_TERM_MS = 500
# How soon to look again after the term has ended and before the next election.
NOT_LEADING_S = 0.1


class Maintenance:
    """A worker's role in maintenance: it runs for election, and does the duties while it leads."""

    def __init__(
        self,
        queue: Queue,
        name: str,
        reap_every_ms: int,
        on_moved: Callable[[list[Moved]], None] = lambda moved: None,
    ) -> None:
        store, settings = queue.store, queue.settings
        self._reap_every_s = reap_every_ms / 1000
        self._prune_every_s = settings.retention_interval_ms / 1000
        self._store = store
        self._leader = Leader(store, name, max(4 * reap_every_ms, LEAST_TERM_MS))
        self._reaper = Reaper(store, on_moved)
        self._retention = Retention(store, queue.site)
        self._scheduler = Scheduler(queue)
        self._operations = Operations(queue)
        self._audit = AuditLog(queue)

    def duties(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Names and steps; each step is repeated forever."""
        return [
            ("the election", self._leader.tick),
            ("the reaper", self._while_leading(self._reaper.sweep, self._reap_every_s)),
            ("retention", self._while_leading(self._retention.prune, self._prune_every_s)),
            ("schedules", self._schedule),
            ("tidying", self._while_leading(self._store.tidy, TIDY_EVERY_S)),
            ("bulk operations", self._while_leading(self._operations.take_over, TAKE_OVER_EVERY_S)),
            ("the audit log", self._while_leading(self._audit.forget_old, FORGET_EVERY_S)),
        ]

    async def resign(self) -> None:
        await self._operations.close()
        await self._leader.resign()

    async def _schedule(self) -> None:
        """Unlike the others, this step does the waiting itself, until the next slot."""
        await self._leader.elected()
        if self._leader.leads:
            await self._scheduler.step()
        else:
            await asyncio.sleep(NOT_LEADING_S)

    def _while_leading(self, duty: Callable[[], Awaitable[None]], every_s: float) -> Callable[[], Awaitable[None]]:
        """Waits before the duty, not after it, so that the end of an outage is noticed when the duty works again."""
        due = 0.0

        async def step() -> None:
            nonlocal due
            await asyncio.sleep(max(due - time.monotonic(), 0))
            await self._leader.elected()
            if self._leader.leads:
                await duty()
            due = time.monotonic() + jittered(every_s, 0.1)

        return step
