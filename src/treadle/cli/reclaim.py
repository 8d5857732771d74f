"""`treadle reclaim`: reclaim the jobs of lost workers now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli import options
from treadle.cli.database import ask, named_database
from treadle.cli.output import print_json, say

if TYPE_CHECKING:
    from treadle.queue import Queue


def reclaim(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Take back the jobs of dead workers, after their lease has expired.

    Workers do this every few seconds. Jobs with attempts left are pending again, the others expired.
    """

    async def take_back(queue: Queue) -> tuple[int, str]:
        return await queue.reclaim(), named_database(queue, db)

    count, where = ask(db, take_back)
    if as_json:
        print_json({"reclaimed": count})
    else:
        say(f"took back {count} {'job' if count == 1 else 'jobs'}{where}")
