"""Writes start and progress of running jobs: one batch a tick, nothing at all for jobs that are over in no time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.store.base import Store, Touch
from treadle.telemetry.context import facts_of
from treadle.worker.outcomes import storable
from treadle.worker.run import Run

if TYPE_CHECKING:
    from treadle.worker.executor import Executor, Slot

log = logging.getLogger("treadle.worker")

TICK_S = 0.25
MAX_MESSAGE_CHARACTERS = 1000


class Touches:
    def __init__(self, store: Store, on_lost: Callable[[Slot], None]) -> None:
        self._store = store
        self._on_lost = on_lost
        self._one_at_a_time = asyncio.Lock()
        """News overtaken by older news would turn progress back."""
        self.executor: Executor | None = None

    async def tick(self) -> None:
        assert self.executor
        await self.executor.active.wait()
        await asyncio.sleep(TICK_S)
        now = time.monotonic()
        await self._write([run for _, run in self.executor.running() if run.worth_a_touch(now)])

    def renew_all(self) -> None:
        """At each renewal of the lease: ask about every job again, so that one taken away is noticed."""
        assert self.executor
        for _, run in self.executor.running():
            run.touched = False

    async def write_now(self, run: Run) -> None:
        await self._write([run])

    async def write_last(self, lease: int, touches: list[Touch]) -> None:
        """Before the endings of these jobs; that they are lost is found out by those."""
        try:
            await self._send(lease, touches)
        except Exception as error:  # progress is not worth an ending
            log.warning("the last progress of %d jobs was not written: %s", len(touches), error)

    async def _write(self, runs: list[Run]) -> None:
        now = time.monotonic()
        by_lease = defaultdict(list)
        for run in runs:
            if not run.lost:
                by_lease[run.lease.id].append(run)
        for lease, mine in by_lease.items():
            try:
                self._tell_lost(set(await self._send(lease, [run.touch(now) for run in mine])), mine)
            except BaseException:
                for run in mine:
                    run.news = True
                raise

    async def _send(self, lease: int, touches: list[Touch]) -> list[int]:
        async with self._one_at_a_time:
            return await self._store.touch(lease, [_storable(touch) for touch in touches])

    def _tell_lost(self, lost: set[int], runs: list[Run]) -> None:
        assert self.executor
        current = {id(run): slot for slot, run in self.executor.running()}
        for run in runs:
            # One that has ended meanwhile is not lost: its ending overtook the news.
            if run.job.n in lost and (slot := current.get(id(run))):
                log.warning("job %s was taken from this worker", run.job.id, extra=facts_of(run.job))
                self._on_lost(slot)


def _storable(touch: Touch) -> Touch:
    if touch.message is None:
        return touch
    return touch._replace(message=storable(touch.message, MAX_MESSAGE_CHARACTERS))
