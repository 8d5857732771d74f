"""A connection for a handler's own statements."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from treadle.model.errors import StoreUnavailable

BUSY_SECONDS = 30.0


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """As `sqlite3.connect` makes it, so `with connection:` is a transaction, but as patient and durable as the store.

    Not bound to its thread: while a function in a thread waits, the worker's loop may enqueue in its transaction.
    """
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    except sqlite3.Error as error:
        raise StoreUnavailable(f"can't open {path}: {error}") from None
    return connection
