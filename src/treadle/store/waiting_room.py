"""Where a call waits while another transaction has a row locked that it needs.

A user's transaction can stay open for minutes, and a call that waited for it inside the database would keep one of the
store's few connections. So a call asks for its locks with a short limit (StoreBusy), leaves its connection, and tries
again after a pause. Only `TRIES` calls of a room try at the same time. Of the calls that need the same key, only the
first one tries; the others wait for it and for nothing else.

A room remembers for a while which keys were locked, so that the next call for one of them doesn't start by holding up
others.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from treadle.model.errors import StoreBusy, StoreUnavailable

T = TypeVar("T")

# How long a call may wait, from its start.
WAIT_SECONDS = 5.0
# Average pause between two tries.
PAUSE_SECONDS = 0.1
# Calls of a room that try at the same time; the store's other connections stay free for other work.
TRIES = 1
# How long a key counts as locked after the last try that found it so.
REMEMBERED_SECONDS = 5.0


class _Turn:
    """The calls that need one key."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.calls = 0


class WaitingRoom:
    def __init__(self) -> None:
        self._tries = asyncio.Semaphore(TRIES)
        self._turns: dict[Hashable, _Turn] = {}
        self.locked: dict[Hashable, float] = {}
        """Until when each key counts as locked; the oldest first."""

    async def run(self, keys: Collection[Hashable], attempt: Callable[[], Awaitable[T]]) -> T:
        """The answer of `attempt`, which raises StoreBusy while a row is locked; StoreUnavailable after the limit."""
        since = time.monotonic()
        if not self.knows(keys):
            try:
                return await attempt()
            except StoreBusy:
                self.remember(keys)
        return await self.wait(keys, attempt, since)

    def knows(self, keys: Collection[Hashable]) -> bool:
        """A key was locked a moment ago, or calls wait for it."""
        return any(key in self._turns or self._is_locked(key) for key in keys)

    def _is_locked(self, key: Hashable) -> bool:
        return self.locked.get(key, 0.0) > time.monotonic()

    def remember(self, keys: Collection[Hashable]) -> None:
        now = time.monotonic()
        for key in keys:
            self.locked.pop(key, None)  # it becomes the newest
            self.locked[key] = now + REMEMBERED_SECONDS
        for key, until in list(self.locked.items()):
            if until > now:
                break
            del self.locked[key]

    async def wait(self, keys: Collection[Hashable], attempt: Callable[[], Awaitable[T]], since: float) -> T:
        """As `run`, for a call that began at `since`."""
        deadline = since + WAIT_SECONDS
        try:
            async with self._turn(keys, deadline):
                return await self._until_free(keys, attempt, deadline)
        except TimeoutError:
            raise StoreUnavailable(
                "another transaction has a key of this job locked (an enqueue in a user's transaction that is still "
                "open?); try again"
            ) from None

    async def _until_free(self, keys: Collection[Hashable], attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
        while True:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await self._tries.acquire()
            try:
                answer = await attempt()
            except StoreBusy:
                self.remember(keys)
            else:
                for key in keys:
                    self.locked.pop(key, None)
                return answer
            finally:
                self._tries.release()
            pause = PAUSE_SECONDS * random.uniform(0.5, 1.5)
            if time.monotonic() + pause >= deadline:
                raise TimeoutError
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _turn(self, keys: Collection[Hashable], deadline: float) -> AsyncIterator[None]:
        async with AsyncExitStack() as turns:
            for key in sorted(keys, key=repr):
                await turns.enter_async_context(self._turn_at(key, deadline))
            yield

    @asynccontextmanager
    async def _turn_at(self, key: Hashable, deadline: float) -> AsyncIterator[None]:
        turn = self._turns.setdefault(key, _Turn())
        turn.calls += 1
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await turn.lock.acquire()
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.calls -= 1
            if not turn.calls:
                del self._turns[key]
