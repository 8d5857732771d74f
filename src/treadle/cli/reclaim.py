"""`treadle reclaim`: reclaim the jobs of lost workers now."""

from __future__ import annotations

import asyncio

from treadle.cli import options
from treadle.cli.database import existing, named_database
from treadle.cli.output import print_json, say


def reclaim(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Take back the jobs of dead workers, after their lease has expired.

    Workers do this every few seconds. Jobs with attempts left are pending again, the others expired.
    """

    async def take_back() -> tuple[int, str]:
        async with existing(db) as queue:
            return await queue.reclaim(), named_database(queue, db)

    count, where = asyncio.run(take_back())
    if as_json:
        print_json({"reclaimed": count})
    else:
        say(f"took back {count} {'job' if count == 1 else 'jobs'}{where}")
