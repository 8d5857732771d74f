"""Writes the start and progress of running jobs: one batch per tick, and nothing for jobs that end quickly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.model.errors import StoreUnavailable
from treadle.store.protocol import Store
from treadle.store.values import Checkpoint, Touch
from treadle.telemetry.log_context import facts_of
from treadle.worker.attempt import Attempt
from treadle.worker.errors import MAX_MESSAGE_CHARACTERS, storable

if TYPE_CHECKING:
    from treadle.worker.slots import Slots

log = logging.getLogger("treadle.worker")

TICK_S = 0.25
# A step that has been running for about this long is written, so that it is known if its worker dies. Shorter ones cost
# no write but that of their end.
STEP_TICK_S = 0.05


class ProgressWriter:
    def __init__(self, store: Store, on_lost: Callable[[Attempt], None]) -> None:
        self._store = store
        self._on_lost = on_lost
        self._one_at_a_time = asyncio.Lock()
        """One write at a time, because an older one that arrives later would turn progress back."""
        self.slots: Slots | None = None
        self.post_steps: Callable[[Attempt, Checkpoint], None] = lambda attempt, news: None

    async def tick(self) -> None:
        assert self.slots
        await self.slots.active.wait()
        await asyncio.sleep(TICK_S)
        now = time.monotonic()
        self.tell_steps()  # first: what it writes needs no touch
        await self._write([attempt for attempt in self.slots.running() if attempt.worth_a_touch(now)])

    async def tell_begun_steps(self) -> None:
        assert self.slots
        await self.slots.active.wait()
        await asyncio.sleep(STEP_TICK_S)
        before = time.monotonic() - STEP_TICK_S / 2
        for attempt in self.slots.running():
            if attempt.steps is not None and attempt.steps.has_begun(before):
                self.post_steps(attempt, attempt.steps.under_way())

    def tell_steps(self) -> None:
        """Steps that are under way and how far they are, so that people see where a job is."""
        assert self.slots
        for attempt in self.slots.running():
            news = attempt.steps.news() if attempt.steps is not None else None
            if news is not None:
                self.post_steps(attempt, news)

    def renew_all(self) -> None:
        """At each renewal of the lease, check every job again, so that a job taken away is noticed."""
        assert self.slots
        for attempt in self.slots.running():
            attempt.touched = False

    async def write_now(self, attempt: Attempt) -> None:
        await self._write([attempt])

    async def write_last(self, lease: int, touches: list[Touch]) -> None:
        """Written before the endings of these jobs, which will report lost ones."""
        try:
            await self._send(lease, touches)
        except Exception as error:  # an ending must not fail because of progress
            # Outages are reported by the parts that retry.
            level = logging.INFO if isinstance(error, StoreUnavailable) else logging.WARNING
            log.log(level, "the last progress of %d jobs was not written: %s", len(touches), error)

    async def _write(self, attempts: list[Attempt]) -> None:
        now = time.monotonic()
        by_lease = defaultdict(list)
        for attempt in attempts:
            if not attempt.lost:
                by_lease[attempt.lease.id].append(attempt)
        for lease, mine in by_lease.items():
            try:
                self._tell_lost(set(await self._send(lease, [attempt.touch(now) for attempt in mine])), mine)
            except BaseException:
                for attempt in mine:
                    attempt.news = True
                raise

    async def _send(self, lease: int, touches: list[Touch]) -> list[tuple[int, int]]:
        async with self._one_at_a_time:
            return await self._store.touch(lease, [_storable(touch) for touch in touches])

    def _tell_lost(self, lost: set[tuple[int, int]], attempts: list[Attempt]) -> None:
        assert self.slots
        current = set(map(id, self.slots.running()))
        for attempt in attempts:
            # A job that has ended since is not lost: its ending arrived first.
            if (attempt.job.n, attempt.job.token) in lost and id(attempt) in current:
                log.warning("job %s was taken from this worker", attempt.job.id, extra=facts_of(attempt.job))
                self._on_lost(attempt)


def _storable(touch: Touch) -> Touch:
    if touch.message is None:
        return touch
    return touch._replace(message=storable(touch.message, MAX_MESSAGE_CHARACTERS))
