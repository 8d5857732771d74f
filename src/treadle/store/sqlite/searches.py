"""Reads with a cost that the caller decides, on separate threads and connections and with a deadline.

All other reads (a job by its id, the next due time, an account) use other threads, so a search never delays them.
`interrupt` stops a statement between two rows. A progress handler would count instructions instead, and a single
instruction may search a megabyte of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from treadle.model.errors import StoreUnavailable
from treadle.store.sql.lists import SEARCH_SECONDS, too_slow
from treadle.store.sqlite.thread_connections import ThreadConnections

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

THREADS = 4
# How late a statement may be stopped.
TICK_S = 0.05
# The deadline thread ends after this much idle time.
IDLE_S = 30.0


class Searches:
    """`connect` opens a connection."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], seconds: float = SEARCH_SECONDS) -> None:
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, "treadle-search")
        self._connections = ThreadConnections(connect)
        self._deadlines = _Deadlines()
        self._closing = False

    async def run(self, work: Work[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def _run(self, work: Work[T]) -> T:
        try:
            with self._connections.transacting() as connection, self._deadlines.within(self.seconds, connection):
                self._check_open()
                return work(connection)
        except sqlite3.Error as error:
            self._check_open()
            if "interrupted" in str(error):
                raise too_slow(self.seconds) from None
            raise

    def _check_open(self) -> None:
        if self._closing:
            raise StoreUnavailable("the queue is closing")

    def close(self) -> None:
        """Stop running searches; blocks until they have ended."""
        self._closing = True
        self._deadlines.stop_all()
        self._threads.shutdown(wait=True)
        self._deadlines.close()
        for connection in self._connections.all:
            connection.close()


class _Deadlines:
    """Interrupts connections that are busy past their deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[sqlite3.Connection, float] = {}
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    @contextlib.contextmanager
    def within(self, seconds: float, connection: sqlite3.Connection) -> Iterator[None]:
        with self._lock:
            self._until[connection] = time.monotonic() + seconds
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="treadle-deadlines", daemon=True)
                self._watcher.start()
        try:
            yield
        finally:
            with self._lock:
                del self._until[connection]

    def stop_all(self) -> None:
        with self._lock:
            self._until = dict.fromkeys(self._until, 0.0)
            for connection in self._until:
                connection.interrupt()

    def close(self) -> None:
        """Called when no statement runs any more."""
        self._closed.set()
        if watcher := self._watcher:
            watcher.join()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._closed.wait(TICK_S):
            now = time.monotonic()
            with self._lock:
                for connection, until in self._until.items():
                    if until <= now:
                        connection.interrupt()
                if self._until:
                    last = now
                elif now - last > IDLE_S:
                    self._watcher = None
                    return
