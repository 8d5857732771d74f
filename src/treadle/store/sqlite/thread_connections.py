"""A connection for each thread of a pool."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator

from treadle.store.sqlite.fork_gate import transaction_lock


class ThreadConnections:
    """`connect` opens one at a thread's first use, because an initializer that fails once breaks a pool for good."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self.all: list[sqlite3.Connection] = []
        self._connect = connect
        self._local = threading.local()

    @contextlib.contextmanager
    def transacting(self) -> Iterator[sqlite3.Connection]:
        """This thread's own connection; no fork happens while it is in use."""
        lock: threading.Lock | None = getattr(self._local, "lock", None)
        if lock is None:
            lock = transaction_lock()
            with lock:
                self._local.connection = self._connect()
            self._local.lock = lock
            self.all.append(self._local.connection)
        with lock:
            yield self._local.connection
