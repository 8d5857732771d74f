"""The production store: PostgreSQL 14 or newer through asyncpg, alone or behind PgBouncer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import asyncpg
from pydantic_core import to_json

from treadle.model.errors import LeaseLost, Refused, StoreBusy, StoreUnavailable, VersionConflict
from treadle.model.fields import PLAIN
from treadle.store import batches, wakeups
from treadle.store.lanes import LaneKey, lane_of
from treadle.store.postgres.claim_statement import claim_statement, claim_values, claimed_jobs
from treadle.store.postgres.health import examine
from treadle.store.postgres.lane_marks import LaneMarks
from treadle.store.postgres.notifier import Notifier
from treadle.store.postgres.pools import Pools
from treadle.store.postgres.step_statements import array, checkpoint_values, settlement_values, statement
from treadle.store.postgres.vacuum import Vacuum
from treadle.store.sql import scripts
from treadle.store.sql.changes import Reading
from treadle.store.sql.join import insert_with
from treadle.store.sql.migrate import missing
from treadle.store.sql.retried import as_first_answered, check_ids, insert_again
from treadle.store.sql.scripts import Script
from treadle.store.sql.store import SqlStore
from treadle.store.values import (
    Checkpoint,
    Claim,
    Graces,
    Inserted,
    NewJob,
    Reaped,
    Record,
    RecordWrite,
    Settlement,
    TopicOptions,
    UserDatabase,
    Wants,
    alike,
)
from treadle.store.views import Finding
from treadle.store.waiting_room import WaitingRoom
from treadle.telemetry.outages import OutageLog

T = TypeVar("T")

# A constant that only Treadle uses. The process that holds this advisory lock is migrating.
MIGRATION_LOCK = 0x74726561646C65
# Time to build an index on a large table, or to wait for the process that does.
MIGRATION_SECONDS = 86_400.0
# A script is run again from its start after a deadlock or a serialization failure.
TRIES = 10
CONFLICTS = asyncpg.DeadlockDetectedError, asyncpg.SerializationError
# Characters of results written by one statement; PostgreSQL takes a quarter of a gigabyte.
RESULTS_TOGETHER = 16_000_000
_BY_NUMBER = attrgetter("job.n")
# How long a transaction waits for a locked row before it gives its connection back. Short where others wait for it.
LOCK_MS = 50
SHORT_LOCK_MS = 10
# With so many rows a script has work for tens of milliseconds, and the loop goes on meanwhile.
MANY_ROWS = 1000


class PostgresStore(SqlStore):
    dialect = "postgres"
    slow_advice = (
        "a long transaction or missing statistics slow the queue's tables down: run treadle doctor, and ANALYZE on "
        "the schema treadle"
    )

    def __init__(self, url: str, *, stale_after_ms: int) -> None:
        super().__init__(stale_after_ms)
        self.url = url
        self.hub = wakeups.Wakeups.of(url)
        self.outage = OutageLog.of(url)
        self.pools = Pools(url)
        self.notifier = Notifier(self.pools, self.hub)
        self._vacuum = Vacuum(self.pools)
        self._waiting = WaitingRoom()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._write_checkpoints = statement(self.queries, "write_checkpoints")
        self._settle_completed = statement(self.queries, "settle_completed")
        self._settle_flows = statement(self.queries, "settle_flows")
        self._lanes: dict[LaneKey, int] = {}
        self._registering = asyncio.Lock()
        self._marks = LaneMarks()
        self._stop_hearing: Callable[[], None] = lambda: None

    # -- being there ---------------------------------------------------------------------------

    async def open(self, migrate: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        await self.pools.open()
        self.notifier.open()
        self._stop_hearing = self.hub.subscribe(self._hear)
        try:
            await self.bring_up_to_date(migrate)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._loop is not _running_loop():
            return  # that loop is closed, so nothing opened on it can be awaited
        self._stop_hearing()
        await self.notifier.close()
        await self.pools.close()

    def _hear(self, hint: str) -> None:
        if hint == wakeups.URGENT:
            self._marks.clear()

    async def apply_migrations(self) -> list[str]:
        async with self.pools.acquire() as connection, connection.transaction():
            # One process migrates; the others wait here and then find nothing to do.
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

    async def missing_migrations(self) -> list[str]:
        async with self.pools.acquire() as connection:
            return [one.name for one in missing("postgres", await _applied(connection))]

    def user_database(self) -> UserDatabase:
        return UserDatabase(self.pools.url, self.pools.pooled)

    async def examine(self) -> list[Finding]:
        return await examine(self)

    def subscribe(self, wake: Callable[[str], None], *, claims: bool = False) -> Callable[[], None]:
        self.notifier.listen()
        return super().subscribe(wake, claims=claims)

    # -- how scripts and queries run -----------------------------------------------------------

    async def transact(self, make: Callable[[], Script[T]], tell: Sequence[str] = ()) -> T:
        answer = await _until_it_commits(lambda: self.pools.change(lambda connection: self._run(connection, make())))
        self._tell(tell)
        return answer

    async def _change(self, name: str, rows: Sequence[Mapping[str, Any]], tell: Sequence[str] = ()) -> list[Any]:
        sql, document = self.queries[name].sql, to_json(rows).decode()
        answer: list[Any] = await _until_it_commits(lambda: self.pools.fetch(sql, document))
        if tell:
            self.notifier.tell(tell)
        return answer

    async def transact_or_busy(
        self, make: Callable[[], Script[T]], tell: Sequence[str] = (), lock_ms: int = SHORT_LOCK_MS
    ) -> T:
        def limited() -> Script[T]:
            yield "limit_waits", [{"ms": str(lock_ms)}]
            return (yield from make())

        try:
            return await self.transact(limited, tell)
        except asyncpg.LockNotAvailableError:
            raise StoreBusy(
                "another transaction has a key of this job locked (an enqueue in a user's transaction that is still "
                "open?); try again"
            ) from None

    async def transact_patiently(
        self, keys: Sequence[Hashable], make: Callable[[], Script[T]], tell: Sequence[str] = ()
    ) -> T:
        return await self._waiting.run(_single(keys), lambda: self.transact_or_busy(make, tell, LOCK_MS))

    def _tell(self, hints: Sequence[str]) -> None:
        if wakeups.READY in hints:
            self._marks.clear()  # something may have been put back in front of them
        if hints:
            self.notifier.tell(hints)

    async def _run(self, connection: Any, script: Script[T]) -> T:
        try:
            name, rows = next(script)
            while True:
                sql = self.queries[name].sql
                values = [to_json(rows).decode()] if "$1" in sql else []
                began = time.perf_counter()
                answer = await connection.fetch(sql, *values)
                self.slow.observe(name, time.perf_counter() - began)
                if max(len(rows), len(answer)) < MANY_ROWS:
                    name, rows = script.send(answer)
                    continue
                found = await asyncio.to_thread(_sent, script, answer)
                if isinstance(found, StopIteration):
                    raise found
                name, rows = found
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def read(self, sql: str, values: Sequence[Any]) -> list[Any]:
        rows: list[Any] = await self.pools.read(lambda connection: connection.fetch(sql, *values))
        return rows

    async def read_by_key(self, sql: str, values: Sequence[Any]) -> list[Any]:
        # Planned once: planning a job's ten tables takes six times as long as reading it.
        return await self.pools.fetch(sql, *values)

    async def write_records(
        self, writes: Sequence[RecordWrite], *, atomic: bool = False, topics: Sequence[TopicOptions] = ()
    ) -> Sequence[Record | None]:
        try:
            return await super().write_records(writes, atomic=atomic, topics=topics)
        except asyncpg.UniqueViolationError:  # another writer took a key at the same moment
            if atomic:
                raise VersionConflict("a record was written by another process") from None
            return [None] if len(writes) == 1 else [(await self.write_records([one]))[0] for one in writes]

    async def read_snapshot(self, make: Callable[[], Reading[T]]) -> T:
        async def snapshot(connection: Any) -> T:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await read_on(connection, make())

        return await self.pools.read(snapshot)

    async def search(self, make: Callable[[], Reading[T]], *, together: bool = False) -> T:
        return await self.pools.search(lambda connection: read_on(connection, make()), together)

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
        if records:
            self._marks.clear()  # as below
            return await self._insert_with_records(jobs, atomic, records, patient)
        if connection is not None:
            known = all(lane_of(job) in self._lanes for job in jobs)
            outside = None if known else lambda: self._register_lanes(jobs)
            return await insert_with(connection, self.dialect, self.queries, jobs, atomic, outside)
        if not jobs:
            return []
        if patient:
            keys = jobs[0].keys if len(jobs) == 1 else ()
            answers = await self._waiting.run(keys, lambda: self._sure_insert(jobs, atomic))
        else:
            answers = await self._sure_insert(jobs, atomic)
        tell = wakeups.of_new(jobs)
        if any(job.run_at is not None for job in jobs) or wakeups.URGENT in tell:
            self._marks.clear()  # a time in the past or a higher priority belongs in front of them
        self.notifier.tell(tell)
        return answers

    def _register_lanes(self, jobs: Sequence[NewJob]) -> Any:
        """In a separate transaction, on this store's loop: the sync API calls it from its own thread."""

        async def register() -> None:
            self._lanes |= await self.transact(lambda: scripts.register_lanes(jobs))

        if _running_loop() is self._loop:
            return register()
        assert self._loop, "open() came first"
        return asyncio.run_coroutine_threadsafe(register(), self._loop).result()

    async def _insert_with_records(
        self, jobs: Sequence[NewJob], atomic: bool, records: Sequence[RecordWrite], patient: bool
    ) -> list[Inserted | Refused]:
        def script() -> Script[list[Inserted | Refused]]:
            return scripts.insert_with_records(jobs, atomic, records)

        tell = wakeups.of_new(jobs)
        return await (self.transact_patiently((), script, tell) if patient else self.transact_or_busy(script, tell))

    async def _sure_insert(
        self, jobs: Sequence[NewJob], atomic: bool, *, once_more: bool = True
    ) -> list[Inserted | Refused]:
        """If the connection breaks at COMMIT, check which jobs exist and insert the others again."""
        try:
            answers = await self._insert(jobs, atomic)
        except StoreBusy:
            raise
        except (StoreUnavailable, asyncpg.UniqueViolationError) as error:
            check_ids(jobs)
            if isinstance(error, StoreUnavailable) and not once_more:
                raise
            found = await self.stored(jobs)
            if isinstance(error, asyncpg.UniqueViolationError) and not found:
                raise
            return await insert_again(
                jobs, atomic, found, lambda others: self._sure_insert(others, atomic, once_more=False)
            )
        return answers if all(job.plain for job in jobs) else await as_first_answered(jobs, answers, self.stored)

    async def _insert(self, jobs: Sequence[NewJob], atomic: bool) -> list[Inserted | Refused]:
        if not (jobs[0].plain and len(alike(jobs)) == 1):
            return await self.transact_or_busy(lambda: scripts.insert(jobs, atomic))
        job = jobs[0]
        traces = [one.trace for one in jobs]
        while True:
            lane = self._lanes.get(lane_of(job), -1)
            rows = await self.pools.fetch(
                self.queries["insert_alike"].sql,
                [one.id for one in jobs],
                [one.payload for one in jobs],
                lane,
                job.topic,
                job.delay_ms,
                job.run_at,
                job.max_attempts,
                job.capability,
                job.priority,
                traces if any(traces) else None,
                *job.given[:PLAIN],
            )
            if rows:
                return [Inserted(rows[0][0])] * len(jobs)
            # The lane does not exist: this is its first enqueue, or the transaction that added it rolled back.
            await self._register_lane(job, lane)

    async def _register_lane(self, job: NewJob, tried: int) -> None:
        """One call at a time, or many first enqueues of a topic would wait for each other's locks."""
        async with self._registering:
            if self._lanes.get(lane_of(job), -1) == tried:
                self._lanes |= await self.transact_or_busy(lambda: scripts.register_lanes([job]))

    async def claim(self, lease: int, wants: Wants) -> Claim:
        asked = time.monotonic()
        marks = self._marks.at(asked)
        wanted = claim_values(wants)
        sql = claim_statement(len(wanted[0]) * len(wanted[1]) * len(wanted[2]))
        rows = await self.pools.fetch(sql, lease, *wanted, *marks)
        if not rows:
            raise LeaseLost("the lease has run out")
        token, now, hard, again, elsewhere, places, *columns = rows[0]
        jobs = claimed_jobs(columns, token, lease) if columns[0] else []
        marked = bool(marks[0])
        self._marks.remember(places, 0 < wants.limit <= len(jobs), asked, marked)
        if hard:
            return await self.transact(lambda: scripts.claim(lease, wants))
        if marked and len(jobs) < wants.limit:
            # Rows in front of the marks have not been looked at yet.
            more = await self.claim(lease, _without(wants, len(jobs)))
            return Claim(jobs + more.jobs, more.again_in_ms, now)
        if elsewhere:
            return Claim(jobs, scripts.LOCKED_MS, now)
        return Claim(jobs, 0 if again and jobs else None, now)

    async def reap(self, graces: Graces, limit: int = 1000) -> Reaped:
        reaped = await super().reap(graces, limit)
        if not reaped.more:
            await self.vacuum()
        return reaped

    async def vacuum(self) -> None:
        """Remove what is left of jobs that moved on, if there is so much of it that claims become slower."""
        await self._vacuum.run()

    async def settle_completed(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        rising = sorted(settlements, key=_BY_NUMBER)  # for the binary search in the statement
        done: list[int] = []
        for group in _groups(rising):
            try:
                done += await self._settle_group(lease, group)
            except CONFLICTS:
                done += await _until_it_commits(partial(self._settle_group, lease, group))
        self.hub.publish((wakeups.ENDED,))
        if len(done) == len(settlements):
            return []
        known = set(done)
        rest = [one for one in settlements if one.job.n not in known]
        return await self.transact(lambda: scripts.settle(rest))

    async def _settle_group(self, lease: int, group: Sequence[Settlement]) -> list[int]:
        topics = list(dict.fromkeys([one.job.topic for one in group]))
        results = [one.transition.result for one in group]
        [[done]] = await self.pools.fetch(
            self._settle_completed,
            lease,
            array([one.job.n for one in group]),
            array([one.job.token for one in group]),
            array([one.ran_ms for one in group]),
            to_json(scripts.times_of(group, 0, lease)).decode(),  # the statement knows the minute
            topics,
            None if len(topics) == 1 else array([topics.index(one.job.topic) + 1 for one in group]),
            to_json(results).decode() if any(results) else None,
        )
        return list(done)

    async def settle_flows(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        known: set[int] = set()
        for group in _groups(sorted(settlements, key=_BY_NUMBER)):
            sql, values = self._settle_flows, settlement_values(lease, group)
            [[done]] = await _until_it_commits(partial(self.pools.fetch, sql, *values))
            known.update(done)
        self.hub.publish((wakeups.ENDED,))
        if len(known) == len(settlements):
            return []
        return await super().settle_flows(lease, [one for one in settlements if one.job.n not in known])

    async def checkpoint(self, lease: int, checkpoints: Sequence[Checkpoint]) -> list[tuple[int, int]]:
        merged = batches.once_per_job(checkpoints)
        if not all(map(batches.has_small_steps, merged)):
            return await super().checkpoint(lease, checkpoints)
        sql, values = self._write_checkpoints, checkpoint_values(lease, merged)
        [[done]] = await _until_it_commits(lambda: self.pools.fetch(sql, *values))
        mine = set(done)
        return batches.not_written(checkpoints, {(one.n, one.token) for one in merged if one.n in mine})


def _groups(settlements: Sequence[Settlement]) -> Iterator[Sequence[Settlement]]:
    """With so many results each that one statement can take them; nearly always all."""
    first = size = 0
    for i, one in enumerate(settlements):
        size += len(one.transition.result or "")
        if size > RESULTS_TOGETHER and i > first:
            yield settlements[first:i]
            first, size = i, len(one.transition.result or "")
    yield settlements[first:]


def _single(keys: Sequence[Hashable]) -> Sequence[Hashable]:
    """Which of many keys was locked is not known, so none of them is remembered."""
    return keys if len(keys) == 1 else ()


async def _until_it_commits(transaction: Callable[[], Awaitable[T]]) -> T:
    """Start again after a deadlock or a serialization failure."""
    for left in reversed(range(TRIES)):
        try:
            return await transaction()
        except CONFLICTS as error:
            if not left:
                raise StoreUnavailable(f"PostgreSQL gave up on a transaction: {error}") from None
    raise AssertionError("unreachable")


async def read_on(connection: Any, reading: Reading[T]) -> T:
    """Run a reading on a connection, inside its open transaction."""
    try:
        sql, values = next(reading)
        while True:
            sql, values = reading.send(await connection.fetch(sql, *values))
    except StopIteration as stop:
        result: T = stop.value
        return result


def _without(wants: Wants, jobs: int) -> Wants:
    return wants._replace(limit=wants.limit - jobs, free=max(wants.free - jobs, 0))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _applied(connection: Any) -> set[int]:
    if await connection.fetchval("SELECT to_regclass('treadle.migrations')") is None:
        return set()
    return {row[0] for row in await connection.fetch("SELECT number FROM treadle.migrations")}


def _sent(script: Script[Any], answer: list[Any]) -> tuple[str, Sequence[Mapping[str, Any]]] | StopIteration:
    """What the script asks for next, or its end, which no future can hold as an exception."""
    try:
        return script.send(answer)
    except StopIteration as stop:
        return stop
