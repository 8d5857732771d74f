"""Stops running handlers: cancel requests and time limits.

Cancels are announced by the store's hints. Each renewal of the lease reports them too, and the worker polls for them at
intervals, because there are no hints behind a connection pooler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from treadle.policy.judgement import Cause
from treadle.queue.backoff import jittered
from treadle.store.protocol import Store
from treadle.store.values import CancelRequest, Renewed
from treadle.telemetry.log_context import facts_of
from treadle.worker.call import Call
from treadle.worker.metrics import Metrics
from treadle.worker.slots import Slots

log = logging.getLogger("treadle.worker")

TICK_S = 0.05
# A running job learns about its cancel well within the grace, with or without hints.
LOOK_EVERY_S = 5.0
# A job that has waited longer in this worker could have started elsewhere.
WAITS_AT_MOST_S = 0.5
# A process is killed at the end of its grace and needs a moment to exit.
PROCESS_LEAVES_S = 5.0


class Interrupts:
    def __init__(self, store: Store, slots: Slots, metrics: Metrics, lease_ms: int) -> None:
        self._store = store
        self._slots = slots
        self._metrics = metrics
        self._lease_ms = lease_ms
        self._asked = asyncio.Event()
        self.on_renewed: Callable[[Renewed], None] = lambda renewed: None

    # -- cancels ---------------------------------------------------------------------------------

    def look(self) -> None:
        """There may be a cancel."""
        self._asked.set()

    async def follow_cancels(self) -> None:
        await self._slots.active.wait()
        await self._until_asked()
        self._asked.clear()
        lease = self._slots.lease
        if self._slots.active.is_set() and not lease.lost:
            renewed = await self._store.renew(lease.id, lease.renewal_ms(self._lease_ms))
            if renewed:  # the keeper reports a lost lease
                self.on_renewed(renewed)

    async def _until_asked(self) -> None:
        timer = asyncio.get_running_loop().call_later(jittered(LOOK_EVERY_S), self._asked.set)
        try:
            await self._asked.wait()
        finally:
            timer.cancel()

    def apply(self, requests: Sequence[CancelRequest]) -> None:
        """Already settled jobs are not found here and need nothing."""
        reasons = {(request.n, request.token): request.reason for request in requests}
        if not reasons:
            return
        for job in self._slots.inbox.remove(reasons):
            self._slots.acknowledge_cancel(job, reasons[job.n, job.token])
        for attempt in self._slots.running():
            if (attempt.job.n, attempt.job.token) in reasons:
                attempt.stop(Cause.CANCEL, reasons[attempt.job.n, attempt.job.token])

    # -- time limits -----------------------------------------------------------------------------

    async def watch_time(self) -> None:
        """One tick for all slots: calls over their limit, calls that won't stop, jobs that wait too long."""
        await self._slots.active.wait()
        await asyncio.sleep(TICK_S)
        self._metrics.fold()
        now = time.monotonic()
        for attempt in self._slots.running():
            for call in attempt.calls:
                if call.interrupt is not None:
                    self._notice_stuck(call, now)
                elif now >= call.deadline:
                    call.time_out()
        waited = self._slots.inbox.take_older_than(now - WAITS_AT_MOST_S)
        self._slots.release(waited, "claimed too early: no slot was free")

    def _notice_stuck(self, call: Call, now: float) -> None:
        grace_s = call.function.grace_s
        patience_s = grace_s + (PROCESS_LEAVES_S if call.function.handler.kind == "process" else 0.0)
        if call.stuck or now < call.interrupted_at + patience_s:
            return
        call.stuck = True
        self._metrics.stuck += 1
        job = call.job
        log.warning(
            "job %s (%s) is stuck: its handler did not stop within %.1f s (%s); its slot stays busy",
            job.id,
            job.topic,
            grace_s,
            call.interrupt.cause.value if call.interrupt else "",
            extra=facts_of(job),
        )
