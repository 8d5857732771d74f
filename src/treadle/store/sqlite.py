"""The embedded store: one SQLite file, nothing to install, any number of processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from treadle.errors import Refused, SchemaMismatch
from treadle.store import hints, scripts
from treadle.store.base import Claim, Finding, Inserted, NewJob, Settlement
from treadle.store.foreign import insert_with
from treadle.store.migration import Migration, missing
from treadle.store.queries import Query
from treadle.store.relational import RelationalStore
from treadle.store.scripts import Script
from treadle.store.sqlite_engine import Engine
from treadle.store.sqlite_health import examine

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

    # -- being there ---------------------------------------------------------------------------

    async def open(self, migrate: bool = True) -> None:
        self.engine.open(self._changed)
        try:
            if migrate:
                await self.migrate()
            elif waiting := await self.pending_migrations():
                raise SchemaMismatch(f"{self.path} lacks {', '.join(waiting)}; run treadle migrate")
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
        def look(connection: sqlite3.Connection) -> list[str]:
            return [one.name for one in _missing(connection)]

        names: list[str] = await self.engine.write(look)
        return names

    async def examine(self) -> list[Finding]:
        return await examine(self)

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

    # -- the hot paths -------------------------------------------------------------------------

    async def insert(
        self, jobs: Sequence[NewJob], *, atomic: bool = True, connection: Any = None
    ) -> list[Inserted | Refused]:
        if connection is not None:
            return await insert_with(connection, self.dialect, self.queries, jobs, atomic)
        if not jobs:
            return []
        if all(job.plain for job in jobs):
            answers = await self.engine.write(lambda db: self._insert_plain(db, jobs))
        else:
            answers = await self.engine.write(lambda db: self.run(db, scripts.insert(jobs, atomic)))
        self.hub.publish((hints.READY,) if all(_due(job) for job in jobs) else (hints.READY, hints.LATER))
        result: list[Inserted | Refused] = answers
        return result

    def _insert_plain(self, db: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[Inserted]:
        """No keys, gates or deadlines: the rows, then their places by number."""
        lanes = self.run(db, scripts.register_lanes(jobs))
        now: int = db.execute(self.queries["clock"].sql).fetchone()[0]
        for due in (True, False):
            rows = [
                (
                    job.id,
                    lanes[job.topic, job.capability, job.priority],
                    job.topic,
                    run_at,
                    now,
                    job.max_attempts,
                    job.template_version,
                    job.scope,
                    job.scope_id,
                    job.created_by,
                    job.payload,
                )
                for job in jobs
                if ((run_at := now + job.delay_ms if job.run_at is None else job.run_at) <= now) is due
            ]
            if rows:
                last = db.execute("SELECT coalesce(max(n), 0) FROM treadle_jobs").fetchone()[0]
                db.executemany(self.queries["insert_alike"].sql, rows)
                place = "place_alike_ready" if due else "place_alike_later"
                db.execute(self.queries[place].sql, (last,))
        return [Inserted(now)] * len(jobs)

    async def claim(
        self, lease: int, topics: Sequence[str], capabilities: Sequence[str], limit: int, free: int
    ) -> Claim:
        def work(db: sqlite3.Connection) -> Claim:
            return self.run(db, scripts.claim(lease, topics, capabilities, limit, free))

        claim: Claim = await self.engine.write(work)
        return claim

    async def settle_completed(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        lost: list[Settlement] = await self.engine.write(lambda db: self._settle_completed(db, lease, settlements))
        self.hub.publish((hints.ENDED,))
        return lost

    def _settle_completed(
        self, db: sqlite3.Connection, lease: int, settlements: Sequence[Settlement]
    ) -> list[Settlement]:
        held = db.execute(self.queries["hold_lease"].sql, (_document([{"lease": lease}]),)).fetchone()
        now = held[1] if held else 0
        rows = [
            {
                "n": one.job.n,
                "token": one.job.token,
                "lease": lease,
                "ran": one.ran_ms,
                "topic": one.job.topic,
                "result": one.transition.result,
                "now": now,
            }
            for one in settlements
        ]
        settled = 0
        if held:
            settled = db.execute(self.queries["settle_completed"].sql, (_document(rows),)).rowcount
        lost: list[Settlement] = []
        if settled != len(rows):
            mine = db.execute(self.queries["settled_by"].sql, (_document(rows),)).fetchall()
            done = {row[0] for row in mine}
            lost = [one for one in settlements if one.job.n not in done]
            # What was settled before, by a call whose answer got lost, is no longer running and not counted again.
            running = db.execute(self.queries["find_running"].sql, (_document(rows),)).fetchall()
            fresh = done & {row[0] for row in running}
            settlements = [one for one in settlements if one.job.n in fresh]
            rows = [row for row in rows if row["n"] in fresh]
        if rows:
            db.execute(self.queries["drop_running"].sql, (_document(rows),))
            self._tally_completed(db, lease, settlements, now)
        return lost

    def _tally_completed(self, db: sqlite3.Connection, lease: int, settlements: Sequence[Settlement], now: int) -> None:
        counts: dict[str, list[int]] = {}
        for one in settlements:
            entry = counts.setdefault(one.job.topic, [0, 0])
            entry[0] += 1
            entry[1] += one.ran_ms or 0
        rows = [
            {
                "minute": now // 60_000,
                "writer": lease,
                "topic": topic,
                "status": "completed",
                "count": c,
                "run_ms": ms,
            }
            for topic, (c, ms) in counts.items()
        ]
        db.execute(self.queries["add_tally"].sql, (_document(rows),))


def run_script(connection: Any, queries: dict[str, Query], script: Script[T]) -> T:
    """Drive a script on a sqlite3 connection, inside whatever transaction is open there."""
    try:
        name, rows = next(script)
        while True:
            query = queries[name]
            cursor = connection.execute(query.sql, (_document(rows),) if "?1" in query.sql else ())
            answer = cursor.fetchall() if cursor.description else []
            if query.packed:
                answer = from_json(answer[0][0])
            name, rows = script.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _document(rows: Any) -> str:
    return to_json(rows).decode()


def _due(job: NewJob) -> bool:
    return job.run_at is None and job.delay_ms == 0


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
