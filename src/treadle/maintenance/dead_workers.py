"""Notices workers that were killed on this machine, without waiting for their leases to expire.

Every worker looks, not only the leader: the leader may run elsewhere, or be the one that was killed. A lease is given
up only if its process is proven dead (`processes.py`), and the statement that gives it up checks that it still names
this process. After that it is reclaimed like any expired lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from treadle.maintenance.processes import is_dead, this_process
from treadle.queue.backoff import jittered
from treadle.store.protocol import Store
from treadle.store.views import ProcessId

log = logging.getLogger("treadle.maintenance")

# The processes of its handlers end within moments after their worker. Nothing is reclaimed before.
SURE_AFTER_S = 1.0


class DeadWorkers:
    """Reads the leases of this machine every `every_s`, and checks their processes more often: that costs the store
    nothing."""

    def __init__(self, store: Store, reclaim: Callable[[], Awaitable[object]], every_s: float) -> None:
        self._store = store
        self._reclaim = reclaim
        self._every_s = every_s
        self._here = this_process()
        self._leases: Sequence[tuple[int, ProcessId]] = ()
        self._read_at = float("-inf")
        self._dead_since: dict[ProcessId, float] = {}

    async def step(self) -> None:
        """Look once, then wait until the next look is due."""
        if self._here is None:
            await asyncio.Event().wait()  # nothing can be proven here
        else:
            await self._look(self._here)
            await asyncio.sleep(jittered(min(SURE_AFTER_S, self._every_s), 0.1))

    async def _look(self, here: ProcessId) -> None:
        now = time.monotonic()
        if now - self._read_at >= self._every_s:
            found = await self._store.leases_of(here.home)
            self._leases = [(lease, process) for lease, process in found if process != here]
            self._read_at = now
        dead = {process for _, process in self._leases if is_dead(process)}
        self._dead_since = {process: self._dead_since.get(process, now) for process in dead}
        sure = {process for process, since in self._dead_since.items() if now - since >= SURE_AFTER_S}
        if sure:
            await self._give_up([(lease, process) for lease, process in self._leases if process in sure])

    async def _give_up(self, leases: Sequence[tuple[int, ProcessId]]) -> None:
        given_up = [process for lease, process in leases if await self._store.close_lease(lease, process)]
        self._leases = [one for one in self._leases if one not in leases]
        for process in given_up:
            log.warning("worker process %d was killed; its jobs are taken back", process.pid)
        if given_up:
            await self._reclaim()
