"""`treadle doctor`: checks whether the database is fit for a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from treadle.cli import options
from treadle.cli.database import chosen
from treadle.cli.output import Column, listed, print_json, print_table, say, status
from treadle.model.errors import SchemaMismatch, TreadleError

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.store.views import Finding


def doctor(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Check the database, and say how to fix what is wrong.

    Changes nothing. Exits with 1 if a check fails; a warning does not fail.
    """
    from treadle.store.connect import shown

    queue = chosen(db, migrate=False)
    findings = asyncio.run(_examine(queue))
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        items = (
            {"check": one.check, "level": one.level, "message": one.message, "advice": one.advice} for one in findings
        )
        print_json(listed(items, database=shown(queue.url), ok=not failed))
    else:
        say(shown(queue.url))
        print_table(
            (Column("check"), Column("level"), Column("finding", flexible=True)),
            [
                [one.check, status(one.level), f"{one.message}\n{one.advice}" if one.advice else one.message]
                for one in findings
            ],
        )
    if failed:
        raise typer.Exit(1)


async def _examine(queue: Queue) -> list[Finding]:
    """The findings, or the error that prevented opening the store."""
    from treadle.queue.doctor import examine
    from treadle.store.connect import database_exists
    from treadle.store.views import Finding

    if not database_exists(queue.url):
        return [Finding("connection", "fail", "the database does not exist", "make it with treadle migrate")]
    store = queue.new_store()
    try:
        await store.open(migrate=False)
    except SchemaMismatch as mismatch:
        return [Finding("connection", "ok", "opens"), Finding("migrations", "fail", mismatch.message)]
    except TreadleError as error:
        return [Finding("connection", "fail", error.message)]
    try:
        return [
            *await examine(store, queue.settings, queue.key_file),
            Finding("migrations", "ok", "the schema is up to date"),
        ]
    finally:
        await store.close()
