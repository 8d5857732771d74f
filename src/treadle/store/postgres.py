"""The production store: PostgreSQL 14 or newer through asyncpg, alone or behind PgBouncer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg
from pydantic_core import to_json

from treadle.errors import LeaseLost, Refused, SchemaMismatch, StoreUnavailable
from treadle.store import hints, scripts
from treadle.store.base import Claim, Claimed, Finding, Inserted, NewJob, Record, Settlement
from treadle.store.changes import Reading
from treadle.store.foreign import insert_with
from treadle.store.migration import missing
from treadle.store.postgres_health import examine
from treadle.store.postgres_link import Link
from treadle.store.relational import RelationalStore
from treadle.store.scripts import Script
from treadle.store.scripts.lanes import lane_of

T = TypeVar("T")

# A constant that only Treadle uses: whoever holds this advisory lock is migrating.
MIGRATION_LOCK = 0x74726561646C65
# Building an index on a large table, or waiting for the process that does.
MIGRATION_SECONDS = 86_400.0
# A script is run again from its start after a deadlock or a serialization failure.
TRIES = 10
# For how long claims of a busy lane may start at their mark instead of at its very head.
MARK_SECONDS = 1.0
# A look from the head may take long, past all that was claimed since an old snapshot: it waits so many times as long.
LOOK_SHARE = 20
RATED_SECONDS = 5.0


class PostgresStore(RelationalStore):
    dialect = "postgres"

    def __init__(self, url: str, *, stale_after_ms: int) -> None:
        super().__init__(stale_after_ms)
        self.url = url
        self.hub = hints.Hub.of(url)
        self.link = Link(url, self.hub)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lanes: dict[tuple[str, str, int], int] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._look_at = 0.0
        """When a claim is to start at the heads of its lanes again."""
        self._rated: frozenset[str] = frozenset()
        self._rated_at = float("-inf")

    # -- being there ---------------------------------------------------------------------------

    async def open(self, migrate: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        await self.link.open()
        try:
            if migrate:
                await self.migrate()
            elif waiting := await self.pending_migrations():
                raise SchemaMismatch(f"the database lacks {', '.join(waiting)}; run treadle migrate", missing=waiting)
        except BaseException:
            await self.link.close()
            raise

    async def close(self) -> None:
        await self.link.close()

    async def migrate(self) -> list[str]:
        if not await self.pending_migrations():
            return []
        async with self.link.acquire() as connection, connection.transaction():
            # One process migrates, the others wait here and then find nothing to do.
            await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})", timeout=MIGRATION_SECONDS)
            await connection.execute("CREATE SCHEMA IF NOT EXISTS treadle")
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS treadle.migrations "
                "(number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
            )
            applied = []
            for one in missing("postgres", await _applied(connection)):
                await connection.execute(one.sql, timeout=MIGRATION_SECONDS)
                await connection.execute(
                    "INSERT INTO treadle.migrations (number, name) VALUES ($1, $2)", one.number, one.name
                )
                applied.append(one.name)
        return applied

    async def pending_migrations(self) -> list[str]:
        async with self.link.acquire() as connection:
            return [one.name for one in missing("postgres", await _applied(connection))]

    async def examine(self) -> list[Finding]:
        return await examine(self)

    def subscribe(self, wake: Callable[[str], None], *, claims: bool = False) -> Callable[[], None]:
        self.link.listen()
        return super().subscribe(wake, claims=claims)

    # -- how scripts and queries run -----------------------------------------------------------

    async def transact(self, make: Callable[[], Script[T]], tell: Sequence[str] = ()) -> T:
        for left in reversed(range(TRIES)):
            try:
                async with self.link.transaction() as connection:
                    answer = await self._run(connection, make())
                break
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
                if not left:
                    raise StoreUnavailable(f"PostgreSQL gave up on a transaction: {error}") from None
        if hints.READY in tell:
            self._marks.clear()  # something may have been put back in front of them
        if tell:
            self.link.tell(tell)
        return answer

    async def _run(self, connection: Any, script: Script[T]) -> T:
        try:
            name, rows = next(script)
            while True:
                sql = self.queries[name].sql
                values = [to_json(rows).decode()] if "$1" in sql else []
                name, rows = script.send(await connection.fetch(sql, *values))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def query(self, sql: str, values: Sequence[Any]) -> list[Any]:
        async with self.link.reader() as connection:
            rows: list[Any] = await connection.fetch(sql, *values)
            return rows

    async def look_up(self, sql: str, values: Sequence[Any]) -> list[Any]:
        # Planned once: planning the ten tables of a job anew takes six times as long as reading it.
        return await self.link.fetch(sql, *values)

    async def put_record(self, kind: str, id: str, key: str, body: str, version: int | None = None) -> Record | None:
        try:
            return await super().put_record(kind, id, key, body, version)
        except asyncpg.UniqueViolationError:
            return None  # somebody took the key in the same moment

    async def read_together(self, make: Callable[[], Reading[T]]) -> T:
        async with (
            self.link.reader() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            return await read_on(connection, make())

    # -- the hot paths -------------------------------------------------------------------------

    async def insert(
        self, jobs: Sequence[NewJob], *, atomic: bool = True, connection: Any = None
    ) -> list[Inserted | Refused]:
        if connection is not None:
            known = all(lane_of(job) in self._lanes for job in jobs)
            outside = None if known else lambda: self._register_lanes(jobs)
            return await insert_with(connection, self.dialect, self.queries, jobs, atomic, outside)
        if not jobs:
            return []
        answers = await self._sure_insert(jobs, atomic)
        if any(job.run_at is not None for job in jobs):
            self._marks.clear()  # a time in the past belongs in front of them
        self.link.tell(hints.of_new(jobs))
        return answers

    def _register_lanes(self, jobs: Sequence[NewJob]) -> Any:
        """In a transaction of our own; for the blocking face, which calls from its own thread, on our own loop."""

        async def register() -> None:
            self._lanes |= await self.transact(lambda: scripts.register_lanes(jobs))

        if _running_loop() is self._loop:
            return register()
        assert self._loop, "open() came first"
        return asyncio.run_coroutine_threadsafe(register(), self._loop).result()

    async def _sure_insert(self, jobs: Sequence[NewJob], atomic: bool) -> list[Inserted | Refused]:
        """If the connection breaks at COMMIT, look which jobs are there before asking once more for the others."""
        try:
            return await self._insert(jobs, atomic)
        except StoreUnavailable:
            return await self._insert_missing(jobs, atomic)

    async def _insert_missing(self, jobs: Sequence[NewJob], atomic: bool) -> list[Inserted | Refused]:
        """What is not there was never tried, refused, or stood for by an older job: each is told once more."""
        there = await self._when_created(jobs)
        missing = [job for job in jobs if job.id not in there]
        try:
            told = iter(await self._insert(missing, atomic) if missing else ())
        except asyncpg.UniqueViolationError:
            # The server was still at the first try when we looked, and has made them since.
            return await self._insert_missing(jobs, atomic)
        return [Inserted(there[job.id]) if job.id in there else _own(job, next(told)) for job in jobs]

    async def _when_created(self, jobs: Sequence[NewJob]) -> dict[str, int]:
        async with self.link.acquire() as connection:
            rows = await connection.fetch(
                "SELECT id::text, created_at FROM treadle.jobs WHERE id = ANY($1::uuid[])", [job.id for job in jobs]
            )
            return dict(rows)

    async def _insert(self, jobs: Sequence[NewJob], atomic: bool) -> list[Inserted | Refused]:
        if not (jobs[0].plain and _alike(jobs)):
            return await self.transact(lambda: scripts.insert(jobs, atomic))
        at = await self._insert_alike(jobs)
        while at is None:
            # The lane is not there: a first enqueue, or a memory of a transaction that rolled back.
            self._lanes |= await self.transact(lambda: scripts.register_lanes(jobs[:1]))
            at = await self._insert_alike(jobs)
        return [Inserted(at)] * len(jobs)

    async def _insert_alike(self, jobs: Sequence[NewJob]) -> int | None:
        job = jobs[0]
        traces = [one.trace for one in jobs]
        rows = await self.link.fetch(
            self.queries["insert_alike"].sql,
            [one.id for one in jobs],
            [one.payload for one in jobs],
            self._lanes.get((job.topic, job.capability, job.priority), -1),
            job.topic,
            job.delay_ms,
            job.run_at,
            job.max_attempts,
            job.template_version,
            job.scope,
            job.scope_id,
            job.created_by,
            job.capability,
            job.priority,
            traces if any(traces) else None,
        )
        return rows[0][0] if rows else None

    async def claim(
        self, lease: int, topics: Sequence[str], capabilities: Sequence[str], limit: int, free: int
    ) -> Claim:
        if await self._any_rated(topics):
            return await self.transact(lambda: scripts.claim(lease, topics, capabilities, limit, free))
        asked = time.monotonic()
        if asked > self._look_at:
            self._marks.clear()
        marked = bool(self._marks)
        rows = await self.link.fetch(
            self.queries["claim"].sql, lease, topics, capabilities, limit, free, *self._mark_arrays()
        )
        if not marked:
            answered = time.monotonic()
            self._look_at = answered + max(MARK_SECONDS, LOOK_SHARE * (answered - asked))
        if not rows:
            raise LeaseLost("the lease has run out")
        jobs = [_claimed(row, lease) for row in rows if row[0] is not None and not row[13]]
        overdue = any(row[13] for row in rows)
        self._remember(rows, 0 < limit <= len(jobs))
        if marked and len(jobs) < limit:
            # What lies before the marks has not been looked at yet.
            more = await self.claim(lease, topics, capabilities, limit - len(jobs), max(free - len(jobs), 0))
            return Claim(jobs + more.jobs, None, overdue or more.overdue, rows[0][16])
        return Claim(jobs, None, overdue, rows[0][16])

    def _mark_arrays(self) -> tuple[list[int], list[int], list[int]]:
        marks = self._marks
        return list(marks), [at for at, _ in marks.values()], [n for _, n in marks.values()]

    def _remember(self, rows: Sequence[Any], full: bool) -> None:
        """Where the next claim may start in each lane; only while claims come back full."""
        if not full:
            self._marks.clear()
            return
        for row in rows:
            self._marks[row[11]] = max(self._marks.get(row[11], (-1, -1)), (row[12], row[0]))

    async def save_templates(self, definitions: Mapping[str, tuple[str, int | None]]) -> dict[str, int]:
        versions = await super().save_templates(definitions)
        self._rated_at = float("-inf")
        return versions

    async def _any_rated(self, topics: Sequence[str]) -> bool:
        if time.monotonic() - self._rated_at > RATED_SECONDS:
            rows = await self.query("SELECT topic FROM treadle.topics WHERE rate_limit IS NOT NULL", [])
            self._rated = frozenset(row[0] for row in rows)
            self._rated_at = time.monotonic()
        return not self._rated.isdisjoint(topics)

    async def settle_completed(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        [[done]] = await self.link.fetch(
            self.queries["settle_completed"].sql,
            lease,
            [one.job.n for one in settlements],
            [one.job.token for one in settlements],
            [one.ran_ms for one in settlements],
            [one.job.topic for one in settlements],
            [one.transition.result for one in settlements],
        )
        self.hub.publish((hints.ENDED,))
        if len(done) == len(settlements):
            return []
        known = set(done)
        rest = [one for one in settlements if one.job.n not in known]
        return await self.transact(lambda: scripts.settle(rest))


async def read_on(connection: Any, reading: Reading[T]) -> T:
    """Drive a reading on a connection, inside whatever transaction is open there."""
    try:
        sql, values = next(reading)
        while True:
            sql, values = reading.send(await connection.fetch(sql, *values))
    except StopIteration as stop:
        result: T = stop.value
        return result


def _own(job: NewJob, answer: Inserted | Refused) -> Inserted | Refused:
    """A key that this very job holds already was taken by the first try, which came through after all."""
    return Inserted(answer.at) if isinstance(answer, Inserted) and answer.existing_id == job.id else answer


def _claimed(row: Any, lease: int) -> Claimed:
    n, id_, topic, payload, attempt, most, flags, by, scope, scope_id, token, _, _, _, due, trace, _ = row
    return Claimed(n, str(id_), topic, payload, attempt, most, flags, by, scope, scope_id, token, lease, due, trace)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _alike(jobs: Sequence[NewJob]) -> bool:
    first = jobs[0].shape
    return all(job.shape == first for job in jobs)


async def _applied(connection: Any) -> set[int]:
    if await connection.fetchval("SELECT to_regclass('treadle.migrations')") is None:
        return set()
    return {row[0] for row in await connection.fetch("SELECT number FROM treadle.migrations")}
