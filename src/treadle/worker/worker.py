"""The public worker: its options, `run()` and `stop()`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import InvalidInput, StoreUnavailable
from treadle.model.template import checked_capability
from treadle.queue.background import end
from treadle.worker import shutdown
from treadle.worker.assembly import Assembly
from treadle.worker.hook_runner import run_worker_hooks
from treadle.worker.metrics import Metrics
from treadle.worker.options import Options
from treadle.worker.served_topics import served_topics
from treadle.worker.signals import on_signals

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.store.values import Settlement


log = logging.getLogger("treadle.worker")


class Worker:
    """Runs jobs of a queue in this process.

    `run()` returns after `stop()`: the worker takes no new jobs, running ones may finish until `drain` is over, and the
    rest is given back. A second `stop()` gives everything back and returns without waiting. With `burst` it also
    returns when no job is left that could start now.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        slots: int | None = None,
        topics: Sequence[str] | None = None,
        except_topics: Sequence[str] = (),
        capabilities: Sequence[str] = (),
        name: str | None = None,
        lease: Duration | None = None,
        poll_interval: Duration | None = None,
        reap_interval: Duration | None = None,
        drain: Duration = "30s",
        maintenance: bool = True,
        immediate: bool = False,
        burst: bool = False,
        prefetch: int | None = None,
    ) -> None:
        settings = queue.settings.override(
            {"slots": slots, "lease": lease, "poll_interval": poll_interval, "reap_interval": reap_interval}
        )
        self.queue = queue
        self.name = name or _default_name()
        self._has_default_name = name is None
        self._made_in = os.getpid()
        self.metrics = Metrics()
        self.left_behind = 0
        """Handlers that would not stop and still run after `run()` has returned; they end with the process."""
        self.options = Options(
            slots=settings.slots,
            topics=served_topics(queue.handlers, topics, except_topics),
            capabilities=tuple(checked_capability(one) or "" for one in capabilities),
            lease_ms=settings.lease_ms,
            poll_ms=settings.poll_interval_ms,
            reap_ms=min(settings.reap_interval_ms, max(settings.lease_ms // 3, 1)),
            drain_ms=duration_ms(drain, "drain"),
            maintenance=maintenance,
            immediate=immediate,
            burst=burst,
            prefetch=prefetch,
        )
        self.on_settled: Callable[[Sequence[Settlement]], None] | None = None
        """Called with the outcomes of attempts once they are stored."""
        self._pid: int | None = None
        self._engine: Assembly | None = None
        self.drained = False
        """It was asked to drain: it stops when its running jobs have ended, and should not be started again."""
        self._drained_by_operator = False
        self._drain = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Worker {self.name}>"

    async def run(self, *, signals: bool = False) -> None:
        """Work until stopped. `signals`: SIGTERM and SIGINT stop the worker; a second one skips the drain."""
        if self._pid is not None:
            self._refuse_after_fork()
            raise InvalidInput("this worker has run already; create a new one")
        if self._made_in != os.getpid() and self._has_default_name:
            self.name = _default_name()  # created before a fork: its siblings have the same
        self._pid = os.getpid()
        self.queue.listeners.own.workers.add(self.name)
        with on_signals(self.stop) if signals else contextlib.nullcontext():
            engine = self._engine = Assembly(self.queue, self.name, self.options, self.metrics)
            engine.on_drain = self._follow_operator
            try:
                await run_worker_hooks(self.queue.hooks.worker_start, self)
                await self._work(engine)
            finally:
                self._engine = None

    async def _work(self, engine: Assembly) -> None:
        try:
            await self._start(engine)
            if engine.started:
                await self._until_stopped(engine)
        finally:
            await self._leave(engine)
            await self._run_stop_hooks()

    async def _start(self, engine: Assembly) -> None:
        """Start the parts. After a stop, the store gets a limited time to answer."""
        starting = asyncio.create_task(engine.start(self.on_settled))
        stopped = asyncio.create_task(self._stop.wait())
        hurrying = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(
                {starting, hurrying}, timeout=shutdown.LAST_WRITES_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            await end([stopped, hurrying])
            if not starting.done():
                await end([starting])
        if not starting.cancelled():
            starting.result()

    async def _until_stopped(self, engine: Assembly) -> None:
        if self.drained:
            engine.hold()
        waits = [
            asyncio.create_task(self._stop.wait()),
            asyncio.create_task(self._until_drained(engine)),
            asyncio.create_task(engine.claims.nothing_due.wait()),  # only in burst mode
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(waits)

    async def _until_drained(self, engine: Assembly) -> None:
        while not (self.drained and engine.slots.idle.is_set()):
            await self._drain.wait()
            await engine.slots.idle.wait()
            if self._drained_by_operator:
                # A change of mind that was answered before the last job ended counts.
                with contextlib.suppress(StoreUnavailable):
                    await engine.ask_again()
        self._stop.set()

    def stop(self) -> None:
        """Stop working: the first call drains, the second leaves without waiting. Call it on the worker's loop."""
        self._refuse_after_fork()
        if self._stop.is_set():
            self._hurry.set()
        elif self._engine:
            log.info("draining %s, Ctrl-C again to quit", _jobs(self._engine.still_running()))
        self._stop.set()

    def drain(self) -> None:
        """Claim nothing more, let running jobs finish, however long they take, then stop. Call it on the worker's loop.

        A `stop()` that follows limits the time to the usual drain, and `undrain()` calls it off.
        """
        if self._stop.is_set() or self.drained:
            return
        self.drained = True
        running = self._engine.still_running() if self._engine else 0
        log.info("%s was asked to drain: it finishes %s, then stops", self.name, _jobs(running))
        if self._engine and self._engine.started:
            self._engine.hold()
        self._drain.set()

    def undrain(self) -> None:
        """Go on after a `drain()` that has not ended yet. Call it on the worker's loop."""
        if self._stop.is_set() or not self.drained:
            return
        self.drained = self._drained_by_operator = False
        self._drain.clear()
        log.info("%s was asked to go on", self.name)
        if self._engine and self._engine.started:
            self._engine.go_on()

    def _follow_operator(self, draining: bool) -> None:
        if draining:
            self.drain()
            self._drained_by_operator = self.drained
        elif self._drained_by_operator:
            self.undrain()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def _leave(self, engine: Assembly) -> None:
        """Wind down, or leave now if a second stop comes."""
        drain_s = self.options.drain_ms / 1000 if self._stop.is_set() else 0.0
        winding_down = asyncio.create_task(shutdown.wind_down(engine, drain_s))
        hurrying = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({winding_down, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurrying.cancel()
            if winding_down.done():
                winding_down.result()
            else:
                await end([winding_down])
                await shutdown.leave_now(engine)
            self.left_behind = engine.still_running()
            self.metrics.slots, self.metrics.free_slots = 0, lambda: 0

    async def _run_stop_hooks(self) -> None:
        try:
            await run_worker_hooks(self.queue.hooks.worker_stop, self)
        except Exception:  # the worker has stopped nevertheless
            log.exception("an on_worker_stop hook of worker %s failed", self.name)

    def _refuse_after_fork(self) -> None:
        if self._pid not in (None, os.getpid()):
            raise InvalidInput(
                f"worker {self.name} runs in process {self._pid}, and this is a fork of it ({os.getpid()}); "
                "create a queue and a worker after the fork"
            )


def _jobs(count: int) -> str:
    return f"{count} {'job' if count == 1 else 'jobs'}"


def _default_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
