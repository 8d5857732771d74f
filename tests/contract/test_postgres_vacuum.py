"""After an old snapshot has gone, the leader removes the dead rows at the heads of the lanes."""

import asyncio
import json
from collections.abc import Iterator

import psycopg
import pytest

from tests.contract.relational import RelationalDatabase
from tests.servers import PgBouncer, PostgresServer
from tests.waiting import until
from treadle import Queue, Worker
from treadle.policy.lifecycle import Completed
from treadle.store.postgres import vacuum
from treadle.store.postgres.store import PostgresStore
from treadle.store.values import Graces
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import Workbench, settlement

# A look at the first row of a lane goes down the index and to one row of the table.
FEW_PAGES = 8


def pages_to_the_head(url: str) -> int:
    """How many pages a claim looks at before it finds the first job of a lane."""
    sql = "SELECT n FROM treadle.ready WHERE lane = 1 ORDER BY rank, run_at, n LIMIT 1"
    with psycopg.connect(url) as connection:
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET enable_sort = off")
        answer = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}").fetchone()
    assert answer
    found = answer[0] if isinstance(answer[0], list) else json.loads(answer[0])
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def churn(bench: Workbench, jobs: int) -> None:
    """Jobs that come and go; one is left."""
    for _ in range(jobs // 500):
        await bench.enqueue(500)
        await bench.store.settle([settlement(job, Completed()) for job in await bench.claim(500)])
    await bench.enqueue(1)


class TestVacuum(ContractPart):
    @pytest.fixture
    def database(self, postgres_database: RelationalDatabase) -> RelationalDatabase:
        return postgres_database

    async def test_claims_are_cheap_again_once_an_old_snapshot_has_gone(
        self, bench: Workbench, database: RelationalDatabase
    ) -> None:
        mine = bench.store
        assert isinstance(mine, PostgresStore)
        with psycopg.connect(database.url) as old:
            old.execute("SET default_transaction_isolation = 'repeatable read'")
            old.execute("COMMIT")
            old.execute("SELECT count(*) FROM treadle.jobs")
            await churn(bench, vacuum.MANY_DEAD + 1000)
            await mine.vacuum()
            assert pages_to_the_head(database.url) > 5 * FEW_PAGES, "nothing can be removed yet"
        mine._vacuum._rest_until = 0.0

        async def cheap() -> bool:
            await mine.vacuum()  # as soon as the server's statistics tell of the dead rows
            return pages_to_the_head(database.url) <= FEW_PAGES

        await until(cheap, 60)

    async def test_a_vacuum_rests_much_longer_than_it_takes(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = bench.store
        assert isinstance(mine, PostgresStore)
        monkeypatch.setattr(vacuum, "REST_SHARE", 10**9)
        await mine.vacuum()
        monkeypatch.setattr(mine.pools, "acquire", None)  # not even looked at
        await mine.vacuum()

    async def test_the_leader_sees_to_it(
        self, bench: Workbench, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vacuum, "MANY_DEAD", 1)
        await churn(bench, 500)
        async with Queue(database.url) as queue:
            worker = Worker(queue, topics=[], reap_interval="100ms")
            running = asyncio.create_task(worker.run())
            await until(lambda: vacuumed(database), 30)
            worker.stop()
            await running


async def vacuumed(database: RelationalDatabase) -> bool:
    rows = await database.execute(
        "SELECT 1 FROM pg_stat_user_tables WHERE schemaname = 'treadle' AND relname = 'ready' "
        "AND last_vacuum IS NOT NULL"
    )
    return bool(rows)


class TestBehindPgBouncer(ContractPart):
    @pytest.fixture
    def database(
        self, migrated_template: str, postgres_server: PostgresServer, pgbouncer: PgBouncer
    ) -> Iterator[RelationalDatabase]:
        with postgres_server.database(migrated_template) as name:
            yield RelationalDatabase(pgbouncer.url(name))

    async def test_a_vacuum_is_no_transaction(
        self, bench: Workbench, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vacuum, "MANY_DEAD", 0)
        await bench.store.reap(Graces(0))
        rows = await database.execute(
            "SELECT count(*) FROM pg_stat_user_tables WHERE schemaname = 'treadle' AND last_vacuum IS NOT NULL"
        )
        assert rows[0][0] == 4
