"""What handlers share: the database for their own statements (`ctx.db`) and an HTTP client (`ctx.http`).

Each is opened at first use, on one event loop. Coroutines on that loop get the library's own object. Plain functions
get the same methods blocking (`blocking.py`), while the loop does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.store.connect import is_pool, user_connection
from treadle.store.values import UserDatabase

if TYPE_CHECKING:
    import aiohttp

    from treadle.queue.handlers.context import Context

# How long statements that are still under way may take when the pool is closed.
CLOSE_S = 2.0


class Resources:
    """The open resources of one event loop. Everything but `connection` has to be called on it."""

    def __init__(self, database: Callable[[], UserDatabase], connections: int) -> None:
        self._find_database = database
        self._database: UserDatabase | None = None
        self._connections = connections
        self._pool: Any = None
        self._http: aiohttp.ClientSession | None = None

    @property
    def database(self) -> UserDatabase:
        if self._database is None:
            self._database = self._find_database()
        return self._database

    def connection(self) -> sqlite3.Connection | None:
        """A new one for one call, from any thread; None if all calls share a pool."""
        return None if is_pool(self.database) else user_connection(self.database, 1)

    def pool(self) -> Any:
        if self._pool is None:
            self._pool = user_connection(self.database, self._connections)
        return self._pool

    def http(self) -> aiohttp.ClientSession:
        if self._http is None:
            import aiohttp  # 0.1 s that most workers never need

            self._http = aiohttp.ClientSession()
        return self._http

    async def close(self) -> None:
        try:
            if self._http is not None:
                await self._http.close()
            if self._pool is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await self._pool.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Drop everything without waiting or reporting."""
        http, self._http = self._http, None
        pool, self._pool = self._pool, None
        if http is not None:
            http.detach()
        if pool is not None:
            pool.terminate()


def close_connection(connection: Any, context: Context) -> None:
    """Close what a call opened for itself; pools stay open for the next call."""
    if not isinstance(connection, sqlite3.Connection):
        return
    if connection.in_transaction:
        context.log.warning(
            "the handler left a transaction open in ctx.db; it is rolled back. Commit it, or use `with ctx.db:`"
        )
    connection.close()
