"""The leader's duties and their intervals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.maintenance.dead_workers import DeadWorkers
from treadle.maintenance.hooked_retention import HookedRetention
from treadle.maintenance.leader import Leader
from treadle.maintenance.reaper import Reaper
from treadle.maintenance.retention import Retention
from treadle.maintenance.scheduler import Scheduler
from treadle.maintenance.sender import Dispatcher, Sender
from treadle.model.settings import Settings
from treadle.queue.audit import AuditLog
from treadle.queue.background import store_answered
from treadle.queue.backoff import jittered
from treadle.queue.operations import Operations
from treadle.store.values import DutyReport, Moved

if TYPE_CHECKING:
    from treadle.queue import Queue

TIDY_EVERY_S = 60.0
MARK_EVERY_S = 10.0
TAKE_OVER_EVERY_S = 30.0
FORGET_EVERY_S = 3600.0
LEAST_TERM_MS = 500
# How soon to look again after the term has ended and before the next election.
NOT_LEADING_S = 0.1
MAX_OUTCOME = 200


@dataclass(slots=True)
class Duty:
    """One duty and its last run by this worker. Times are those of `time.monotonic`."""

    name: str
    every_s: float | None = None
    began: float = 0.0
    ended: float | None = None
    took: float = 0.0
    next: float | None = None
    outcome: str = ""
    failed: bool = False

    def begin(self) -> None:
        self.began = time.monotonic()

    def end(self, outcome: str, *, failed: bool = False, next_in_s: float | None = None) -> None:
        self.ended, self.failed = time.monotonic(), failed
        self.took = self.ended - self.began
        self.outcome = "".join(c if c.isprintable() else " " for c in outcome)[:MAX_OUTCOME]
        self.next = None if next_in_s is None else self.ended + next_in_s

    def report(self, now: float) -> DutyReport:
        every_ms = None if self.every_s is None else round(self.every_s * 1000)
        if self.ended is None:
            return DutyReport(self.name, every_ms)
        return DutyReport(
            self.name,
            every_ms,
            round((now - self.ended) * 1000),
            round(self.took * 1000),
            None if self.next is None else round((self.next - now) * 1000),
            self.outcome,
            self.failed,
        )


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
        self._leader = Leader(store, name, max(4 * reap_every_ms, LEAST_TERM_MS), self._report)
        self._reaper = Reaper(store, on_moved)
        self._dead_workers = DeadWorkers(store, self._reaper.sweep, self._reap_every_s)
        self._retention = Retention(store, queue.site, queue.retention_hooks.registrations)
        hooked = queue.retention_hooks.registrations
        self._hooked = HookedRetention(queue, name, max(4 * reap_every_ms, LEAST_TERM_MS)) if hooked else None
        self._scheduler = Scheduler(queue)
        self._operations = Operations(queue)
        self._audit = AuditLog(queue)
        self._sender = Sender(store, name, lambda: _dispatcher(settings))
        self._duties: list[Duty] = []

    def duties(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Names and steps; each step is repeated forever."""
        mark_every_s = min(self._prune_every_s, MARK_EVERY_S)
        return [
            ("the election", self._leader.tick),
            ("watching for killed workers", self._dead_workers.step),
            ("the reaper", self._while_leading("reaper", self._reaper.sweep, self._reap_every_s)),
            ("schedules", self._schedules()),
            ("webhooks", self._webhooks()),
            ("stale marks", self._while_leading("stale", self._retention.mark_in_time, mark_every_s)),
            ("retention", self._while_leading("retention", self._retention.prune, self._prune_every_s)),
            *self._hooked_duties(),
            ("bulk operations", self._while_leading("operations", self._operations.take_over, TAKE_OVER_EVERY_S)),
            ("tidying", self._while_leading("tidying", self._tidy, TIDY_EVERY_S)),
            ("the audit log", self._while_leading("audit", self._audit.forget_old, FORGET_EVERY_S)),
        ]

    def _hooked_duties(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Of a program with hooks of retention, whether it leads or not."""
        hooked = self._hooked
        if hooked is None:
            return []
        return [
            ("the election of retention hooks", hooked.tick),
            ("stale marks with hooks", _every(hooked.mark, min(self._prune_every_s, MARK_EVERY_S))),
            ("retention with hooks", _every(hooked.delete, self._prune_every_s)),
        ]

    async def resign(self) -> None:
        await self._operations.close()
        await self._sender.close()
        if self._hooked:
            await self._hooked.resign()
        await self._leader.resign()

    def abandon(self) -> None:
        """Stop without waiting."""
        self._sender.abandon()

    def _report(self) -> Sequence[DutyReport]:
        now = time.monotonic()
        return [duty.report(now) for duty in self._duties]

    def _duty(self, name: str, every_s: float | None = None) -> Duty:
        self._duties.append(Duty(name, every_s))
        return self._duties[-1]

    async def _tidy(self) -> str:
        await self._store.tidy()
        return "done"

    def _schedules(self) -> Callable[[], Awaitable[None]]:
        """Unlike the others, this step does the waiting itself, until the next slot."""
        duty = self._duty("schedules")

        def looked(outcome: str, wait_ms: int) -> None:
            duty.end(outcome, next_in_s=wait_ms / 1000)
            store_answered()

        async def step() -> None:
            await self._leader.elected()
            if not self._leader.leads:
                await asyncio.sleep(NOT_LEADING_S)
                return
            duty.begin()
            try:
                await self._scheduler.step(looked)
            except Exception as error:
                duty.end(_failure(error), failed=True)
                raise

        return step

    def _webhooks(self) -> Callable[[], Awaitable[None]]:
        """This step waits by itself, too. What a former leader has under way it still writes down."""
        duty = self._duty("webhooks")

        def looked(outcome: str, wait_ms: int) -> None:
            duty.end(outcome, next_in_s=wait_ms / 1000)
            store_answered()

        async def step() -> None:
            if not self._sender.busy:
                await self._leader.elected()
            duty.begin()
            try:
                await self._sender.step(leads=self._leader.leads, looked=looked)
            except Exception as error:
                duty.end(_failure(error), failed=True)
                raise

        return step

    def _while_leading(
        self, name: str, do: Callable[[], Awaitable[str]], every_s: float
    ) -> Callable[[], Awaitable[None]]:
        """Waits before the duty, not after it, so that the end of an outage is noticed when the duty works again."""
        duty, due = self._duty(name, every_s), 0.0

        async def step() -> None:
            nonlocal due
            await asyncio.sleep(max(due - time.monotonic(), 0))
            await self._leader.elected()
            pause = jittered(every_s, 0.1)
            if self._leader.leads:
                duty.begin()
                try:
                    duty.end(await do(), next_in_s=pause)
                except Exception as error:
                    duty.end(_failure(error), failed=True)
                    raise
            due = time.monotonic() + pause

        return step


def _dispatcher(settings: Settings) -> Dispatcher:
    from treadle.maintenance.dispatcher import WebhookDispatcher  # 0.1 s that most workers never need

    return WebhookDispatcher(
        allow=settings.webhook_allow, http=settings.webhook_http, secret=settings.webhook_secret or None
    )


def _every(do: Callable[[], Awaitable[object]], every_s: float) -> Callable[[], Awaitable[None]]:
    async def step() -> None:
        await asyncio.sleep(jittered(every_s, 0.1))
        await do()

    return step


def _failure(error: Exception) -> str:
    return f"failed, it is tried again: {str(error) or type(error).__name__}"
