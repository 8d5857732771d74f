"""The embedded store: one SQLite file, nothing to install, any number of processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json

from treadle.errors import Refused, SchemaMismatch
from treadle.store import hints, scripts, sqlite_hot
from treadle.store.base import Claim, Finding, Inserted, NewJob, Settlement
from treadle.store.changes import Reading
from treadle.store.foreign import insert_with
from treadle.store.migration import Migration, missing
from treadle.store.queries import Query
from treadle.store.relational import RelationalStore
from treadle.store.scripts import Script
from treadle.store.sqlite_engine import Engine
from treadle.store.sqlite_health import examine
from treadle.store.sqlite_hot import document

T = TypeVar("T")

# Hints that come from the file (not from this process) are given at most this often, but for "ready".
HINT_PAUSE = 0.02


class SqliteStore(RelationalStore):
    dialect = "sqlite"

    def __init__(self, path: Path, *, synchronous: str = "FULL", stale_after_ms: int) -> None:
        super().__init__(stale_after_ms)
        self.path = path
        self.engine = Engine(path, synchronous)
        self.hub = hints.Hub.of(f"sqlite:{path.resolve()}")
        self._last_hints = 0.0
        self._lanes: sqlite_hot.Lanes = {}

    # -- being there ---------------------------------------------------------------------------

    async def open(self, migrate: bool = True) -> None:
        self.engine.open()
        try:
            if migrate:
                await self.migrate()
            elif waiting := await self.pending_migrations():
                raise SchemaMismatch(f"{self.path} lacks {', '.join(waiting)}; run treadle migrate", missing=waiting)
        except BaseException:
            await self.engine.close()
            raise

    async def close(self) -> None:
        await self.engine.close()

    def _changed(self) -> None:
        """Another connection has committed: it may be anything."""
        now = time.monotonic()
        if now - self._last_hints >= HINT_PAUSE:
            self._last_hints = now
            self.hub.publish(hints.ALL)
        else:
            self.hub.publish((hints.READY,))

    async def migrate(self) -> list[str]:
        if not await self.pending_migrations():
            return []
        applied: list[str] = await self.engine.write(_migrate)
        return applied

    async def pending_migrations(self) -> list[str]:
        """By reading only: the queue may be opened inside a transaction that has the write lock."""
        there = await self.engine.read("SELECT 1 FROM sqlite_master WHERE name = 'treadle_migrations'", ())
        rows = await self.engine.read("SELECT number FROM treadle_migrations", ()) if there else []
        return [one.name for one in missing("sqlite", {row[0] for row in rows})]

    async def examine(self) -> list[Finding]:
        return await examine(self)

    def subscribe(self, wake: Callable[[str], None], *, claims: bool = False) -> Callable[[], None]:
        self.engine.watch(self._changed)
        return super().subscribe(wake, claims=claims)

    # -- how scripts and queries run -----------------------------------------------------------

    async def transact(self, make: Callable[[], Script[T]], tell: Sequence[str] = ()) -> T:
        answer: T = await self.engine.write(lambda connection: self.run(connection, make()))
        if tell:
            self.hub.publish(tell)
        return answer

    def run(self, connection: sqlite3.Connection, script: Script[T]) -> T:
        return run_script(connection, self.queries, script)

    async def query(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self.engine.read(sql, values)

    async def glance(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self.engine.glance(sql, values)

    async def read_together(self, make: Callable[[], Reading[T]]) -> T:
        answer: T = await self.engine.read_together(lambda connection: read_on(connection, make()))
        return answer

    # -- the hot paths -------------------------------------------------------------------------

    async def insert(
        self, jobs: Sequence[NewJob], *, atomic: bool = True, connection: Any = None
    ) -> list[Inserted | Refused]:
        if connection is not None:
            return await insert_with(connection, self.dialect, self.queries, jobs, atomic)
        if not jobs:
            return []
        writing = self.engine.write(lambda db: self._insert(db, jobs, atomic))
        # Their claim is the next thing in the writer's queue, as a rule in time for the same commit.
        self.hub.tell_claimants(self)
        answers: list[Inserted | Refused]
        answers, lanes = await writing
        # Remembered only now that the transaction that registered them has committed.
        self._lanes |= lanes
        self.hub.publish(hints.of_new(jobs), told=self)
        return answers

    def _insert(
        self, db: sqlite3.Connection, jobs: Sequence[NewJob], atomic: bool
    ) -> tuple[list[Inserted | Refused], sqlite_hot.Lanes]:
        """The answers, and the lanes that had to be looked up."""
        if not all(job.plain for job in jobs):
            return self.run(db, scripts.insert(jobs, atomic)), {}
        at, lanes = self._insert_plain(db, jobs)
        return [Inserted(at)] * len(jobs), lanes

    def _insert_plain(self, db: sqlite3.Connection, jobs: Sequence[NewJob]) -> tuple[int, sqlite_hot.Lanes]:
        lanes, new = self._lanes, {}
        if any((job.topic, job.capability, job.priority) not in lanes for job in jobs):
            lanes = new = self.run(db, scripts.register_lanes(jobs))
        if len(jobs) > 1:
            return sqlite_hot.insert(db, self.queries, jobs, lanes), new
        [job] = jobs
        return sqlite_hot.insert_one(db, self.queries, job, lanes[job.topic, job.capability, job.priority]), new

    async def claim(
        self, lease: int, topics: Sequence[str], capabilities: Sequence[str], limit: int, free: int
    ) -> Claim:
        def look(db: sqlite3.Connection) -> Claim | None:
            nothing = sqlite_hot.nothing_to_claim(db, self.queries, lease, topics, capabilities)
            return Claim([]) if nothing else None

        def work(db: sqlite3.Connection) -> Claim:
            quick = sqlite_hot.claim(db, self.queries, lease, topics, capabilities, limit, free)
            return quick or self.run(db, scripts.claim(lease, topics, capabilities, limit, free))

        claim: Claim = await self.engine.write(work, look)
        return claim

    async def settle_completed(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        lost: list[Settlement] = await self.engine.write(
            lambda db: sqlite_hot.settle(db, self.queries, lease, settlements)
        )
        self.hub.publish((hints.ENDED,))
        return lost


def run_script(connection: Any, queries: dict[str, Query], script: Script[T]) -> T:
    """Drive a script on a sqlite3 connection, inside whatever transaction is open there."""
    try:
        name, rows = next(script)
        while True:
            query = queries[name]
            cursor = connection.execute(query.sql, (document(rows),) if "?1" in query.sql else ())
            answer = cursor.fetchall() if cursor.description else []
            if query.packed:
                answer = from_json(answer[0][0])
            name, rows = script.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def read_on(connection: sqlite3.Connection, reading: Reading[T]) -> T:
    """Drive a reading on a connection, inside whatever transaction is open there."""
    try:
        sql, values = next(reading)
        while True:
            sql, values = reading.send(connection.execute(sql, values).fetchall())
    except StopIteration as stop:
        result: T = stop.value
        return result


def _missing(connection: sqlite3.Connection) -> list[Migration]:
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'treadle_migrations'").fetchone()
    rows = connection.execute("SELECT number FROM treadle_migrations").fetchall() if there else []
    return missing("sqlite", {row[0] for row in rows})


def _migrate(connection: sqlite3.Connection) -> list[str]:
    """Inside one BEGIN IMMEDIATE: the second of two processes waits here and then finds nothing to do."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS treadle_migrations "
        "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL)"
    )
    applied = []
    for one in _missing(connection):
        for statement in _statements(one.sql):
            connection.execute(statement)
        connection.execute("INSERT INTO treadle_migrations VALUES (?, ?, datetime('now'))", (one.number, one.name))
        applied.append(one.name)
    return applied


def _statements(sql: str) -> list[str]:
    """Single statements; `executescript` would commit the transaction that holds them together."""
    found, current = [], ""
    for line in sql.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
