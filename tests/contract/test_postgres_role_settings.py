"""Settings of a role or a database that are meant for people's sessions don't change what the engine does."""

import asyncio

import asyncpg
import psycopg
import pytest

from tests.contract.relational import RelationalDatabase
from treadle.policy.lifecycle import Completed, Failed, Outcome
from treadle.testing.workbench import Workbench


@pytest.mark.parametrize("outcome", [Completed('"done"'), Failed("Boom", "Boom")], ids=["completed", "failed"])
async def test_a_lock_timeout_of_the_database_fails_no_settlement(
    postgres_database: RelationalDatabase, outcome: Outcome
) -> None:
    with psycopg.connect(postgres_database.url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET lock_timeout = 1'.encode())
    bench = Workbench(postgres_database)
    await bench.open()
    try:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        blocker = await asyncpg.connect(postgres_database.url)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT 1 FROM treadle.running WHERE n = $1 FOR UPDATE", job.n)
        settling = asyncio.create_task(bench.settle(job, outcome))
        done, _ = await asyncio.wait([settling], timeout=0.2)
        assert not done, "it waits for the lock"
        await transaction.rollback()
        await blocker.close()
        assert await settling
        assert await bench.status(id) == ("completed" if isinstance(outcome, Completed) else "failed")
    finally:
        await bench.close()
