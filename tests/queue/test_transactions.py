"""Enqueue inside the caller's own transaction: with every driver, the job shares the fate of the caller's writes."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from tests.queue.drivers import WAYS, Way, django_connection, sqlalchemy_url, sqlite_path, transaction
from tests.queue.hands import Hands, eventually
from treadle import Concurrency, ConcurrencyRejected, InvalidInput, JobRequest, KeyReused, Queue, Status, Worker

# Rows that an enqueue leaves. Lanes are only names: PostgreSQL registers them outside, or others would have to wait.
ENQUEUE_TABLES = "jobs ready later held keys limits wakes replaced members deadlines notes events".split()


def read(url: str, sql: str) -> list[tuple[Any, ...]]:
    """What has been committed, read on a separate connection."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(sqlite_path(url))) as database:
            return database.execute(sql).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall() if "SELECT" in sql else []


def orders(url: str) -> list[str]:
    return [row[0] for row in read(url, "SELECT name FROM orders ORDER BY name")]


def leftovers(url: str) -> dict[str, int]:
    prefix = "treadle_" if url.startswith("sqlite") else "treadle."
    counts = {table: read(url, f"SELECT count(*) FROM {prefix}{table}")[0][0] for table in ENQUEUE_TABLES}
    return {table: count for table, count in counts.items() if count}


def make_orders(url: str) -> None:
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(sqlite_path(url))) as database:
            database.execute("CREATE TABLE orders (name text)")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (name text)")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture
def url(way: Way, request: pytest.FixtureRequest) -> str:
    database: str = request.getfixturevalue(f"{way.store}_url")
    return database


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    """With topics of every sort; the table `orders` is the caller's own."""
    queue = Queue(url)
    queue.register("mail", lambda: None)
    queue.register("once", lambda: None, dedupe_keys=["user"], repeatable=False)
    queue.register("alone", lambda: None, concurrency=Concurrency("reject_same_scope"))
    queue.register("queued", lambda: None, concurrency=Concurrency("queue_same_scope"))
    queue.register("newest", lambda: None, concurrency=Concurrency("replace_same_scope"))
    async with queue:
        make_orders(url)
        yield queue


EVERY_SORT = [
    JobRequest("mail", {"n": 1}),
    JobRequest("mail", {"n": 2}, {"delay": "1h"}),
    JobRequest("mail", {"n": 3}, {"idempotency_key": "k", "expires": "1h"}),
    JobRequest("once", {"user": 1}),
    JobRequest("alone", {}, {"scope_id": "a"}),
    JobRequest("queued", {"n": 1}),
    JobRequest("queued", {"n": 2}),
    JobRequest("newest", {"n": 1}),
    JobRequest("newest", {"n": 2}),
]


async def test_committed_the_job_is_there_with_the_callers_own_write(way: Way, url: str, queue: Queue) -> None:
    async with transaction(way, url, queue) as begun:
        await begun.order("before")
        job = await begun.enqueue("mail", {"to": "ann"}, priority="high")
        await begun.order("after")
        assert (job.status, job.payload, job.priority) == (Status.PENDING, {"to": "ann"}, 75)
        assert await queue.count() == 0
        await begun.commit()
    assert orders(url) == ["after", "before"]
    assert (await queue.get(job.id)).as_json() == job.as_json()
    assert await Hands(queue).claimable("mail") == [job.id]


async def test_committed_it_wakes_a_worker_that_was_idle(way: Way, url: str, queue: Queue) -> None:
    """The worker's next poll is an hour away, so only the commit can have woken it."""
    ran = asyncio.Event()

    def handler() -> None:
        loop.call_soon_threadsafe(ran.set)

    loop = asyncio.get_running_loop()
    queue.register("waking", handler)
    worker = Worker(queue, poll_interval="1h", maintenance=False)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: is_listening(queue))
    await worker_has_slept(queue)
    async with transaction(way, url, queue) as begun:
        await begun.enqueue("waking")
        await begun.commit()
        async with asyncio.timeout(60):
            await ran.wait()
    worker.stop()
    await running


def is_listening(queue: Queue) -> bool:
    store: Any = queue.store
    return store.notifier.listening if store.dialect == "postgres" else store.engine._watch is not None


async def worker_has_slept(queue: Queue) -> None:
    """One job through, so that the claim after it has found nothing and the worker waits for news."""
    job = await queue.enqueue("mail")
    await job.result(timeout="60s")


