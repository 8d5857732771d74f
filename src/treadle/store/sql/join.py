"""Enqueue inside a transaction that the user's code has opened, with any supported driver.

The scripts do no I/O, so joining a transaction only takes a way to run one statement on it: sqlite3, asyncpg, psycopg
(sync and async), SQLAlchemy (sync and async connections and sessions) and Django. The commit stays with the caller;
after a rollback the jobs don't exist.

A connection in autocommit mode has no transaction to join, so there the call runs in a new transaction.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic_core import to_json

from treadle.model.errors import InvalidInput, Refused
from treadle.store import wakeups
from treadle.store.sql import scripts
from treadle.store.sql.queries import Query
from treadle.store.sql.scripts import Script
from treadle.store.values import Inserted, NewJob

T = TypeVar("T")

# Runs one statement with its one JSON parameter and returns the rows, or an awaitable of them.
Execute = Callable[[str, str | None], Any]

_SUPPORTED = (
    "sqlite3, asyncpg, psycopg (sync or async), SQLAlchemy (connections and sessions, sync or async) "
    "and Django connections"
)


class Foreign(NamedTuple):
    """The operations we need of the caller's connection."""

    dialect: str
    execute: Execute
    alone: Callable[[], bool]
    """Each statement would commit by itself. Asked after the first one, because some begin at it."""


async def insert_with(
    connection: Any,
    dialect: str,
    queries: dict[str, Query],
    jobs: Sequence[NewJob],
    atomic: bool,
    outside: Callable[[], Any] | None = None,
) -> list[Inserted | Refused]:
    """Insert on the caller's connection; on PostgreSQL the commit itself sends the wake-up.

    `outside` registers, in a separate transaction, rows that others would otherwise wait for until the caller commits.
    """
    joined = await _join(connection, dialect)
    if outside and await _sees_new_rows(joined):
        await _maybe(outside())
    undo, done = await _begin(joined, certain=all(job.plain for job in jobs))
    try:
        answers = await _drive(joined.execute, queries, scripts.insert(jobs, atomic, joined=True))
        if dialect == "postgres":
            await _run(joined, f"SELECT pg_notify('treadle', '{','.join(wakeups.of_new(jobs))}')")
    except BaseException:
        with contextlib.suppress(Exception):
            await _run(joined, *undo)
        raise
    await _run(joined, *done)
    return answers


async def query_with(connection: Any, dialect: str, sql: str, document: str | None) -> list[Any]:
    """Read on the caller's connection, the only place that sees its uncommitted changes."""
    joined = await _join(connection, dialect)
    rows: list[Any] = await _maybe(joined.execute(sql, document))
    return rows


async def _sees_new_rows(joined: Foreign) -> bool:
    """False with a fixed snapshot, in which a row that others have just made is an error, not a match."""
    rows = await _maybe(joined.execute("SHOW transaction_isolation", None))
    return bool(rows[0][0] == "read committed")


async def _begin(joined: Foreign, certain: bool) -> tuple[list[str], list[str]]:
    """Make the insert all or nothing, even if the caller catches its error and commits. Returns how to undo and to end
    it."""
    if joined.dialect == "sqlite":
        await _run(joined, "SELECT 1")
    if joined.alone():
        await _run(joined, "BEGIN IMMEDIATE" if joined.dialect == "sqlite" else "BEGIN")
        return ["ROLLBACK"], ["COMMIT"]
    if joined.dialect == "sqlite":
        # Changes nothing but takes the write lock before anything is read: numbers are chosen by reading, and a
        # transaction that has read can't write after another connection has written.
        await _run(joined, "UPDATE treadle_token SET value = value WHERE 0")
    elif certain:
        return [], []  # nothing can be refused, and an error ends a PostgreSQL transaction anyway
    await _run(joined, "SAVEPOINT treadle_enqueue")
    done = ["RELEASE SAVEPOINT treadle_enqueue"]
    return ["ROLLBACK TO SAVEPOINT treadle_enqueue", *done], done


async def _run(joined: Foreign, *statements: str) -> None:
    for statement in statements:
        await _maybe(joined.execute(statement, None))


async def _drive(execute: Execute, queries: dict[str, Query], script: Script[T]) -> T:
    """A sync connection never really awaits, so the sync API can run this without a loop."""
    try:
        name, rows = next(script)
        while True:
            sql = queries[name].sql
            takes_rows = "$1" in sql or "?1" in sql
            document = to_json(rows).decode() if takes_rows else None
            name, rows = script.send(await _maybe(execute(sql, document)))
    except StopIteration as stop:
        result: T = stop.value
        return result


