"""`treadle migrate`: bring the schema up to date."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.database import chosen, existing, say_which
from treadle.cli.output import print_json, say
from treadle.model.errors import SchemaMismatch


def migrate(
    db: options.Db = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if a migration is missing.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Create the database, or bring its schema up to date.

    Safe to run from many processes. Queues and workers do the same when they open.
    """
    if check:
        missing = asyncio.run(_missing(db))
        if as_json:
            print_json({"missing": missing})
        else:
            say(f"missing: {', '.join(missing)}; run treadle migrate" if missing else "the schema is up to date")
        raise typer.Exit(1 if missing else 0)
    applied = asyncio.run(_migrate(db))
    if as_json:
        print_json({"applied": applied})
    else:
        say(f"applied {', '.join(applied)}" if applied else "the schema is up to date")


async def _migrate(db: str | None) -> list[str]:
    queue = chosen(db)
    say_which(queue, db)
    return await queue.migrate()


async def _missing(db: str | None) -> list[str]:
    try:
        async with existing(db):
            return []
    except SchemaMismatch as mismatch:
        missing: list[str] = mismatch.data.get("missing", [])
        if not missing:
            raise
        return missing
