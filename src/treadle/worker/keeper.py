"""Keeps the worker's lease alive from a thread, a loop and a connection of its own.

A handler that blocks the event loop would stop anything that runs on that loop, the renewal too, and
its job would be given to another worker while it is still running. So the keeper shares nothing with
the loop that runs handlers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from treadle.store.base import Store
from treadle.worker.backoff import Backoff
from treadle.worker.lease import Lease

log = logging.getLogger("treadle.worker")

# A renewal that hangs must not keep the worker from leaving: the thread is a daemon.
STOP_S = 5.0


class LeaseKeeper:
    """`on_tick` and `on_lost` are called on the worker's loop, where the keeper was made."""

    def __init__(
        self,
        new_store: Callable[[], Store],
        lease_ms: int,
        on_lost: Callable[[Lease], None],
        on_tick: Callable[[], None],
    ) -> None:
        self.lease_ms = lease_ms
        self.lease_s = lease_ms / 1000
        self._new_store = new_store
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._worker_loop = asyncio.get_running_loop()
        self._lease: Lease | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: Store | None = None
        self._changed = asyncio.Event()
        self._stopping = False
        self._loop_answered = True
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, name="treadle-lease-keeper", daemon=True)

    # -- on the worker's loop ---------------------------------------------------------------------

    async def start(self) -> None:
        self._thread.start()
        await asyncio.wrap_future(self._ready)

    def keep(self, lease: Lease) -> None:
        """From now on keep this one; the last one is lost or closed."""
        self._lease = lease
        self._tell(self._changed.set)

    async def extend_now(self, lease: Lease) -> None:
        assert self._loop
        answer = asyncio.run_coroutine_threadsafe(self._extend(lease), self._loop)
        await asyncio.shield(asyncio.wrap_future(answer))

    async def stop(self) -> None:
        self._stopping = True
        self._tell(self._changed.set)
        deadline = time.monotonic() + STOP_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    def abandon(self) -> None:
        """Stop keeping, and don't wait for the thread."""
        self._stopping = True
        self._tell(self._changed.set)

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            pass  # its loop has ended already

    # -- in the keeper's thread -------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.run(self._keep_all())

    async def _keep_all(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = self._new_store()
        try:
            await self._store.open(migrate=False)
        except BaseException as error:  # start() raises it where it can be seen
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        try:
            while not self._stopping:
                await self._wait_a_third()
                await self._tick()
        finally:
            await self._store.close()

    async def _wait_a_third(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(self.lease_s / 3):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _tick(self) -> None:
        lease = self._lease
        if lease and not lease.lost and not self._stopping:
            await self._extend_until_its_end(lease)
            self._report(self._on_tick)
            self._watch_the_loop()

    async def _extend_until_its_end(self, lease: Lease) -> None:
        backoff = Backoff(most_s=max(0.05, self.lease_s / 10))
        while not self._stopping:
            try:
                async with asyncio.timeout(max(lease.until - time.monotonic(), 0.05)):
                    return await self._extend(lease)
            except Exception as error:  # only the end of the lease ends the attempts to keep it
                log.warning("the lease could not be renewed: %s", error)
            if time.monotonic() >= lease.until:
                return self._lose(lease)
            await asyncio.sleep(backoff.delay_s())

    async def _extend(self, lease: Lease) -> None:
        assert self._store
        asked = time.monotonic()
        if await self._store.extend(lease.id, self.lease_ms):
            lease.until = asked + self.lease_s
        else:
            self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        if not lease.lost:
            lease.lost = True  # at once, for a handler that blocks the loop and checks
            self._report(lambda: self._on_lost(lease))

    def _watch_the_loop(self) -> None:
        if not self._loop_answered:
            log.warning(
                "a handler has blocked the event loop for more than %.1f s; the lease is kept, but nothing else "
                "goes on. Make it a plain function (it gets a thread) or process=True",
                self.lease_s / 3,
            )
        self._loop_answered = False
        self._report(self._answer)

    def _answer(self) -> None:
        self._loop_answered = True

    def _report(self, call: Callable[[], None]) -> None:
        try:
            self._worker_loop.call_soon_threadsafe(call)
        except RuntimeError:
            self._stopping = True  # the worker's loop is gone, and so is the worker
