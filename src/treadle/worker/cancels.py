"""Passes on what people cancel: on the store's hint, at each renewal of the lease, and now and then."""

from __future__ import annotations

import asyncio

from treadle.store.base import CancelRequest, Store
from treadle.worker.backoff import jittered
from treadle.worker.executor import Executor
from treadle.worker.run import Interrupt

# Behind a pooler there are no hints; a running job still hears of its cancel well within the grace.
LOOK_EVERY_S = 5.0


class CancelWatcher:
    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._asked = asyncio.Event()

    def look(self) -> None:
        self._asked.set()

    async def tick(self) -> None:
        await self._executor.active.wait()
        await self._until_asked()
        self._asked.clear()
        lease = self._executor.lease
        if self._executor.active.is_set() and not lease.lost:
            self.apply(await self._store.cancel_requests(lease.id))

    async def _until_asked(self) -> None:
        timer = asyncio.get_running_loop().call_later(jittered(LOOK_EVERY_S), self._asked.set)
        try:
            await self._asked.wait()
        finally:
            timer.cancel()

    def apply(self, requests: list[CancelRequest]) -> None:
        """Those that are settled already are not found here, and need nothing."""
        reasons = {(request.n, request.token): request.reason for request in requests}
        if not reasons:
            return
        for job in self._executor.inbox.remove(reasons):
            self._executor.acknowledge_cancel(job, reasons[job.n, job.token])
        for slot, run in self._executor.running():
            if (run.job.n, run.job.token) in reasons:
                slot.interrupt(Interrupt.CANCEL, reasons[run.job.n, run.job.token])
