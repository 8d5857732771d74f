"""Keeps the worker's lease alive in a separate thread with a separate loop and connection.

A handler that blocks the event loop would block everything on that loop, including the renewal, and its job would be
given to another worker while it is still running. So the keeper shares nothing with the loop that runs handlers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from treadle.model.errors import StoreUnavailable
from treadle.queue.backoff import Backoff
from treadle.store.protocol import Store
from treadle.store.values import Renewed

log = logging.getLogger("treadle.worker")

T = TypeVar("T")
# How long a handler waits for a page of results at most.
READ_S = 30.0


class Lease:
    """The worker's right to run the jobs that it claimed.

    `lost` is set by the keeper's thread and read by handlers in any thread; it only ever turns True.
    """

    __slots__ = ("id", "lost", "until", "wanted_until")

    def __init__(self, id: int, until: float) -> None:
        self.id = id
        self.until = until
        """By this process's monotonic clock, counted from before the request, so never later than the store's."""
        self.lost = False
        self.wanted_until = 0.0
        """Until when a handler asked it to last, by the monotonic clock."""

    def renewal_ms(self, usual_ms: int) -> int:
        """For how long to renew it now."""
        return max(usual_ms, math.ceil((self.wanted_until - time.monotonic()) * 1000))


class LeaseKeeper:
    """`on_renewed` and `on_lost` are called on the worker's loop, where the keeper was created."""

    def __init__(
        self,
        new_store: Callable[[], Store],
        lease_ms: int,
        on_lost: Callable[[Lease], None],
        on_renewed: Callable[[Renewed], None],
    ) -> None:
        self.lease_ms = lease_ms
        self.lease_s = lease_ms / 1000
        self._new_store = new_store
        self._on_lost = on_lost
        self._on_renewed = on_renewed
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
        """Keep this lease from now on; the previous one is lost or closed."""
        self._lease = lease
        self._tell(self._changed.set)

    async def renew_now(self, lease: Lease) -> None:
        assert self._loop
        answer = asyncio.run_coroutine_threadsafe(self._renew(lease), self._loop)
        await asyncio.shield(asyncio.wrap_future(answer))

    def read(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Reads from the database in the keeper's thread, blocking, also on the worker's loop."""
        store, loop = self._store, self._loop
        if store is None or loop is None or self._stopping:
            raise StoreUnavailable("the worker has stopped")
        answer = asyncio.run_coroutine_threadsafe(ask(store), loop)
        try:
            return answer.result(READ_S)
        except FutureTimeout:
            answer.cancel()
            raise StoreUnavailable(f"the database did not answer within {READ_S:.0f} s") from None

    async def stop(self, seconds: float) -> None:
        """Wait for the thread. A hanging renewal must not keep the worker from leaving, so the thread is a daemon."""
        self._stopping = True
        self._tell(self._changed.set)
        deadline = time.monotonic() + seconds
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
        # From here on, a start() that is cancelled no longer cancels the future.
        if self._ready.set_running_or_notify_cancel():
            asyncio.run(self._keep_all())

    async def _keep_all(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = self._new_store()
        try:
            await self._store.open(migrate=False)
        except BaseException as error:  # start() raises it where the caller sees it
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
            await self._renew_at_any_cost(lease)
            self._watch_the_loop()

    async def _renew_at_any_cost(self, lease: Lease) -> None:
        """Retry until the store has answered: an expired lease lives on until another process reclaims it."""
        assert self._store
        backoff = Backoff(most_s=max(0.05, self.lease_s / 10))
        outage = self._store.outage.caller("renewing the lease")
        while not self._stopping:
            try:
                async with asyncio.timeout(max(lease.until - time.monotonic(), self.lease_s / 3)):
                    await self._renew(lease)
                return outage.worked()
            except Exception as error:
                outage.failed(error)
            await asyncio.sleep(backoff.delay_s())

    async def _renew(self, lease: Lease) -> None:
        assert self._store
        asked = time.monotonic()
        lease_ms = lease.renewal_ms(self.lease_ms)
        renewed = await self._store.renew(lease.id, lease_ms)
        if renewed is None:
            return self._lose(lease)
        lease.until = asked + lease_ms / 1000
        self._report(lambda: self._on_renewed(renewed))

    def _lose(self, lease: Lease) -> None:
        if not lease.lost:
            lease.lost = True  # set now, for a handler that blocks the loop and checks
            self._report(lambda: self._on_lost(lease))

    def _watch_the_loop(self) -> None:
        if not self._loop_answered:
            log.warning(
                "a handler has blocked the event loop for more than %.1f s; the lease is kept, but nothing else "
                "runs. Make the handler a plain function, which runs in a thread, or use process=True",
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
