"""A few connections to PostgreSQL, taken for one statement or one transaction at a time.

asyncpg's own pool shields, wraps and resets a connection at each use, which costs as much as a
short statement. Nothing of ours outlives its transaction, so a connection that is whole can be
used again as it is, and one that is not is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

# A connection that nobody has used for so long is closed.
IDLE_S = 60.0
CLOSE_S = 5.0


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self._connect = connect
        self._room = asyncio.Semaphore(size)
        self._idle: list[tuple[Any, float]] = []
        """With the time when they came back; the last one in is the first one out, so the others grow old."""
        self._busy: set[Any] = set()
        self._done: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """The statements that each connection has planned."""
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        connection = await self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    async def take(self, sql: str = "") -> Any:
        """A connection that must be given back; for this statement, one that has planned it already, if it is free."""
        await self._room.acquire()
        try:
            self._check_open()
            connection = self._spare(sql) or await self._connect()
        except BaseException:
            self._room.release()
            raise
        self._busy.add(connection)
        if sql:
            self._done.setdefault(connection, set()).add(sql)
        if self._closed:  # while it was being opened
            self.give_back(connection)
            self._check_open()
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the queue is closing")

    def _spare(self, sql: str) -> Any:
        # A statement's first time on a connection takes twenty times as long as its second.
        for at in reversed(range(len(self._idle))) if sql else ():
            connection = self._idle[at][0]
            if sql in self._done.get(connection, ()) and not connection.is_closed():
                del self._idle[at]
                return connection
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection

    def give_back(self, connection: Any) -> None:
        self._room.release()
        self._busy.discard(connection)
        # Still in a transaction: whoever used it was cancelled before it could roll back.
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            return
        self._idle.append((connection, time.monotonic()))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._drop_old)

    def _drop_old(self) -> None:
        self._sweep = None
        old = time.monotonic() - IDLE_S
        for connection, since in self._idle:
            if since <= old:
                connection.terminate()
        self._idle = [one for one in self._idle if one[1] > old]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._drop_old)

    async def close(self) -> None:
        """Say goodbye where nothing is under way; what is gets a moment to end."""
        self._closed = True
        if self._sweep:
            self._sweep.cancel()
        idle, self._idle = [connection for connection, _ in self._idle], []
        await asyncio.gather(*(connection.close(timeout=CLOSE_S) for connection in idle), return_exceptions=True)
        until = time.monotonic() + CLOSE_S
        while self._busy and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for connection in list(self._busy):
            connection.terminate()
