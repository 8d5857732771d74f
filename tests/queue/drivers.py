"""Every kind of connection that `connection=` takes, behind one small face, so that one test fits all.

A driver is a context manager: it connects to a database, begins a transaction and yields a `Handle`.
Blocking ones are used twice: in a thread of their own through `queue.sync`, and on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import psycopg.rows
import sqlalchemy
from sqlalchemy import event, orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from treadle import Job, Queue


@dataclass
class Handle:
    """A connection with an open transaction."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


def sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///")


# -- sqlite3 -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def sqlite3_default(url: str) -> Iterator[Handle]:
    """The default: a transaction begins by itself at the first change."""
    connection = sqlite3.connect(sqlite_path(url))
    yield Handle(connection, connection.execute, connection.commit, connection.rollback)
    connection.close()


@contextlib.contextmanager
def sqlite3_explicit(url: str) -> Iterator[Handle]:
    """isolation_level None, inside BEGIN."""
    connection = sqlite3.connect(sqlite_path(url), isolation_level=None)
    connection.execute("BEGIN")
    yield Handle(connection, connection.execute, connection.commit, connection.rollback)
    connection.close()


@contextlib.contextmanager
def sqlite3_dict_rows(url: str) -> Iterator[Handle]:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    connection = sqlite3.connect(sqlite_path(url))
    connection.row_factory = as_dict
    yield Handle(connection, connection.execute, connection.commit, connection.rollback)
    connection.close()


# -- asyncpg and psycopg -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Handle]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Handle(connection, connection.execute, transaction.commit, transaction.rollback)
    await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Handle]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Handle(connection, connection.execute, transaction.commit, transaction.rollback)


def psycopg_driver(**options: Any) -> Callable[[str], contextlib.AbstractContextManager[Handle]]:
    @contextlib.contextmanager
    def connect(url: str) -> Iterator[Handle]:
        with psycopg.connect(url, **options) as connection:
            if connection.autocommit:
                connection.execute("BEGIN")
            yield Handle(connection, connection.execute, connection.commit, connection.rollback)

    return connect


def psycopg_async_driver(**options: Any) -> Callable[[str], contextlib.AbstractAsyncContextManager[Handle]]:
    @contextlib.asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Handle]:
        async with await psycopg.AsyncConnection.connect(url, **options) as connection:
            yield Handle(connection, connection.execute, connection.commit, connection.rollback)

    return connect


# -- SQLAlchemy ----------------------------------------------------------------------------------------------------


def sqlalchemy_url(url: str, driver: str) -> str:
    if url.startswith("sqlite"):
        return url.replace("sqlite:", f"sqlite+{driver}:", 1)
    return url.replace("postgresql:", f"postgresql+{driver}:", 1)


def sqlalchemy_driver(
    driver: str, kind: str, *, begin_by_event: bool = False
) -> Callable[[str], contextlib.AbstractContextManager[Handle]]:
    @contextlib.contextmanager
    def connect(url: str) -> Iterator[Handle]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver))
        if begin_by_event:
            _begin_by_event(engine)
        made: Any = {
            "connection": engine.connect,
            "session": lambda: orm.Session(engine),
            "scoped_session": lambda: orm.scoped_session(orm.sessionmaker(engine)),
        }[kind]()
        yield Handle(made, lambda sql: made.execute(sqlalchemy.text(sql)), made.commit, made.rollback)
        made.close()
        engine.dispose()

    return connect


