"""Enqueue inside a transaction that the user's own code has open, whatever driver it came with.

The scripts do no I/O, so joining a transaction only takes a way to run one statement on it:
sqlite3, asyncpg, psycopg (sync and async), SQLAlchemy (sync and async connections and sessions)
and Django. The commit stays the caller's; if it rolls back, the jobs were never there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic_core import to_json

from treadle.errors import InvalidInput, Refused
from treadle.store import scripts
from treadle.store.base import Inserted, NewJob
from treadle.store.queries import Query
from treadle.store.scripts import Script

T = TypeVar("T")

# Runs one statement with its one JSON parameter and returns the rows; may return an awaitable of them.
Execute = Callable[[str, str | None], Any]

_SUPPORTED = (
    "sqlite3, asyncpg, psycopg (sync or async), SQLAlchemy (connections and sessions, sync or async) "
    "and Django connections"
)


async def insert_with(
    connection: Any, dialect: str, queries: dict[str, Query], jobs: Sequence[NewJob], atomic: bool
) -> list[Inserted | Refused]:
    """Insert on the caller's connection; on PostgreSQL the wake-up is sent by the commit itself."""
    execute, finish = _join(connection, dialect)
    try:
        answers = await _drive(execute, queries, scripts.insert(jobs, atomic))
        if dialect == "postgres":
            hint = "later" if any(job.delay_ms or job.run_at for job in jobs) else "ready"
            await _maybe(execute(f"SELECT pg_notify('treadle', '{hint}')", None))
    except BaseException:
        finish(False)
        raise
    finish(True)
    return answers


async def _drive(execute: Execute, queries: dict[str, Query], script: Script[T]) -> T:
    """No real await happens for a sync connection, so the sync face can run this without a loop."""
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


def _join(connection: Any, dialect: str) -> tuple[Execute, Callable[[bool], None]]:
    """How to run a statement there, and what to do when all went well or not."""
    kind = _kind(connection)
    if kind is None:
        raise InvalidInput(
            f"connection: {type(connection).__module__}.{type(connection).__name__} is not supported; use {_SUPPORTED}",
            field="connection",
        )
    execute, finish, spoken = _ADAPTERS[kind](connection)
    if spoken != dialect:
        raise InvalidInput(
            f"connection: this is a {spoken} connection, but the queue lives in {dialect}", field="connection"
        )
    return execute, finish


def _kind(connection: Any) -> str | None:
    """By the names of its classes, so that no driver has to be installed or imported."""
    for cls in type(connection).__mro__:
        name = f"{cls.__module__.split('.')[0]}.{cls.__name__}"
        if name in _ADAPTERS:
            return name
    return None


def _nothing(ok: bool) -> None:
    """The transaction is the caller's to end."""


Adapter = Callable[[Any], tuple[Execute, Callable[[bool], None], str]]


def _sqlite3(connection: Any) -> tuple[Execute, Callable[[bool], None], str]:
    # In autocommit mode without a transaction, all the statements together are one.
    alone = connection.isolation_level is None and not connection.in_transaction
    if alone:
        connection.execute("BEGIN IMMEDIATE")

    def execute(sql: str, document: str | None) -> list[Any]:
        cursor = connection.execute(sql, () if document is None else (document,))
        return cursor.fetchall() if cursor.description else []

    def finish(ok: bool) -> None:
        if alone:
            connection.execute("COMMIT" if ok else "ROLLBACK")

    return execute, finish, "sqlite"


def _asyncpg(connection: Any) -> tuple[Execute, Callable[[bool], None], str]:
    async def execute(sql: str, document: str | None) -> Any:
        return await connection.fetch(sql, *([] if document is None else [document]))

    return execute, _nothing, "postgres"


def _psycopg_sql(sql: str) -> str:
    return sql.replace("%", "%%").replace("$1", "%(document)s")


def _psycopg(connection: Any) -> tuple[Execute, Callable[[bool], None], str]:
    def execute(sql: str, document: str | None) -> Any:
        cursor = connection.execute(_psycopg_sql(sql), {"document": document})
        return _tuples(cursor.fetchall(), cursor.description) if cursor.description else []

    return execute, _nothing, "postgres"


def _psycopg_async(connection: Any) -> tuple[Execute, Callable[[bool], None], str]:
    async def execute(sql: str, document: str | None) -> Any:
        cursor = await connection.execute(_psycopg_sql(sql), {"document": document})
        return _tuples(await cursor.fetchall(), cursor.description) if cursor.description else []

    return execute, _nothing, "postgres"


def _tuples(rows: list[Any], description: Any) -> list[Any]:
    """The caller may have chosen rows as dicts; scripts want them in order."""
    if rows and isinstance(rows[0], dict):
        return [tuple(row[column.name] for column in description) for row in rows]
    return rows


def _sqlalchemy_statement(sql: str, document: str | None) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    named = sql.replace("$1", ":document").replace("?1", ":document")
    return text(named), {} if document is None else {"document": document}


def _sqlalchemy_dialect(bind: Any) -> str:
    name: str = bind.dialect.name
    return "postgres" if name == "postgresql" else name


def _sqlalchemy(connection: Any) -> tuple[Execute, Callable[[bool], None], str]:
    def execute(sql: str, document: str | None) -> Any:
        result = connection.execute(*_sqlalchemy_statement(sql, document))
        return result.fetchall() if result.returns_rows else []

    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    return execute, _nothing, _sqlalchemy_dialect(bind)


def _sqlalchemy_async(connection: Any) -> tuple[Execute, Callable[[bool], None], str]:
    async def execute(sql: str, document: str | None) -> Any:
        result = await connection.execute(*_sqlalchemy_statement(sql, document))
        return result.fetchall() if result.returns_rows else []

    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    return execute, _nothing, _sqlalchemy_dialect(bind)


def _django(connection: Any) -> tuple[Execute, Callable[[bool], None], str]:
    vendor = {"postgresql": "postgres"}.get(connection.vendor, connection.vendor)

    def execute(sql: str, document: str | None) -> Any:
        # Django numbers no parameters, so one that is used twice is passed twice.
        mark = "$1" if vendor == "postgres" else "?1"
        values = [document] * sql.count(mark)
        with connection.cursor() as cursor:
            cursor.execute(sql.replace("%", "%%").replace(mark, "%s"), values or None)
            return cursor.fetchall() if cursor.description else []

    return execute, _nothing, vendor


_ADAPTERS: dict[str, Adapter] = {
    "sqlite3.Connection": _sqlite3,
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    "psycopg.Connection": _psycopg,
    "psycopg.AsyncConnection": _psycopg_async,
    "sqlalchemy.Connection": _sqlalchemy,
    "sqlalchemy.Session": _sqlalchemy,
    "sqlalchemy.scoped_session": _sqlalchemy,
    "sqlalchemy.AsyncConnection": _sqlalchemy_async,
    "sqlalchemy.AsyncSession": _sqlalchemy_async,
    "sqlalchemy.async_scoped_session": _sqlalchemy_async,
    "django.ConnectionProxy": _django,
    "django.BaseDatabaseWrapper": _django,
}