async def test_rolled_back_nothing_is_left(way: Way, url: str, queue: Queue) -> None:
    async with transaction(way, url, queue) as begun:
        await begun.order("lost")
        for request in EVERY_SORT:
            await begun.enqueue(request.topic, request.payload, **(request.options or {}))
        await begun.rollback()
    assert orders(url) == []
    assert leftovers(url) == {}
    # Neither a lane nor a key that was only seen inside the transaction stands in the way of what comes later.
    jobs = await queue.enqueue_many(EVERY_SORT)
    assert not any(job.deduplicated for job in jobs)
    assert len(await Hands(queue).claim("mail", "once", "alone", "queued", "newest")) == 6


async def test_a_batch_commits_and_rolls_back_together(way: Way, url: str, queue: Queue) -> None:
    async with transaction(way, url, queue) as begun:
        await begun.enqueue_many("mail", [{"n": n} for n in range(20)])
        await begun.enqueue_many(EVERY_SORT)
        await begun.rollback()
    assert leftovers(url) == {}
    async with transaction(way, url, queue) as begun:
        plain = await begun.enqueue_many("mail", [{"n": n} for n in range(20)])
        mixed = await begun.enqueue_many(EVERY_SORT)
        await begun.commit()
    assert {job.id for job in await queue.list(limit=100)} == {job.id for job in plain + mixed}
    statuses = [(await queue.get(job.id)).status for job in mixed]
    assert statuses == [*[Status.PENDING] * 7, Status.CANCELLED, Status.PENDING]
    claimed = await Hands(queue).claim("mail", "once", "alone", "queued", "newest")
    assert {job.id for job in claimed} == {job.id for job in [*plain, *mixed[:1], *mixed[2:6], mixed[8]]}


async def test_a_key_that_is_only_in_the_transaction_counts_in_it(way: Way, url: str, queue: Queue) -> None:
    async with transaction(way, url, queue) as begun:
        first = await begun.enqueue("mail", {"n": 1}, idempotency_key="a")
        same = await begun.enqueue("mail", {"n": 1}, idempotency_key="a")
        assert (same.id, same.deduplicated, same.payload) == (first.id, True, {"n": 1})
        jobs = await begun.enqueue_many("once", [{"user": 1}, {"user": 1}])
        assert jobs[0].id == jobs[1].id
        await begun.commit()
    assert (await queue.enqueue("mail", {"n": 1}, idempotency_key="a")).id == first.id
    assert await queue.count() == 2


async def test_refused_it_leaves_nothing_even_if_the_caller_goes_on_and_commits(
    way: Way, url: str, queue: Queue
) -> None:
    await queue.enqueue("mail", {"n": 1}, idempotency_key="taken")
    await queue.enqueue("alone")
    async with transaction(way, url, queue) as begun:
        await begun.order("before")
        with pytest.raises(KeyReused):
            await begun.enqueue("mail", {"n": 2}, idempotency_key="taken")
        with pytest.raises(ConcurrencyRejected):
            await begun.enqueue("alone", idempotency_key="free")
        with pytest.raises(KeyReused):
            await begun.enqueue_many(
                [
                    JobRequest("once", {"user": 5}),
                    JobRequest("queued"),
                    JobRequest("mail", {"n": 3}, {"idempotency_key": "free", "priority": 33}),
                    JobRequest("mail", {"n": 4}, {"idempotency_key": "taken"}),
                ]
            )
        await begun.order("after")
        kept = await begun.enqueue("mail", {"n": "kept"})
        await begun.commit()
    assert orders(url) == ["after", "before"]
    assert await queue.count() == 3
    assert (await queue.get(kept.id)).status is Status.PENDING
    assert leftovers(url) == {"jobs": 3, "ready": 3, "keys": 2, "members": 1}
    assert not (await queue.enqueue("mail", {"n": 9}, idempotency_key="free")).deduplicated
    assert not (await queue.enqueue("once", {"user": 5})).deduplicated


# -- without a transaction: the call is one ------------------------------------------------------------------------


@contextlib.contextmanager
def sqlite3_autocommit(url: str) -> Iterator[Any]:
    connection = sqlite3.connect(sqlite_path(url), isolation_level=None)
    yield connection
    connection.close()


@contextlib.contextmanager
def sqlite3_autocommit_attribute(url: str) -> Iterator[Any]:
    """Since Python 3.12 the mode is an attribute, and it wins over the old one."""

    class Connection(sqlite3.Connection):
        autocommit = True

    connection = sqlite3.connect(sqlite_path(url), factory=Connection)
    yield connection
    connection.close()