def _begin_by_event(engine: sqlalchemy.Engine) -> None:
    """SQLAlchemy's own recipe for transactions in SQLite that are what they should be."""

    @event.listens_for(engine, "connect")
    def no_help(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def sqlalchemy_async_driver(driver: str, kind: str) -> Callable[[str], contextlib.AbstractAsyncContextManager[Handle]]:
    @contextlib.asynccontextmanager
    async def connect(url: str) -> AsyncIterator[Handle]:
        engine = sqlalchemy_asyncio.create_async_engine(sqlalchemy_url(url, driver))
        made: Any
        if kind == "connection":
            made = await engine.connect()
        elif kind == "session":
            made = sqlalchemy_asyncio.AsyncSession(engine)
        else:
            maker = sqlalchemy_asyncio.async_sessionmaker(engine)
            made = sqlalchemy_asyncio.async_scoped_session(maker, scopefunc=asyncio.current_task)
        yield Handle(made, lambda sql: made.execute(sqlalchemy.text(sql)), made.commit, made.rollback)
        await made.close()
        await engine.dispose()

    return connect


# -- Django --------------------------------------------------------------------------------------------------------


def django_connection(url: str) -> Any:
    """Django's `connection` for this database, in this thread."""
    import django
    import django.db
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(DATABASES={})
        django.setup()
    if url.startswith("sqlite"):
        database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": sqlite_path(url)}
    else:
        parts = psycopg.conninfo.conninfo_to_dict(url)
        names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
        database = {"ENGINE": "django.db.backends.postgresql", **{key: parts[name] for key, name in names.items()}}
    django.db.connections["default"] = ConnectionHandler({"default": database})["default"]
    return django.db.connection


@contextlib.contextmanager
def django_atomic(url: str) -> Iterator[Handle]:
    from django.db import transaction

    connection = django_connection(url)
    atomic = transaction.atomic()
    atomic.__enter__()

    def execute(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    def commit() -> None:
        atomic.__exit__(None, None, None)

    def rollback() -> None:
        transaction.set_rollback(True)
        atomic.__exit__(None, None, None)

    yield Handle(connection, execute, commit, rollback)
    connection.close()


# -- all of them ---------------------------------------------------------------------------------------------------

SQLITE_BLOCKING: dict[str, Any] = {
    "sqlite3": sqlite3_default,
    "sqlite3 inside BEGIN": sqlite3_explicit,
    "sqlite3 with dict rows": sqlite3_dict_rows,
    "SQLAlchemy Connection on sqlite3": sqlalchemy_driver("pysqlite", "connection"),
    "SQLAlchemy Session on sqlite3": sqlalchemy_driver("pysqlite", "session"),
    "SQLAlchemy scoped_session on sqlite3": sqlalchemy_driver("pysqlite", "scoped_session"),
    "SQLAlchemy Connection on sqlite3 that begins by event": sqlalchemy_driver(
        "pysqlite", "connection", begin_by_event=True
    ),
}
SQLITE_ASYNC: dict[str, Any] = {
    "SQLAlchemy AsyncConnection on aiosqlite": sqlalchemy_async_driver("aiosqlite", "connection"),
    "SQLAlchemy AsyncSession on aiosqlite": sqlalchemy_async_driver("aiosqlite", "session"),
    "SQLAlchemy async_scoped_session on aiosqlite": sqlalchemy_async_driver("aiosqlite", "scoped_session"),
}
POSTGRES_BLOCKING: dict[str, Any] = {
    "psycopg": psycopg_driver(),
    "psycopg with dict rows": psycopg_driver(row_factory=psycopg.rows.dict_row),
    "psycopg with scalar rows": psycopg_driver(row_factory=psycopg.rows.scalar_row),
    "psycopg with raw cursors": psycopg_driver(cursor_factory=psycopg.RawCursor),
    "psycopg in autocommit inside BEGIN": psycopg_driver(autocommit=True),
    "SQLAlchemy Connection on psycopg": sqlalchemy_driver("psycopg", "connection"),
    "SQLAlchemy Session on psycopg": sqlalchemy_driver("psycopg", "session"),
}
POSTGRES_ASYNC: dict[str, Any] = {
    "asyncpg": asyncpg_connection,
    "asyncpg from a pool": asyncpg_pool,
    "psycopg async": psycopg_async_driver(),
    "psycopg async with dict rows": psycopg_async_driver(row_factory=psycopg.rows.dict_row),
    "SQLAlchemy AsyncConnection on psycopg": sqlalchemy_async_driver("psycopg", "connection"),
    "SQLAlchemy AsyncSession on psycopg": sqlalchemy_async_driver("psycopg", "session"),
    "SQLAlchemy AsyncConnection on asyncpg": sqlalchemy_async_driver("asyncpg", "connection"),
    "SQLAlchemy AsyncSession on asyncpg": sqlalchemy_async_driver("asyncpg", "session"),
}
# Django forbids its connections on an event loop, so they are for `queue.sync` only.
DJANGO: dict[str, Any] = {"Django": django_atomic}


@dataclass(frozen=True)
class Way:
    """One driver on one store, through one face of the queue."""

    driver: Any
    store: str
    face: str


WAYS: dict[str, Way] = {
    **{f"{name}, await": Way(driver, "sqlite", "async") for name, driver in (SQLITE_BLOCKING | SQLITE_ASYNC).items()},
    **{f"{name}, sync": Way(driver, "sqlite", "sync") for name, driver in SQLITE_BLOCKING.items()},
    **{f"{name} on sqlite": Way(driver, "sqlite", "sync") for name, driver in DJANGO.items()},
    **{
        f"{name}, await": Way(driver, "postgres", "async")
        for name, driver in (POSTGRES_BLOCKING | POSTGRES_ASYNC).items()
    },
    **{f"{name}, sync": Way(driver, "postgres", "sync") for name, driver in POSTGRES_BLOCKING.items()},
    **{f"{name} on postgres": Way(driver, "postgres", "sync") for name, driver in DJANGO.items()},
}


class Transaction:
    """What a test does with an open transaction, through any driver, sync or async."""

    def __init__(self, handle: Handle, face: Any, run: Callable[..., Awaitable[Any]]) -> None:
        self.connection = handle.connection
        self._handle = handle
        self._face = face
        self._run = run

    async def order(self, name: str) -> None:
        """The caller's own write."""
        await self._run(self._handle.execute, f"INSERT INTO orders VALUES ('{name}')")

    async def enqueue(self, *args: Any, **options: Any) -> Job:
        job: Job = await self._run(self._face.enqueue, *args, connection=self.connection, **options)
        return job

    async def enqueue_many(self, *args: Any, **options: Any) -> list[Job]:
        jobs: list[Job] = await self._run(self._face.enqueue_many, *args, connection=self.connection, **options)
        return jobs

    async def commit(self) -> None:
        await self._run(self._handle.commit)

    async def rollback(self) -> None:
        await self._run(self._handle.rollback)


@contextlib.asynccontextmanager
async def transaction(way: Way, url: str, queue: Queue) -> AsyncIterator[Transaction]:
    async with _on_loop(way, url, queue) if way.face == "async" else _in_thread(way, url, queue) as begun:
        yield begun


@contextlib.asynccontextmanager
async def _on_loop(way: Way, url: str, queue: Queue) -> AsyncIterator[Transaction]:
    async def run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        answer = function(*args, **options)
        return await answer if isinstance(answer, Awaitable) else answer

    manager = way.driver(url)
    if isinstance(manager, contextlib.AbstractAsyncContextManager):
        async with manager as handle:
            yield Transaction(handle, queue, run)
    else:
        with manager as handle:
            yield Transaction(handle, queue, run)


@contextlib.asynccontextmanager
async def _in_thread(way: Way, url: str, queue: Queue) -> AsyncIterator[Transaction]:
    with ThreadPoolExecutor(1) as thread:

        async def run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            call = functools.partial(function, *args, **options)
            return await asyncio.get_running_loop().run_in_executor(thread, call)

        manager = way.driver(url)
        handle = await run(manager.__enter__)
        try:
            yield Transaction(handle, queue.sync, run)
        finally:
            await run(manager.__exit__, None, None, None)
            queue.sync.close()
