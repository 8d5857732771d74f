"""`ctx.db` and `ctx.http` of plain functions in a child process, on an event loop of this process.

The loop runs in a thread that starts at first use. What is open there stays open for the next call.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable

from treadle.store.values import UserDatabase
from treadle.worker.blocking import Ask, BlockingHttp, BlockingPool, found, on_loop
from treadle.worker.resources import Resources

# One call at a time runs in a child, but it may start threads.
CONNECTIONS = 4


class ChildResources:
    def __init__(self, database: Callable[[], UserDatabase]) -> None:
        self._resources = Resources(database, CONNECTIONS)
        self._loop: asyncio.AbstractEventLoop | None = None

    def database(self) -> sqlite3.Connection | BlockingPool:
        connection = self._resources.connection()
        if connection is not None:
            return connection
        ask = self._ask()
        return BlockingPool(found(ask, self._resources.pool), ask)

    def http(self) -> BlockingHttp:
        ask = self._ask()
        return BlockingHttp(found(ask, self._resources.http), ask)

    def _ask(self) -> Ask:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="treadle-resources", daemon=True).start()
        return on_loop(self._loop)

    def close(self) -> None:
        if self._loop is not None:
            on_loop(self._loop)(self._resources.close)
