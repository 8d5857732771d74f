"""The lock that writers of different processes take in turn: `flock` on a file next to the database.

`flock` has no time limit, and polling for it would leave the lock idle while every waiting process sleeps. So a writer
waits in the kernel, which wakes it right away, and a second thread, which exists only while processes contend for the
lock, watches the clock. If the holder is stopped or its disk hangs, the other processes get an error in time, and they
continue when it does.

`flock` belongs to the open file, which a fork shares with its parent. If the parent is killed, its lock would stay with
the child for as long as the child lives. So a child closes its copy.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: SQLite's busy handler must do
    fcntl = None  # type: ignore[assignment]

# How long a writer waits before `on_limit` is called.
LIMIT_SECONDS = 30.0
# The clock thread ends after this many checks without a waiting writer.
QUIET_LOOKS = 20

OnLimit = Callable[[float], None]


class _Wait(NamedTuple):
    since: float
    on_limit: OnLimit


class WriteLock:
    """Taken and released by one thread at a time."""

    def __init__(self, database: Path) -> None:
        self._fd = _open(database)
        self._wait: _Wait | None = None
        self._clock: threading.Thread | None = None
        self._mutex = threading.Lock()
        """Guards `_wait` and `_clock`."""
        self._closed = threading.Event()
        _open_locks.add(self)

    def try_take(self) -> bool:
        """Take the lock if no other process has it."""
        if self._fd is not None:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def wait(self, on_limit: OnLimit) -> None:
        """Take the lock in turn, after `try_take` did not get it.

        Past the limit, `on_limit` is called repeatedly from another thread with the seconds waited so far; never after
        this has returned.
        """
        assert self._fd is not None
        with self._mutex:
            self._wait = _Wait(time.monotonic(), on_limit)
            if self._clock is None:
                self._clock = threading.Thread(target=self._watch_clock, name="treadle-lock", daemon=True)
                self._clock.start()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        finally:
            with self._mutex:
                self._wait = None

    def _watch_clock(self) -> None:
        quiet = 0
        while quiet < QUIET_LOOKS:
            self._closed.wait(min(1.0, LIMIT_SECONDS / 4))
            with self._mutex:
                quiet = quiet + 1 if self._wait is None else 0
                if self._wait and (waited := time.monotonic() - self._wait.since) >= LIMIT_SECONDS:
                    self._wait.on_limit(waited)
                if quiet == QUIET_LOOKS or self._closed.is_set():
                    self._clock = None
                    return

    def release(self) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def ring(self) -> None:
        """Write to the file to wake the watchers of other processes."""
        if self._fd is not None:
            try:
                os.pwrite(self._fd, b"x", 0)
            except OSError:
                pass  # the disk is full; the others still poll

    def close(self) -> None:
        self._closed.set()
        _open_locks.discard(self)
        self.close_file()

    def close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _open(database: Path) -> int | None:
    """None if the platform has no such lock: SQLite's own must do."""
    if fcntl is None:  # pragma: no cover
        return None
    # Write access to the database is what permits taking the lock: a holder can block every other process.
    mode = 0o660 if database.stat().st_mode & 0o020 else 0o600
    try:
        return os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    except OSError:
        return None


_open_locks: WeakSet[WriteLock] = WeakSet()


def _close_in_child() -> None:
    # Closing is enough. Unlocking would also release the parent's lock.
    for lock in list(_open_locks):
        lock.close_file()
    _open_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
