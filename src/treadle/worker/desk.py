"""What handlers ask of their worker through `ctx`: the same requests, awaited on the loop or blocking in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from treadle.errors import StoreUnavailable

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.worker.keeper import LeaseKeeper
    from treadle.worker.run import Run
    from treadle.worker.touches import Touches

# A heartbeat in a tight loop must not become a write in a tight loop.
BEAT_AT_MOST_EVERY_S = 1.0


class LoopDesk:
    """For coroutines: every answer is awaited."""

    def __init__(self, queue: Queue, keeper: LeaseKeeper, touches: Touches) -> None:
        self._queue = queue
        self._keeper = keeper
        self._touches = touches

    async def heartbeat(self, attempt: Run) -> None:
        now = time.monotonic()
        if now - attempt.beaten_at >= min(BEAT_AT_MOST_EVERY_S, self._keeper.lease_s / 10):
            attempt.beaten_at = now
            await self._renew(attempt)
        attempt.check()

    async def _renew(self, attempt: Run) -> None:
        try:
            await self._keeper.extend_now(attempt.lease)
            await self._touches.write_now(attempt)
        except StoreUnavailable:
            pass  # the lease may well be alive: the keeper goes on trying until its end

    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Awaitable[Any]:
        return self._queue.enqueue(topic, payload, **options)


class ThreadDesk:
    """For plain functions in threads: the loop does it while the thread waits."""

    def __init__(self, desk: LoopDesk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()

    def heartbeat(self, attempt: Run) -> None:
        self._ask(self._desk.heartbeat, attempt)

    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        return self._ask(self._desk.enqueue, topic, payload, options)

    def _ask(self, request: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        async def answer() -> Any:
            return await request(*arguments)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()
