"""A fork waits until no thread of this process is inside a transaction on SQLite.

SQLite keeps a table of the locks that its process holds. A fork copies the table but not the locks. In a child that was
forked during a write, the write lock would count as held by a connection that no thread works on, and every BEGIN
IMMEDIATE of the child would wait for it in vain.

So each connection has a lock that is held during its transactions, and a fork takes all of them first. It waits for at
most `LIMIT_SECONDS`: a program that can't fork is worse off than a child that can't write.
"""

from __future__ import annotations

import os
import threading
import time
from weakref import WeakSet

LIMIT_SECONDS = 5.0

_forking = threading.Lock()
"""Held during a fork, and to register a lock."""
_locks: WeakSet[threading.Lock] = WeakSet()
_taken: list[threading.Lock] = []


def transaction_lock() -> threading.Lock:
    """For one connection, to be held during its transactions."""
    lock = threading.Lock()
    with _forking:
        _locks.add(lock)
    return lock


def _before_fork() -> None:
    _forking.acquire()
    until = time.monotonic() + LIMIT_SECONDS
    _taken.extend(lock for lock in _locks if lock.acquire(timeout=max(until - time.monotonic(), 0)))


def _after_fork() -> None:
    """In the child, locks that the fork waited for in vain belong to connections that it must not use anyway."""
    for lock in _taken:
        lock.release()
    _taken.clear()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
