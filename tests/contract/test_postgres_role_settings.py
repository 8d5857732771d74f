"""Settings of a role or a database that are meant for people's sessions don't change what the engine does."""

import asyncio

import asyncpg
import psycopg
import pytest

from tests.contract.relational import RelationalDatabase
from tests.servers import PgBouncer, PostgresServer
from treadle import Queue
from treadle.model.errors import StoreUnavailable
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


async def test_a_lock_timeout_of_the_database_fails_no_read(postgres_database: RelationalDatabase) -> None:
    with psycopg.connect(postgres_database.url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET lock_timeout = 1'.encode())
    bench = Workbench(postgres_database)
    await bench.open()
    blocker = await asyncpg.connect(postgres_database.url)
    try:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("LOCK TABLE treadle.later IN ACCESS EXCLUSIVE MODE")
        reading = asyncio.create_task(bench.store.advance())
        done, _ = await asyncio.wait([reading], timeout=0.2)
        assert not done, "it waits for the lock"
        await transaction.rollback()
        assert (await reading).promoted == 0
    finally:
        await blocker.close()
        await bench.close()


async def test_a_read_behind_a_pooler_that_a_lock_timeout_ends_can_be_made_again(
    migrated_template: str, postgres_server: PostgresServer, pgbouncer: PgBouncer
) -> None:
    with postgres_server.database(migrated_template) as name:
        blocker = await asyncpg.connect(postgres_server.url(name))
        await blocker.execute(f'ALTER DATABASE "{name}" SET lock_timeout = 1')
        try:
            async with Queue(pgbouncer.url(name)) as queue:
                async with blocker.transaction():
                    await blocker.execute("LOCK TABLE treadle.later IN ACCESS EXCLUSIVE MODE")
                    with pytest.raises(StoreUnavailable, match="lock timeout"):
                        await queue.store.advance()
                assert (await queue.store.advance()).promoted == 0
        finally:
            await blocker.close()
