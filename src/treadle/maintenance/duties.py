"""The leader's duties and their intervals."""

from __future__ import annotations

import asyncio
import functools
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
        while_leading = functools.partial
        return [
            ("the election", self._leader.tick),
            ("the reaper", while_leading(self._serve, self._reaper.sweep, self._reap_every_s)),
            ("retention", while_leading(self._serve, self._retention.prune, self._prune_every_s)),
            ("schedules", self._schedule),
            ("tidying", while_leading(self._serve, self._store.tidy, TIDY_EVERY_S)),
            ("bulk operations", while_leading(self._serve, self._operations.take_over, TAKE_OVER_EVERY_S)),
            ("the audit log", while_leading(self._serve, self._audit.forget_old, FORGET_EVERY_S)),
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

    async def _serve(self, duty: Callable[[], Awaitable[None]], every_s: float) -> None:
        await self._leader.elected()
        if self._leader.leads:
            await duty()
        await asyncio.sleep(jittered(every_s, 0.1))
