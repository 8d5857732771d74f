"""What a claim costs does not grow with the priorities and lanes that were ever used."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.plans.test_sqlite_plans import QUERIES
from tests.servers import PostgresServer
from treadle.store.postgres.claim_statement import claim_statement, claim_values
from treadle.store.postgres.store import PostgresStore
from treadle.store.sqlite import hot
from treadle.store.sqlite.store import SqliteStore
from treadle.store.values import Wants
from treadle.testing.workbench import DAY, HOUR, new_job

SMALL, LARGE = 500, 4_000
WANTS = Wants(["mail", "other"], ["media"], 20, 20)


async def fill(store: Any, kind: str, size: int) -> int:
    """Many priorities in use, or many lanes: of other topics, and of capabilities that no worker has."""
    if kind == "priorities":
        await store.insert([new_job(priority=n) for n in range(size)])
    else:
        lanes = [new_job(topic=f"t{n}", delay_ms=HOUR) for n in range(size // 2)]
        lanes += [new_job(capability=f"c{n}", delay_ms=HOUR) for n in range(size // 2)]
        await store.insert(lanes)
    await store.insert([new_job(topic=topic) for topic in ("mail", "other") for _ in range(30)])
    return int(await store.open_lease("w", HOUR))


@pytest.mark.parametrize("kind", ["priorities", "lanes"])
def test_on_sqlite(tmp_path: Path, kind: str) -> None:
    steps = [_sqlite_steps(tmp_path / f"{size}.db", kind, size) for size in (SMALL, LARGE)]
    assert steps[1] <= 1.1 * steps[0] + 100, f"{steps[0]} steps with {SMALL} {kind}, {steps[1]} with {LARGE}"


def _sqlite_steps(path: Path, kind: str, size: int) -> int:
    async def make() -> int:
        store = SqliteStore(path, stale_after_ms=7 * DAY)
        await store.open()
        lease = await fill(store, kind, size)
        await store.close()
        return lease

    lease, steps = asyncio.run(make()), 0
    with closing(SqliteStore(path, stale_after_ms=DAY).engine.connect()) as connection:

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection.execute("BEGIN IMMEDIATE")
        connection.set_progress_handler(step, 1)
        claim = hot.claim(connection, QUERIES, lease, WANTS, hot.Sizes())
        connection.set_progress_handler(None, 1)
        connection.execute("ROLLBACK")
    assert claim is not None
    assert len(claim.jobs) == 20
    return steps


@pytest.mark.parametrize("kind", ["priorities", "lanes"])
async def test_on_postgres(postgres_server: PostgresServer, migrated_template: str, kind: str) -> None:
    rows = [await _postgres_rows(postgres_server, migrated_template, kind, size) for size in (SMALL, LARGE)]
    assert rows[1] <= 1.1 * rows[0] + 20, f"{rows[0]} rows with {SMALL} {kind}, {rows[1]} with {LARGE}"


async def _postgres_rows(server: PostgresServer, template: str, kind: str, size: int) -> int:
    with server.database(template) as name:
        store = PostgresStore(server.url(name), stale_after_ms=7 * DAY)
        await store.open()
        try:
            lease = await fill(store, kind, size)
            async with store.pools.acquire() as connection:
                await connection.execute("ANALYZE")
                transaction = connection.transaction()
                await transaction.start()
                before = await _rows_read(connection)  # by what this connection did before
                topics, capabilities, types, *_ = wanted = claim_values(WANTS)
                lanes = len(topics) * len(capabilities) * len(types)
                found = await connection.fetchrow(claim_statement(lanes), lease, *wanted, *[[]] * 4)
                read = await _rows_read(connection) - before
                await transaction.rollback()
            assert len(found[6]) == 20
            return read
        finally:
            await store.close()


async def _rows_read(connection: Any) -> int:
    return int(
        await connection.fetchval(
            "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_xact_user_tables "
            "WHERE schemaname = 'treadle'"
        )
    )
