"""The two databases side by side: one event loop for their stores, and a way past the stores to move the time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import psycopg

from tests.contract.relational import PROBLEMS
from treadle.store.postgres.store import PostgresStore
from treadle.store.protocol import Store
from treadle.store.sql.queries import TABLES, load
from treadle.store.sqlite.store import SqliteStore

T = TypeVar("T")

# Every column that holds an instant. Time passes by moving all of them into the past.
TIMES = {
    "jobs": "run_at created_at expires_at",
    "ready": "run_at",
    "later": "run_at",
    "held": "run_at",
    "parked": "until",
    "steps": "started_at ended_at until",
    "answers": "created_at",
    "leases": "until renewed_at",
    "running": "claimed_at started_at cancel_at",
    "outcomes": "ended_at claimed_at started_at cancel_at",
    "deadlines": "expires_at",
    "starts": "at",
    "events": "created_at",
    "leaders": "until",
    "topics": "paused_until",
    "records": "created_at updated_at",
}
# Lanes are kept: stores remember them, because nothing ever deletes one.
EMPTIED = [table for table in TABLES if table not in ("lanes", "token", "migrations")]
EVENTS = (
    "SELECT CAST(j.id AS text), e.type, e.from_status, e.to_status FROM {events} e JOIN {jobs} j ON j.n = e.n "
    "ORDER BY e.id"
)


class Side:
    """One database: its store, and a connection of our own."""

    dialect: str
    store: Store

    def __init__(self) -> None:
        self.names = {
            table: f"treadle.{table}" if self.dialect == "postgres" else f"treadle_{table}" for table in TABLES
        }
        queries = load(self.dialect)
        checks = [("misplaced", queries["misplaced"].sql), *PROBLEMS]
        self._problems = [(what, self.fill(sql)) for what, sql in checks]
        self._drift = queries["limit_drift"].sql
        self._events = self.fill(EVENTS)

    def fill(self, sql: str) -> str:
        return sql.format(**self.names) if "{" in sql else sql

    def run(self, statements: list[str]) -> list[list[Any]]:
        """All of them in one transaction; the rows of each."""
        raise NotImplementedError

    def user_connection(self) -> Any:
        """As a user's program opens it, with a transaction begun."""
        raise NotImplementedError

    def empty(self) -> None:
        self.run([self.fill("DELETE FROM {%s}" % table) for table in EMPTIED])

    def pass_time(self, ms: int) -> None:
        statements = []
        for table, columns in TIMES.items():
            changes = ", ".join(f"{column} = {column} - {ms}" for column in columns.split())
            statements.append(self.fill(f"UPDATE {{{table}}} SET {changes}"))
        self.run(statements)

    def look(self) -> tuple[list[str], list[Any]]:
        """What is wrong in the database, and every stored event as (job, type, from, to)."""
        answers = self.run([self._events, self._drift, *(sql for _, sql in self._problems)])
        events, drift, *rest = answers
        found = [f"a key that is counted wrong: {row}" for row in drift if row[1] != row[2]]
        for (what, _), rows in zip(self._problems, rest, strict=True):
            found += [f"{what}: {row}" for row in rows]
        return found, events


class SqliteSide(Side):
    dialect = "sqlite"

    def __init__(self, path: Path, stale_after_ms: int) -> None:
        super().__init__()
        self.path = path
        # What a power cut would do is another test's matter.
        self.store = SqliteStore(path, synchronous="NORMAL", stale_after_ms=stale_after_ms)
        self.connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)

    def run(self, statements: list[str]) -> list[list[Any]]:
        self.connection.execute("BEGIN IMMEDIATE")
        answers = [self.connection.execute(statement).fetchall() for statement in statements]
        self.connection.execute("COMMIT")
        return answers

    def user_connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN")
        return connection

    def close(self) -> None:
        self.connection.close()


class PostgresSide(Side):
    dialect = "postgres"

    def __init__(self, url: str, stale_after_ms: int) -> None:
        super().__init__()
        self.url = url
        self.store: PostgresStore = PostgresStore(url, stale_after_ms=stale_after_ms)
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)

    def run(self, statements: list[str]) -> list[list[Any]]:
        # Without parameters many statements travel together, in one transaction.
        cursor = self.connection.execute(";".join(statements).encode())
        answers = []
        for _ in statements:
            answers.append(cursor.fetchall() if cursor.description else [])
            cursor.nextset()
        return answers

    def empty(self) -> None:
        self.run([self.fill("TRUNCATE " + ", ".join("{%s}" % table for table in EMPTIED))])

    def pass_time(self, ms: int) -> None:
        super().pass_time(ms)
        # The store remembers where in the queue its last claim ended; in a moved time that is nowhere.
        self.store._marks.clear()

    def user_connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url)

    def close(self) -> None:
        self.connection.close()


class Pair:
    """Both stores, open on one event loop of their own."""

    def __init__(self, path: Path, url: str, stale_after_ms: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.sqlite = SqliteSide(path, stale_after_ms)
        self.postgres = PostgresSide(url, stale_after_ms)
        self.sides: tuple[Side, Side] = (self.sqlite, self.postgres)
        self.stale_after_ms = stale_after_ms

    def __enter__(self) -> Self:
        for side in self.sides:
            self.loop.run_until_complete(side.store.open())
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides:
            self.loop.run_until_complete(side.store.close())
        self.sqlite.close()
        self.postgres.close()
        self.loop.close()

    def each(self, call: Callable[[Side], Awaitable[T]], only: Side | None = None) -> dict[Side, T]:
        """The same call on both at the same time, or on the only one."""
        sides = self.sides if only is None else (only,)

        async def together() -> list[T]:
            return list(await asyncio.gather(*(call(side) for side in sides)))

        return dict(zip(sides, self.loop.run_until_complete(together()), strict=True))

    def empty(self) -> None:
        for side in self.sides:
            side.empty()

    def pass_time(self, ms: int) -> None:
        for side in self.sides:
            side.pass_time(ms)
