"""Handlers that use `ctx.db` and `ctx.http`, in every kind. A process has to find them by name."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from treadle import Context


def note(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    """Write a row and read it again, blocking."""
    if isinstance(ctx.db, sqlite3.Connection):
        with ctx.db:
            ctx.db.execute("INSERT INTO notes (text) VALUES (?)", (payload["text"],))
        [found] = ctx.db.execute("SELECT text FROM notes WHERE text = ?", (payload["text"],)).fetchone()
    else:
        assert ctx.db.execute("INSERT INTO notes (text) VALUES ($1)", payload["text"]) == "INSERT 0 1"
        found = ctx.db.fetchval("SELECT text FROM notes WHERE text = $1", payload["text"])
        assert ctx.db.fetchrow("SELECT count(*) AS n FROM notes")["n"] >= 1
        assert len(ctx.db.fetch("SELECT 1 AS one UNION SELECT 2")) == 2
        ctx.db.executemany("UPDATE notes SET text = text WHERE text = $1", [(payload["text"],)])
    return {"found": found, "pid": os.getpid()}


async def note_async(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    """The same in a coroutine."""
    if isinstance(ctx.db, sqlite3.Connection):
        return note(ctx, payload)
    async with ctx.db.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO notes (text) VALUES ($1)", payload["text"])
    found = await ctx.db.fetchval("SELECT text FROM notes WHERE text = $1", payload["text"])
    return {"found": found, "pid": os.getpid()}


def note_and_fail(ctx: Context, payload: dict[str, Any]) -> None:
    if isinstance(ctx.db, sqlite3.Connection):
        with ctx.db:
            ctx.db.execute("INSERT INTO notes (text) VALUES ('lost')")
            raise ValueError("no")
    with ctx.db.acquire() as connection, connection.transaction():
        connection.execute("INSERT INTO notes (text) VALUES ('lost')")
        raise ValueError("no")


def note_and_enqueue(ctx: Context, payload: dict[str, Any]) -> str:
    """The row and the job together, or neither."""
    if isinstance(ctx.db, sqlite3.Connection):
        with ctx.db:
            return _together(ctx, ctx.db, "INSERT INTO notes (text) VALUES ('ours')", payload["fail"])
    with ctx.db.acquire() as connection, connection.transaction():
        return _together(ctx, connection, "INSERT INTO notes (text) VALUES ('ours')", payload["fail"])


def _together(ctx: Context, connection: Any, statement: str, fail: bool) -> str:
    connection.execute(statement)
    job = ctx.enqueue("follow", {"n": 1}, connection=connection)
    if fail:
        raise ValueError("no")
    return job.id


async def note_and_enqueue_async(ctx: Context, payload: dict[str, Any]) -> str:
    if isinstance(ctx.db, sqlite3.Connection):
        with ctx.db:
            ctx.db.execute("INSERT INTO notes (text) VALUES ('ours')")
            return await _followed(ctx, ctx.db, payload["fail"])
    async with ctx.db.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO notes (text) VALUES ('ours')")
        return await _followed(ctx, connection, payload["fail"])


async def _followed(ctx: Context, connection: Any, fail: bool) -> str:
    job = await ctx.enqueue("follow", {"n": 1}, connection=connection)
    if fail:
        raise ValueError("no")
    return job.id


def call(ctx: Context, payload: dict[str, Any]) -> list[Any]:
    """GET, and POST with a body, blocking."""
    got = ctx.http.get(payload["url"], params={"q": "1"})
    posted = ctx.http.post(payload["url"], json={"a": 1})
    missing = ctx.http.get(payload["url"] + "/missing")
    try:
        missing.raise_for_status()
    except Exception as error:
        refused = type(error).__name__
    return [got.status, got.json(), posted.json(), missing.ok, missing.text(), refused, got.headers["X-Kind"]]


async def call_async(ctx: Context, payload: dict[str, Any]) -> list[Any]:
    async with ctx.http.get(payload["url"], params={"q": "1"}) as got:
        first = await got.json()
    async with ctx.http.post(payload["url"], json={"a": 1}) as posted:
        second = await posted.json()
    async with ctx.http.get(payload["url"] + "/missing") as missing:
        try:
            missing.raise_for_status()
        except Exception as error:
            refused = type(error).__name__
        text = await missing.text()
    return [got.status, first, second, missing.ok, text, refused, got.headers["X-Kind"]]
