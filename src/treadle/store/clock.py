"""A clock for tests: the database's time, moved on by hand.

Everything in a store that depends on time asks the database what time it is. On SQLite that is `julianday('now')`, and
a connection may have a function of that name with an offset. Stores on PostgreSQL can't be moved.
"""

from __future__ import annotations

import sqlite3
import time

UNIX_EPOCH_DAY = 2440587.5
DAY_S = 86_400


class MovableClock:
    def __init__(self) -> None:
        self.offset_ms = 0
        self.unmoved = ""
        """A database that was opened while this clock was used, and that it can't move."""

    def install(self, connection: sqlite3.Connection) -> None:
        # Deterministic: SQLite asks once for each statement, as it does with its own.
        connection.create_function("julianday", 1, self._julian_day, deterministic=True)

    def _julian_day(self, _now: str) -> float:
        return UNIX_EPOCH_DAY + (time.time() + self.offset_ms / 1000) / DAY_S


_current: MovableClock | None = None


def current() -> MovableClock | None:
    """What stores that are made from now on go by; None: the database's own time."""
    return _current


def use(clock: MovableClock | None) -> None:
    global _current  # noqa: PLW0603 - one clock for all stores of a test's process
    _current = clock
