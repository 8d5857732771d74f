"""Which database a command talks to, and how it is opened."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from treadle.errors import SchemaMismatch

if TYPE_CHECKING:
    from treadle.queue import Queue


@contextlib.asynccontextmanager
async def writable(db: str | None) -> AsyncIterator[Queue]:
    """The queue behind `--db`, made and brought up to date if need be."""
    from treadle.queue import Queue

    async with Queue(db) as queue:
        yield queue


@contextlib.asynccontextmanager
async def existing(db: str | None) -> AsyncIterator[Queue]:
    """The queue behind `--db` as it is: whoever only looks makes no file and changes no schema."""
    from treadle.queue import Queue

    queue = Queue(db, migrate=False)
    require_database(queue)
    async with queue:
        yield queue


def require_database(queue: Queue) -> None:
    from treadle.connect import database_exists, shown

    if not database_exists(queue.url):
        raise SchemaMismatch(
            f"{shown(queue.url)} does not exist; name another database with --db, or make it with treadle migrate"
        )
