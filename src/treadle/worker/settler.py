"""Writes the endings of attempts to the store; endings that arrive during a write form the next batch.

An ending is never dropped and never invented. While the store is unavailable it waits here. Only an ending that the
store can't keep becomes a failure that says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from treadle.model.durations import format_ms
from treadle.model.error_line import error_line
from treadle.model.errors import StoreUnavailable
from treadle.model.raised import not_ctrl_c
from treadle.model.status import Status
from treadle.policy.lifecycle import Failed, Transition, decide
from treadle.queue.backoff import StoreRetry
from treadle.store.protocol import Store
from treadle.store.values import FollowUpsBusy, Settlement, Touch
from treadle.telemetry.log_context import facts_of
from treadle.worker.errors import describe, storable
from treadle.worker.hook_runner import HookRunner
from treadle.worker.job_log import JobLog
from treadle.worker.metrics import Metrics

log = logging.getLogger("treadle.worker")

BATCH = 1000
TRIES_BEFORE_BLAMING_THE_DATA = 3
LOGGED_CHARACTERS = 500
# Until follow-up jobs with a locked key are tried again.
BUSY_PAUSE_S = 0.1


class Settler:
    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        write_touches: Callable[[int, list[Touch]], Awaitable[None]],
        on_put_back: Callable[[int], None],
        hooks: HookRunner,
        job_log: JobLog,
        immediate: bool = False,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._write_touches = write_touches
        self._on_put_back = on_put_back
        self.on_written: Callable[[], None] = lambda: None
        self.on_settled: Callable[[Sequence[Settlement]], None] | None = None
        self.on_pause_written: Callable[[str], None] = lambda topic: None
        self._hooks = hooks
        self._job_log = job_log
        self._most = 1 if immediate else BATCH
        self._waiting: deque[Settlement] = deque()
        self._touches: list[tuple[int, Touch]] = []
        self._in_flight: list[Settlement] = []
        self._held: list[Settlement] = []
        """Their follow-up jobs need a locked key; they are tried again after a pause, and hold up no others."""
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._retry = StoreRetry(store.outage, "settling")

    def add(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)
        if not self._wake.is_set():
            self._wake.set()
            self._empty.clear()

    def add_touch(self, lease: int, touch: Touch) -> None:
        """The last progress of a job, to be written before its ending."""
        self._touches.append((lease, touch))

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight) + len(self._held)

    def unwritten(self) -> Iterable[Settlement]:
        return (*self._in_flight, *self._held, *self._waiting)

    async def flushed(self) -> None:
        await self._empty.wait()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await self._last_news()
            batch = self._in_flight = self._next_batch()
            await self._write(batch)
            self._in_flight = []
            for one in batch:
                if one.transition.pauses_topic:
                    self.on_pause_written(one.job.topic)
            self.on_written()
            if not self._waiting:
                self._wake.clear()
                if not self._held:
                    self._empty.set()

    def _next_batch(self) -> list[Settlement]:
        waiting = self._waiting
        if len(waiting) <= self._most:
            batch = list(waiting)
            waiting.clear()
            return batch
        return [waiting.popleft() for _ in range(self._most)]

    async def _last_news(self) -> None:
        touches, self._touches = self._touches, []
        for lease in {lease for lease, _ in touches}:
            await self._write_touches(lease, [touch for owner, touch in touches if owner == lease])

    def _hold(self, batch: list[Settlement], busy: Sequence[Settlement]) -> None:
        """Take the busy ones out of the batch, to try them again later."""
        if not self._held:
            asyncio.get_running_loop().call_later(BUSY_PAUSE_S, self._try_held)
        self._held += busy
        held = set(map(id, busy))
        batch[:] = [one for one in batch if id(one) not in held]

    def _try_held(self) -> None:
        held, self._held = self._held, []
        for one in held:
            self.add(one)

    async def _write(self, batch: list[Settlement]) -> None:
        try:
            self._note(*await self._when_available(batch))
        except Exception as error:  # drivers have many errors for "this value can't be stored"
            log.warning("settling %d jobs together failed (%s); trying them one by one", len(batch), error)
            for settlement in batch:
                await self._write_alone(settlement)

    async def _when_available(self, batch: list[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
        """The batch as stored, and the lost ones. Waits for the store as long as necessary.

        Takes the ones out of the batch that have to be tried again.
        """
        while True:
            asked = time.monotonic()
            refused: list[Settlement] = []
            try:
                if any(one.effects for one in batch):
                    lost = await self._store.settle(batch, refused=refused)
                else:
                    lost = await self._store.settle(batch)
            except FollowUpsBusy as busy:
                self._hold(batch, busy.left)
                lost = list(busy.lost)
            except StoreUnavailable as error:
                self._metrics.store_errors += 1
                self._retry.failed(error)
                await self._retry.pause()
                continue
            self._metrics.settles.observe(time.monotonic() - asked)
            self._retry.worked()
            return _with_refusals(batch, refused) if refused else batch, lost

    async def _write_alone(self, settlement: Settlement) -> None:
        tries = 0
        while True:
            try:
                return self._note(*await self._when_available([settlement]))
            except Exception as error:
                tries += 1
                job = settlement.job
                log.exception("could not store the outcome of job %s", job.id, extra=facts_of(job))
                if tries >= TRIES_BEFORE_BLAMING_THE_DATA and await self._store_answers():
                    settlement = _refused(settlement, error)
                await self._retry.pause()

    async def _store_answers(self) -> bool:
        try:
            await self._store.now()
        except Exception:
            return False
        return True

    def _note(self, batch: list[Settlement], lost: list[Settlement]) -> None:
        completed = Status.COMPLETED
        if lost:
            self._metrics.lease_losses += len(lost)
            self._hooks.forget(lost)
            gone = {(settlement.job.n, settlement.job.token) for settlement in lost}
            batch = [one for one in batch if (one.job.n, one.job.token) not in gone]
            ids = ", ".join(settlement.job.id for settlement in lost[:10])
            log.warning("%d jobs were no longer ours when they ended: %s", len(lost), ids)
        done, others = batch, [one for one in batch if one.transition.to is not completed]
        if others:
            done = [one for one in batch if one.transition.to is completed]
            self._metrics.count(others)
            self._tell_retries([one.transition for one in others])
            for one in others:
                _log_failure(one)
        self._metrics.count_completed([one.job.topic for one in done])
        self._job_log.completed(done)
        self._hooks.stored(batch)
        if self.on_settled:
            try:
                self.on_settled(batch)
            except BaseException as error:  # it must not look as if the outcomes were not stored
                not_ctrl_c(error)
                log.error("a listener to outcomes failed\n%s", describe(error).text)

    def _tell_retries(self, transitions: list[Transition]) -> None:
        """Report when the first of the jobs put back is due; no hint is needed."""
        delays = [transition.delay_ms for transition in transitions if transition.delay_ms]
        if delays:
            self._on_put_back(min(delays))


def _log_failure(settlement: Settlement) -> None:
    job, transition = settlement.job, settlement.transition
    if not transition.error:
        return
    reason = error_line(transition.error, transition.error_type or "")[:LOGGED_CHARACTERS]
    tried = f"attempt {job.attempt} of {job.max_attempts}"
    if transition.to is Status.PENDING:
        then = f"again in {format_ms(transition.delay_ms)}"
        log.warning("%s failed (%s), %s: %s", job.topic, tried, then, reason, extra=facts_of(job))
    else:
        log.error("%s %s (%s): %s", job.topic, transition.to, tried, reason, extra=facts_of(job))


def _with_refusals(batch: list[Settlement], refused: list[Settlement]) -> list[Settlement]:
    """The batch with what was stored instead, where a follow-up job was refused."""
    instead = {(one.job.n, one.job.token): one for one in refused}
    return [instead.get((one.job.n, one.job.token), one) for one in batch]


def _refused(settlement: Settlement, error: Exception) -> Settlement:
    """The same attempt, ended as a failure with a text that any store can keep."""
    reason = storable(f"the outcome of this job could not be stored: {error!r}", 2000)
    failed = Failed(reason.encode("ascii", "replace").decode(), "ResultNotStored")
    return Settlement(settlement.job, decide(settlement.job, failed), settlement.ran_ms)