async def _maybe(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _join(connection: Any, dialect: str) -> Foreign:
    adapter = _adapter(connection)
    if adapter is None:
        raise InvalidInput(
            f"connection: {type(connection).__module__}.{type(connection).__name__} is not supported; use {_SUPPORTED}",
            field="connection",
        )
    joined: Foreign = await _maybe(adapter(connection))
    if joined.dialect != dialect:
        raise InvalidInput(
            f"connection: this is a {joined.dialect} connection, but the queue lives in {dialect}", field="connection"
        )
    return joined


def _adapter(connection: Any) -> Callable[[Any], Any] | None:
    """By class name, so that no driver has to be installed or imported."""
    for cls in type(connection).__mro__:
        name = f"{cls.__module__.split('.')[0]}.{cls.__name__}"
        if name in _ADAPTERS:
            return _ADAPTERS[name]
    return None


# -- sqlite3 ---------------------------------------------------------------------------------------


def _sqlite3(connection: Any) -> Foreign:
    def execute(sql: str, document: str | None) -> list[Any]:
        cursor = connection.cursor()
        cursor.row_factory = None  # independent of the caller's row factory
        cursor.execute(sql, () if document is None else (document,))
        return cursor.fetchall() if cursor.description else []

    return Foreign("sqlite", execute, lambda: _sqlite_alone(connection))


def _sqlite_alone(connection: Any) -> bool:
    if connection.in_transaction:
        return False
    # From Python 3.12 on `autocommit` decides, unless it has its default, which is no bool.
    autocommit = getattr(connection, "autocommit", None)
    return autocommit if isinstance(autocommit, bool) else connection.isolation_level is None


# -- asyncpg and psycopg ---------------------------------------------------------------------------


def _asyncpg(connection: Any) -> Foreign:
    async def execute(sql: str, document: str | None) -> Any:
        return await connection.fetch(sql, *([] if document is None else [document]))

    return Foreign("postgres", execute, lambda: not connection.is_in_transaction())


def _psycopg_sql(sql: str) -> str:
    return sql.replace("%", "%%").replace("$1", "%(document)s")


def _psycopg_alone(connection: Any) -> bool:
    from psycopg.pq import TransactionStatus

    return bool(connection.autocommit) and connection.info.transaction_status == TransactionStatus.IDLE


# psycopg's plain cursors, independent of the caller's cursor and row factories.


def _psycopg(connection: Any) -> Foreign:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    def execute(sql: str, document: str | None) -> Any:
        cursor = Cursor(connection, row_factory=tuple_row)
        cursor.execute(_psycopg_sql(sql), {"document": document})
        return cursor.fetchall() if cursor.description else []

    return Foreign("postgres", execute, lambda: _psycopg_alone(connection))


def _psycopg_async(connection: Any) -> Foreign:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async def execute(sql: str, document: str | None) -> Any:
        cursor = AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(_psycopg_sql(sql), {"document": document})
        return await cursor.fetchall() if cursor.description else []

    return Foreign("postgres", execute, lambda: _psycopg_alone(connection))


# -- SQLAlchemy ------------------------------------------------------------------------------------


def _sqlalchemy_statement(sql: str, document: str | None) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    named = sql.replace("$1", ":document").replace("?1", ":document")
    return text(named), {} if document is None else {"document": document}


def _sqlalchemy_dialect(connection: Any) -> str:
    name: str = connection.dialect.name
    return "postgres" if name == "postgresql" else name


def _sqlalchemy_alone(connection: Any) -> bool:
    """With the isolation level AUTOCOMMIT, which is the driver's own."""
    pooled = connection.connection
    if connection.dialect.name == "sqlite":
        return _sqlite_alone(pooled.driver_connection)
    return bool(getattr(pooled.dbapi_connection, "autocommit", False))


def _sqlalchemy(connection: Any) -> Foreign:
    def execute(sql: str, document: str | None) -> Any:
        result = connection.execute(*_sqlalchemy_statement(sql, document))
        return result.fetchall() if result.returns_rows else []

    return Foreign(_sqlalchemy_dialect(connection), execute, lambda: _sqlalchemy_alone(connection))


def _sqlalchemy_async(connection: Any) -> Foreign:
    async def execute(sql: str, document: str | None) -> Any:
        result = await connection.execute(*_sqlalchemy_statement(sql, document))
        return result.fetchall() if result.returns_rows else []

    return Foreign(_sqlalchemy_dialect(connection), execute, lambda: _sqlalchemy_alone(connection.sync_connection))


def _sqlalchemy_session(session: Any) -> Foreign:
    return _sqlalchemy(session.connection())


async def _sqlalchemy_async_session(session: Any) -> Foreign:
    return _sqlalchemy_async(await session.connection())


# -- Django ----------------------------------------------------------------------------------------


def _django(connection: Any) -> Foreign:
    vendor = {"postgresql": "postgres"}.get(connection.vendor, connection.vendor)
    mark = "$1" if vendor == "postgres" else "?1"

    def execute(sql: str, document: str | None) -> Any:
        with connection.cursor() as cursor:
            if document is None:
                cursor.execute(sql)
            else:
                # Django doesn't number parameters, so one that is used twice is passed twice.
                cursor.execute(sql.replace("%", "%%").replace(mark, "%s"), [document] * sql.count(mark))
            return cursor.fetchall() if cursor.description else []

    return Foreign(vendor, execute, connection.get_autocommit)


_ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "sqlite3.Connection": _sqlite3,
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    "psycopg.Connection": _psycopg,
    "psycopg.AsyncConnection": _psycopg_async,
    "sqlalchemy.Connection": _sqlalchemy,
    "sqlalchemy.Session": _sqlalchemy_session,
    "sqlalchemy.scoped_session": _sqlalchemy_session,
    "sqlalchemy.AsyncConnection": _sqlalchemy_async,
    "sqlalchemy.AsyncSession": _sqlalchemy_async_session,
    "sqlalchemy.async_scoped_session": _sqlalchemy_async_session,
    "django.ConnectionProxy": _django,
    "django.BaseDatabaseWrapper": _django,
}
