"""The worker as users see it: its options, `run()` and `stop()`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.errors import InvalidInput
from treadle.policy import Duration, duration_ms
from treadle.template import checked_capability
from treadle.worker import shutdown
from treadle.worker.engine import Engine
from treadle.worker.metrics import Metrics
from treadle.worker.options import Options
from treadle.worker.signals import on_signals

if TYPE_CHECKING:
    from treadle.queue import Queue


class Worker:
    """Runs jobs of a queue in this process.

    `run()` returns after `stop()`: no new jobs, those that run may end until `drain` is over, the rest is
    given back. A second `stop()` leaves at once; what still runs is recovered when the lease is over.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        slots: int | None = None,
        topics: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        name: str | None = None,
        lease: Duration | None = None,
        poll_interval: Duration | None = None,
        reap_interval: Duration | None = None,
        drain: Duration = "30s",
        maintenance: bool = True,
        immediate: bool = False,
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
            topics=_checked_topics(queue, topics),
            capabilities=tuple(checked_capability(one) or "" for one in capabilities),
            lease_ms=settings.lease_ms,
            poll_ms=settings.poll_interval_ms,
            reap_ms=min(settings.reap_interval_ms, max(settings.lease_ms // 3, 1)),
            drain_ms=duration_ms(drain, "drain"),
            maintenance=maintenance,
            immediate=immediate,
        )
        self._pid: int | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Worker {self.name}>"

    async def run(self, *, signals: bool = False) -> None:
        """Work until stopped. `signals`: SIGTERM and SIGINT stop the worker, once more and it is out at once."""
        if self._pid is not None:
            self._refuse_after_fork()
            raise InvalidInput("this worker has run already; make a new one")
        if self._made_in != os.getpid() and self._has_default_name:
            self.name = _default_name()  # made before a fork: its sisters have the same
        self._pid = os.getpid()
        with on_signals(self.stop) if signals else contextlib.nullcontext():
            engine = Engine(self.queue, self.name, self.options, self.metrics)
            try:
                await engine.start()
                await self._stop.wait()
            finally:
                await self._leave(engine)

    def stop(self) -> None:
        """Stop working: the first call drains, the second leaves at once. Call it on the worker's loop."""
        self._refuse_after_fork()
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def _leave(self, engine: Engine) -> None:
        """Wind down, unless there is no time for that."""
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
                winding_down.cancel()
                shutdown.abandon(engine)
            self.left_behind = engine.still_running()
            self.metrics.slots, self.metrics.free_slots = 0, lambda: 0

    def _refuse_after_fork(self) -> None:
        if self._pid not in (None, os.getpid()):
            raise InvalidInput(
                f"worker {self.name} runs in process {self._pid}, and this is a fork of it ({os.getpid()}); "
                "make a queue and a worker after the fork"
            )


def _default_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


def _checked_topics(queue: Queue, topics: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(topics, str):
        raise InvalidInput(f"topics: a list, please: [{topics!r}]", field="topics")
    unknown = sorted(set(topics or ()) - set(queue.handlers))
    if unknown:
        raise InvalidInput(f"topics: no handler is registered for {', '.join(unknown)}", field="topics")
    return None if topics is None else tuple(topics)
