"""Dying at a named point: in the child, SQLite's and asyncpg's own connections pull the trigger.

A point is known by the SQL that its transaction contains, a moment by the COMMIT that ends it: right
before, while it is under way, right after. PostgreSQL's single statements are their own COMMIT.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

POINTS = {
    "enqueue": re.compile(r"INSERT INTO treadle[._]jobs"),
    "claim": re.compile(r"INSERT INTO treadle[._]running"),
    "settle": re.compile(r"INSERT INTO treadle[._](outcomes|later)"),
    "step": re.compile(r"INSERT INTO treadle[._]steps AS x"),
    "park": re.compile(r"INSERT INTO treadle[._]parked"),
    "answer": re.compile(r"INSERT INTO treadle[._]answers|DELETE FROM treadle[._]parked"),
    "wake": re.compile(r"DELETE FROM treadle[._]parked .*until <=", re.DOTALL),
    "make child": re.compile(r"max\(j\.parent_generation\)"),
    "end child": re.compile(r"SELECT CAST\(j\.id AS text\), j\.n FROM"),
    "cancel child": re.compile(r"INSERT INTO treadle[._]replaced"),
    "requeue": re.compile(r"DELETE FROM treadle[._]outcomes"),
    "heartbeat": re.compile(r"UPDATE treadle[._]leases (l )?SET until = (?!0)"),
    "fire": re.compile(r"UPDATE treadle[._]records (r )?SET key = "),
    "offer": re.compile(r"INSERT INTO treadle[._]deliveries"),
    "take": re.compile(r"UPDATE treadle[._]outbox SET holder = \("),
    "sent": re.compile(r"UPDATE treadle[._]deliveries SET status = t"),
    "prune": re.compile(r"DELETE FROM treadle[._]jobs"),
    "migrate": re.compile(r"CREATE TABLE treadle[._]jobs"),
}
# Steps that are only under way don't count: whether that is written depends on how long they take.
TRIED = re.compile(r"""['"](completed|pending|failed)['"]""")
MOMENTS = ("before", "during", "after")


class Crash(NamedTuple):
    """When to die: at the n-th commit of this kind, and how long after its start if `during`."""

    point: str
    moment: str
    nth: int = 1
    delay_us: int = 0

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Crash:
        point, moment, nth, delay_us = text.split(":")
        return cls(point, moment, int(nth), int(delay_us))


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


class Trap:
    def __init__(self, crash: Crash) -> None:
        self.crash = crash
        self.pattern = POINTS[crash.point]
        self._commits = itertools.count(1)

    def found(self, sql: str, *values: Any) -> bool:
        if not self.pattern.search(sql):
            return False
        return self.crash.point != "step" or bool(TRIED.search(repr(values)))

    def due(self) -> bool:
        return next(self._commits) == self.crash.nth

    def start(self) -> None:
        if self.crash.moment == "before":
            die()
        if self.crash.moment == "during":
            threading.Thread(target=self._soon, daemon=True).start()

    def over(self) -> None:
        """After the commit; `during` may have missed it, and late is as good a moment as any."""
        die()

    def _soon(self) -> None:
        time.sleep(self.crash.delay_us / 1e6)  # the moment of the crash
        die()


def set_trap(crash: Crash) -> None:
    trap = Trap(crash)
    _trap_sqlite(trap)
    _trap_postgres(trap)


def _trap_sqlite(trap: Trap) -> None:
    class Connection(sqlite3.Connection):
        marked = False

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "BEGIN IMMEDIATE":
                self.marked = False
            elif trap.found(sql, *values):
                self.marked = True
            elif sql == "COMMIT" and self.marked and trap.due():
                trap.start()
                super().execute(sql)
                trap.over()
            return super().execute(sql, *values)

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            self.marked = self.marked or trap.found(sql)
            return super().executemany(sql, *values)

    sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)  # type: ignore[assignment]


def _trap_postgres(trap: Trap) -> None:
    from asyncpg.connection import Connection

    marked: weakref.WeakSet[Any] = weakref.WeakSet()

    def trapped(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def call(self: Any, sql: str, *values: Any, **options: Any) -> Any:
            mine = trap.found(sql, *values)
            if mine and self.is_in_transaction():
                marked.add(self)
            commits = sql.startswith("COMMIT") and self in marked
            if commits:
                marked.discard(self)
            alone = mine and not self.is_in_transaction()
            if not ((commits or alone) and trap.due()):
                return await method(self, sql, *values, **options)
            trap.start()
            await method(self, sql, *values, **options)
            trap.over()

        return call

    for name in ("fetch", "fetchval", "fetchrow", "execute"):
        setattr(Connection, name, trapped(getattr(Connection, name)))
