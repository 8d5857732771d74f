"""The scheduler's look costs the same with 10,000 schedules as with ten: it reads what is due, by an index."""

import json
import sqlite3
from contextlib import closing

import asyncpg

from treadle import Queue, Schedule
from treadle.policy.schedule import KIND
from treadle.queue.schedules.records import body_of
from treadle.store.sql.queries import load
from treadle.store.sql.store import SqlStore

FEW, MANY = 10, 10_000
FAR_MS = 2**42
NOW_MS = 1_800_000_000_000
LOOK = json.dumps([{"kind": KIND, "before": NOW_MS, "top": 100}])


async def fill(queue: Queue, count: int) -> None:
    """Schedules of which three are due."""
    body = body_of(Schedule(id="s", topic="t", cron="@daily"))
    rows = [
        {"kind": KIND, "id": f"s{i}", "key": f"s{i}", "body": body, "due": NOW_MS - 1 if i < 3 else FAR_MS + i}
        for i in range(count)
    ]
    assert isinstance(queue.store, SqlStore)
    await queue.store._change("add_records", rows)


async def test_on_sqlite(sqlite_url: str) -> None:
    steps = {}
    async with Queue(sqlite_url) as queue:
        for count in (FEW, MANY):
            await fill(queue, count)
            steps[count] = _steps(sqlite_url.removeprefix("sqlite:///"))
    assert steps[MANY] <= steps[FEW] * 1.1


def _steps(path: str) -> int:
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(count, 1)
        found = connection.execute(load("sqlite")["due_records"].sql, [LOOK]).fetchall()
    assert len(found) == 3
    return counted


async def test_on_postgresql(postgres_url: str) -> None:
    async with Queue(postgres_url) as queue:
        await fill(queue, MANY)
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("ANALYZE treadle.records")
        sql = load("postgres")["due_records"].sql
        plan = "\n".join(
            row[0] for row in await connection.fetch(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {sql}", LOOK)
        )
    finally:
        await connection.close()
    assert "records_due" in plan
    assert "Seq Scan on records" not in plan
    assert "Rows Removed by Filter" not in plan
