"""Selects the database of a command and opens it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from treadle.cli import target
from treadle.cli.output import note
from treadle.model.errors import SchemaMismatch

if TYPE_CHECKING:
    from treadle.queue import Queue

T = TypeVar("T")


@contextlib.asynccontextmanager
async def writable(db: str | None, *, create: bool = True) -> AsyncIterator[Queue]:
    """The queue with an up-to-date schema. `create=False` makes no database file, because a job in a mistyped one would
    never run.
    """
    queue = chosen(db)
    if not create:
        require_database(queue, "make it with --create")
    say_which(queue, db)
    async with queue:
        yield queue


@contextlib.asynccontextmanager
async def existing(db: str | None) -> AsyncIterator[Queue]:
    """The queue without changes: a read-only command creates no file and changes no schema."""
    queue = chosen(db, migrate=False)
    require_database(queue, "make it with treadle migrate")
    say_which(queue, db)
    async with queue:
        yield queue


def ask(db: str | None, action: Callable[[Queue], Awaitable[T]]) -> T:
    """What `action` answers about the command's queue."""

    async def answer() -> T:
        async with existing(db) as queue:
            return await action(queue)

    return asyncio.run(answer())


def chosen(db: str | None, *, migrate: bool = True) -> Queue:
    """The queue that the command names, in the database of --db if given."""
    from treadle.cli.loading import load_queue
    from treadle.queue import Queue
    from treadle.queue.listeners import silence

    silence()  # the program's listeners belong to its own processes, not to an operator's command
    named = target.named()
    if named is None:
        return Queue(db, migrate=migrate)
    return moved(load_queue(named), named, db, migrate=migrate)


def moved(queue: Queue, named: str, db: str | None, *, migrate: bool = True) -> Queue:
    """A queue from the user's code. --db wins over its URL, and its URL over TREADLE_DB, with a note."""
    queue.use(db, migrate=migrate)
    set_outside = os.environ.get("TREADLE_DB")
    if db is None and set_outside and set_outside != queue.url:
        from treadle.store.connect import shown

        note(f"{named} names its own database, {shown(queue.url)}; TREADLE_DB does not count, --db would")
    return queue


def say_which(queue: Queue, db: str | None) -> None:
    """Show it at a terminal, unless the command named the database."""
    if db is None and sys.stderr.isatty():
        note(f"using{named_database(queue, db, ' ')}")


def named_database(queue: Queue, db: str | None, between: str = " in ") -> str:
    """An addition to a sentence about the queue; empty if the command named the database."""
    from treadle.store.connect import shown

    return "" if db else f"{between}{shown(queue.url)}"


def require_database(queue: Queue, advice: str) -> None:
    from treadle.store.connect import database_exists, shown

    if not database_exists(queue.url):
        raise SchemaMismatch(f"{shown(queue.url)} does not exist; name another with --db or MODULE:QUEUE, or {advice}")
