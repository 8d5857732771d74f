"""The embedded store: one SQLite file, nothing to install, any number of processes."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic_core import from_json

from treadle.model.errors import Refused
from treadle.store import batches, wakeups
from treadle.store.lanes import lane_of
from treadle.store.sql import scripts
from treadle.store.sql.changes import Reading
from treadle.store.sql.join import insert_with
from treadle.store.sql.migrate import Migration, missing
from treadle.store.sql.queries import Query
from treadle.store.sql.retried import as_first_answered, check_ids, insert_again
from treadle.store.sql.scripts import Script
from treadle.store.sql.store import SqlStore
from treadle.store.sqlite import hot, step_statements
from treadle.store.sqlite.health import examine
from treadle.store.sqlite.hot import document
from treadle.store.sqlite.searches import Searches
from treadle.store.sqlite.writer import BUSY, Writer
from treadle.store.values import (
    Checkpoint,
    Claim,
    Inserted,
    NewJob,
    RecordWrite,
    Settlement,
    UserDatabase,
    Wants,
    alike,
)
from treadle.store.views import Finding
from treadle.telemetry.outages import OutageLog
from treadle.telemetry.slow_statements import SlowStatements

T = TypeVar("T")

# Hints that come from the file, not from this process, are delivered at most this often, except "ready".
HINT_PAUSE = 0.02


class SqliteStore(SqlStore):
    dialect = "sqlite"
    slow_advice = "the disk is busy, or a long read keeps the WAL from being emptied: run treadle doctor"

    def __init__(self, path: Path, *, synchronous: str = "FULL", stale_after_ms: int) -> None:
        super().__init__(stale_after_ms)
        self.path = path
        self.engine = Writer(path, synchronous)
        self.searches = Searches(self.engine.connect)
        self.hub = wakeups.Wakeups.of(f"sqlite:{path.resolve()}")
        self.outage = OutageLog.of(f"sqlite:{path.resolve()}")
        self._last_hints = 0.0
        self._lanes: hot.Lanes = {}
        self._sizes = hot.Sizes()

    # -- being there ---------------------------------------------------------------------------

    async def open(self, migrate: bool = True) -> None:
        self.engine.open()
        try:
            await self.bring_up_to_date(migrate)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await asyncio.to_thread(self.searches.close)
        await self.engine.close()

    def _changed(self, *, new: bool) -> bool:
        """Another connection has committed; the change may be anything. False: only "ready" was published, and this is
        to be called again, with `new=False`, for the rest."""
        now = time.monotonic()
        if now - self._last_hints >= HINT_PAUSE:
            self._last_hints = now
            self.hub.publish(wakeups.ALL)
            return True
        if new:
            self.hub.publish((wakeups.READY,))
        return False

    async def apply_migrations(self) -> list[str]:
        applied: list[str] = await self.engine.write(_migrate)
        return applied

    async def missing_migrations(self) -> list[str]:
        """Only reads: the queue may be opened inside a transaction that has the write lock."""
        there = await self.engine.read("SELECT 1 FROM sqlite_master WHERE name = 'treadle_migrations'", ())
        rows = await self.engine.read("SELECT number FROM treadle_migrations", ()) if there else []
        return [one.name for one in missing("sqlite", {row[0] for row in rows})]

    def user_database(self) -> UserDatabase:
        return UserDatabase(
            f"sqlite:///{quote(str(self.path.absolute()))}?synchronous={self.engine.synchronous.lower()}"
        )

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

    def _tell(self, hints: Sequence[str]) -> None:
        if hints:
            self.hub.publish(hints)

    def run(self, connection: sqlite3.Connection, script: Script[T]) -> T:
        return run_script(connection, self.queries, script, self.slow)

    async def read(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self.engine.read(sql, values)

    async def read_small(self, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self.engine.read_small(sql, values)

    async def read_snapshot(self, make: Callable[[], Reading[T]]) -> T:
        answer: T = await self.engine.read_snapshot(lambda connection: read_on(connection, make()))
        return answer

    async def search(self, make: Callable[[], Reading[T]], *, together: bool = False) -> T:
        return await self.engine.search(self.searches, lambda connection: _of_one_moment(connection, make()))

    # -- the hot paths -------------------------------------------------------------------------

    async def insert(
        self,
        jobs: Sequence[NewJob],
        *,
        atomic: bool = True,
        patient: bool = True,
        connection: Any = None,
        records: Sequence[RecordWrite] = (),
    ) -> list[Inserted | Refused]:
        # `patient` makes no difference: there is one writer, so no key is ever locked.
        if records:
            return await self.transact(lambda: scripts.insert_with_records(jobs, atomic, records), wakeups.of_new(jobs))
        if connection is not None:
            return await insert_with(connection, self.dialect, self.queries, jobs, atomic)
        if not jobs:
            return []
        runs = alike(jobs)
        writing = self.engine.write(functools.partial(self._insert, runs, atomic))
        # Their claim is next in the writer's queue, usually in time for the same commit.
        self.hub.tell_claimants(self)
        answers: list[Inserted | Refused]
        try:
            answers, lanes = await writing
        except sqlite3.IntegrityError:  # an id exists: an earlier try succeeded, and its answer was lost
            check_ids(jobs)
            found = await self.stored(jobs)
            if not found:
                raise
            return await insert_again(jobs, atomic, found, lambda others: self.insert(others, atomic=atomic))
        # Remembered only after the transaction that registered them has committed.
        self._lanes |= lanes
        kinds = [run[0] for run in runs]
        self.hub.publish(wakeups.of_new(kinds), told=self)
        return answers if all(job.plain for job in kinds) else await as_first_answered(jobs, answers, self.stored)

    def insert_here(self, jobs: Sequence[NewJob]) -> list[Inserted | Refused] | None:
        if not jobs:
            return []
        try:
            written = self.engine.write_here(functools.partial(self._insert, alike(jobs), False))
        except sqlite3.IntegrityError:
            return None  # `insert` looks for an earlier try
        if written is BUSY:
            return None
        answers: list[Inserted | Refused]
        answers, lanes = written
        self._lanes |= lanes
        self.hub.publish(wakeups.of_new(jobs))
        return answers

    def _insert(
        self, runs: Sequence[list[NewJob]], atomic: bool, db: sqlite3.Connection
    ) -> tuple[list[Inserted | Refused], hot.Lanes]:
        """The answers, and the lanes that had to be looked up."""
        kinds = [run[0] for run in runs]
        if not all(job.plain for job in kinds):
            return self.run(db, scripts.insert([job for run in runs for job in run], atomic)), {}
        lanes, new = self._lanes, {}
        if any(lane_of(job) not in lanes for job in kinds):
            lanes = new = self.run(db, scripts.register_lanes(kinds))
        at = hot.insert(db, self.queries, runs, lanes)
        return [Inserted(at)] * sum(map(len, runs)), new

    async def claim(self, lease: int, wants: Wants) -> Claim:
        def look(db: sqlite3.Connection) -> Claim | None:
            return Claim([]) if hot.nothing_to_claim(db, self.queries, lease, wants) else None

        def work(db: sqlite3.Connection) -> Claim:
            quick = hot.claim(db, self.queries, lease, wants, self._sizes)
            return quick or self.run(db, scripts.claim(lease, wants))

        claim: Claim = await self.engine.write(work, look)
        return claim

    async def tidy(self) -> None:
        await super().tidy()
        if await self.engine.read("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'", ()):
            await self.engine.write(_forget_statistics)

    async def settle_completed(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        work = functools.partial(hot.settle, queries=self.queries, lease=lease, settlements=settlements)
        lost: list[Settlement] = await self.engine.write(work)
        self.hub.publish((wakeups.ENDED,))
        return lost

    async def checkpoint(self, lease: int, checkpoints: Sequence[Checkpoint]) -> list[tuple[int, int]]:
        merged = batches.once_per_job(checkpoints)
        if not all(map(batches.has_small_steps, merged)):
            return await super().checkpoint(lease, checkpoints)

        def work(db: sqlite3.Connection) -> list[tuple[int, int]]:
            if step_statements.checkpoint(db, self.queries, lease, merged):
                return []
            return self.run(db, scripts.checkpoint(lease, merged))

        lost: list[tuple[int, int]] = await self.engine.write(work)
        return batches.not_written(checkpoints, {(one.n, one.token) for one in merged} - set(lost))


def run_script(connection: Any, queries: dict[str, Query], script: Script[T], slow: SlowStatements | None = None) -> T:
    """Run a script on a sqlite3 connection, inside its open transaction."""
    try:
        name, rows = next(script)
        while True:
            query, began = queries[name], time.perf_counter()
            cursor = connection.execute(query.sql, (document(rows),) if "?1" in query.sql else ())
            answer = cursor.fetchall() if cursor.description else []
            if query.packed:
                answer = from_json(answer[0][0])
            if slow is not None:
                slow.observe(name, time.perf_counter() - began)
            name, rows = script.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _of_one_moment(connection: sqlite3.Connection, reading: Reading[T]) -> T:
    connection.execute("BEGIN")
    try:
        return read_on(connection, reading)
    finally:
        connection.execute("ROLLBACK")


def read_on(connection: sqlite3.Connection, reading: Reading[T]) -> T:
    """Run a reading on a connection, inside its open transaction."""
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
    """Inside one BEGIN IMMEDIATE, so a second process waits here and then finds nothing to do."""
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


def _forget_statistics(connection: sqlite3.Connection) -> None:
    """Drop ANALYZE statistics about these tables: they may date from when the tables were empty.

    The statements are written for one plan, the one that SQLite chooses without statistics. A schema change makes every
    open connection, in any process, forget the old statistics too.
    """
    forgotten = connection.execute("DELETE FROM sqlite_stat1 WHERE tbl LIKE 'treadle!_%' ESCAPE '!'").rowcount
    if forgotten:
        connection.execute("CREATE TABLE treadle_forgotten (n INTEGER)")
        connection.execute("DROP TABLE treadle_forgotten")
        connection.execute("PRAGMA writable_schema = RESET")  # the same for this connection itself


def _statements(sql: str) -> list[str]:
    """Single statements; `executescript` would commit the surrounding transaction."""
    found, current = [], ""
    for line in sql.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