@contextlib.contextmanager
def sqlalchemy_autocommit(url: str, driver: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextlib.asynccontextmanager
async def sqlalchemy_async_autocommit(url: str, driver: str) -> AsyncIterator[Any]:
    engine = create_async_engine(sqlalchemy_url(url, driver))
    async with engine.connect() as connection:
        yield await connection.execution_options(isolation_level="AUTOCOMMIT")
    await engine.dispose()


@contextlib.asynccontextmanager
async def asyncpg_alone(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


ALONE: dict[str, tuple[str, Any]] = {
    "sqlite3": ("sqlite", sqlite3_autocommit),
    "sqlite3 by its attribute": ("sqlite", sqlite3_autocommit_attribute),
    "SQLAlchemy on sqlite3": ("sqlite", lambda url: sqlalchemy_autocommit(url, "pysqlite")),
    "SQLAlchemy on aiosqlite": ("sqlite", lambda url: sqlalchemy_async_autocommit(url, "aiosqlite")),
    "asyncpg": ("postgres", asyncpg_alone),
    "psycopg": ("postgres", lambda url: psycopg.connect(url, autocommit=True)),
    "SQLAlchemy on psycopg": ("postgres", lambda url: sqlalchemy_autocommit(url, "psycopg")),
    "SQLAlchemy on asyncpg": ("postgres", lambda url: sqlalchemy_async_autocommit(url, "asyncpg")),
}


@pytest.mark.parametrize("name", ALONE)
async def test_in_autocommit_the_enqueue_is_its_own_transaction(name: str, request: pytest.FixtureRequest) -> None:
    store, connect = ALONE[name]
    url = request.getfixturevalue(f"{store}_url")
    async with Queue(url) as queue, contextlib.AsyncExitStack() as stack:
        queue.register("alone", lambda: None, concurrency=Concurrency("reject_same_scope"))
        manager = connect(url)
        if isinstance(manager, contextlib.AbstractAsyncContextManager):
            connection = await stack.enter_async_context(manager)
        else:
            connection = stack.enter_context(manager)
        job = await queue.enqueue("mail", connection=connection)
        await queue.enqueue("alone", connection=connection)
        assert await queue.count() == 2
        with pytest.raises(ConcurrencyRejected):
            await queue.enqueue_many([JobRequest("mail"), JobRequest("alone")], connection=connection)
        assert await queue.count() == 2
        assert await Hands(queue).claimable("mail") == [job.id]
        assert (await queue.enqueue("mail", connection=connection)).id != job.id


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_djangos_connection_outside_of_atomic(store: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{store}_url")
    queue = Queue(url)
    queue.register("alone", lambda: None, concurrency=Concurrency("reject_same_scope"))
    queue.sync.open()
    connection = django_connection(url)
    queue.sync.enqueue("alone", connection=connection)
    with pytest.raises(ConcurrencyRejected):
        queue.sync.enqueue_many([JobRequest("mail"), JobRequest("alone")], connection=connection)
    assert queue.sync.count() == 1
    connection.close()
    queue.sync.close()


# -- errors --------------------------------------------------------------------------------------------------------


async def test_a_connection_to_the_wrong_kind_of_database_is_refused(sqlite_url: str, postgres_url: str) -> None:
    async with Queue(sqlite_url) as in_sqlite, Queue(postgres_url) as in_postgres:
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            with pytest.raises(InvalidInput, match="this is a sqlite connection, but the queue lives in postgres"):
                await in_postgres.enqueue("mail", connection=connection)
            assert not connection.in_transaction
            with pytest.raises(InvalidInput, match="the queue lives in postgres"):
                in_postgres.sync.enqueue_many("mail", [{}], connection=connection)
        connection = await asyncpg.connect(postgres_url)
        with pytest.raises(InvalidInput, match="this is a postgres connection, but the queue lives in sqlite"):
            await in_sqlite.enqueue("mail", connection=connection)
        await connection.close()
        with psycopg.connect(postgres_url) as blocking:
            with pytest.raises(InvalidInput, match="the queue lives in sqlite") as refused:
                in_sqlite.sync.enqueue("mail", connection=blocking)
            assert refused.value.data["field"] == "connection"
        engine = sqlalchemy.create_engine(sqlalchemy_url(postgres_url, "psycopg"))
        with engine.connect() as connected, pytest.raises(InvalidInput, match="the queue lives in sqlite"):
            await in_sqlite.enqueue("mail", connection=connected)
        engine.dispose()
        assert await in_sqlite.count() == await in_postgres.count() == 0
        in_sqlite.sync.close()
        in_postgres.sync.close()


@pytest.mark.parametrize("what", [object(), "postgresql://localhost/x", 5, Path("jobs.db"), threading.Lock()])
async def test_an_object_that_is_no_connection_is_refused_with_what_is(sqlite_url: str, what: Any) -> None:
    async with Queue(sqlite_url) as queue:
        for call in (queue.enqueue("mail", connection=what), queue.enqueue_many("mail", [{}], connection=what)):
            with pytest.raises(InvalidInput, match="is not supported; use sqlite3, asyncpg, psycopg") as refused:
                await call
            assert type(what).__name__ in str(refused.value)
        with pytest.raises(InvalidInput, match="is not supported"):
            queue.sync.enqueue("mail", connection=what)
        queue.sync.close()
        assert await queue.count() == 0


ASYNC_WAYS = {name: way for name, way in WAYS.items() if "async" in name.lower() or "aiosqlite" in name}


@pytest.mark.parametrize("way", ASYNC_WAYS.values(), ids=list(ASYNC_WAYS))
async def test_an_async_connection_through_the_blocking_face_is_refused(way: Way, url: str, queue: Queue) -> None:
    async with transaction(way, url, queue) as begun:
        for call in (queue.sync.enqueue, lambda topic, **more: queue.sync.enqueue_many(topic, [{}], **more)):
            with pytest.raises(InvalidInput, match=r"queue\.sync needs a blocking one; use await"):
                call("mail", connection=begun.connection)
        # It was not touched: its transaction goes on.
        await begun.order("own")
        await begun.commit()
    queue.sync.close()
    assert orders(url) == ["own"]
    assert await queue.count() == 0


async def test_django_on_an_event_loop_says_so(sqlite_url: str) -> None:
    from django.core.exceptions import SynchronousOnlyOperation

    async with Queue(sqlite_url) as queue:
        connection = django_connection(sqlite_url)
        with pytest.raises(SynchronousOnlyOperation):
            await queue.enqueue("mail", connection=connection)


# -- PostgreSQL: what others must not wait for, and snapshots -------------------------------------------------------


@pytest.mark.parametrize("face", ["async", "sync"])
async def test_others_do_not_wait_for_a_transaction_that_used_a_topic_first(postgres_url: str, face: str) -> None:
    """Even in one program, a second enqueue outside the open transaction would wait for it for ever."""
    async with Queue(postgres_url) as queue:
        with psycopg.connect(postgres_url) as connection:
            if face == "async":
                joined = await queue.enqueue("first_of_all", connection=connection)
            else:
                joined = await asyncio.to_thread(queue.sync.enqueue, "first_of_all", connection=connection)
            async with asyncio.timeout(60):
                beside = await queue.enqueue("first_of_all")
            connection.commit()
        queue.sync.close()
        assert await Hands(queue).claimable("first_of_all") == [joined.id, beside.id]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_transaction_with_a_snapshot_may_use_a_topic_first(postgres_url: str, level: str) -> None:
    async with Queue(postgres_url) as queue:
        queue.register("queued", lambda: None, concurrency=Concurrency("queue_same_scope"))
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction(isolation=level.lower().replace(" ", "_")):
            await connection.fetch("SELECT 1 FROM treadle.jobs")
            jobs = await queue.enqueue_many(
                [JobRequest("mail"), JobRequest("queued"), JobRequest("queued")], connection=connection
            )
        await connection.close()
        assert await Hands(queue).claimable("mail", "queued") == [job.id for job in jobs[:2]]


# -- SQLite: one writer at a time ----------------------------------------------------------------------------------


def test_joined_enqueues_and_others_never_get_in_each_others_way(sqlite_url: str) -> None:
    """Numbers of jobs are chosen by reading: a joined enqueue must have the write lock before it reads."""
    queue = Queue(sqlite_url)
    queue.sync.enqueue("mail")
    errors: list[BaseException] = []

    def joined() -> None:
        connection = sqlite3.connect(sqlite_path(sqlite_url), timeout=60)
        for n in range(40):
            try:
                queue.sync.enqueue("mail", {"joined": n}, connection=connection)
                connection.commit()
            except BaseException as error:
                errors.append(error)
                connection.rollback()
        connection.close()

    def usual() -> None:
        for n in range(40):
            queue.sync.enqueue("mail", {"usual": n})

    threads = [threading.Thread(target=work) for work in (joined, joined, usual, usual)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert queue.sync.count() == 161
    queue.sync.close()


async def test_a_transaction_that_has_not_written_yet_takes_the_lock_before_it_reads(sqlite_url: str) -> None:
    async with Queue(sqlite_url) as queue:
        await queue.enqueue("mail")
        connection = sqlite3.connect(sqlite_path(sqlite_url), isolation_level=None)
        connection.execute("BEGIN")
        await queue.enqueue("mail")
        await queue.enqueue("mail", connection=connection)
        connection.execute("COMMIT")
        connection.close()
        assert await queue.count() == 3
