"""Behind PgBouncer in transaction mode no client keeps a session; everything still works, by polling."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.contract.relational import RelationalDatabase
from tests.servers import PgBouncer, PostgresServer
from treadle.model.status import Status
from treadle.policy.lifecycle import Completed, Failed
from treadle.queue import steering
from treadle.store.postgres.store import PostgresStore
from treadle.store.views import Listing
from treadle.testing import contract
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, Workbench, eventually


@pytest.fixture
def database(
    migrated_template: str, postgres_server: PostgresServer, pgbouncer: PgBouncer
) -> Iterator[RelationalDatabase]:
    with postgres_server.database(migrated_template) as name:
        yield RelationalDatabase(pgbouncer.url(name))


class TestBehindPgBouncer(ContractPart):
    async def test_it_is_found_out_by_itself(self, bench: Workbench) -> None:
        assert isinstance(bench.store, PostgresStore)
        assert bench.store.pools.pooled
        bench.store.subscribe(lambda _: None)
        assert not bench.store.notifier.listening
        findings = {finding.check: finding for finding in await bench.store.examine()}
        assert findings["listen"].level == "warn"

    async def test_a_direct_connection_is_no_pooler(self, postgres_url: str) -> None:
        store = PostgresStore(postgres_url, stale_after_ms=1)
        await store.open()
        assert not store.pools.pooled
        await store.close()

    async def test_a_whole_life(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1, idempotency_key="k", dedupe_key="d", delay_ms=1)
        await eventually(bench.promoted)
        job = await bench.claim_one()
        assert await bench.store.renew(job.lease, HOUR)
        assert await bench.settle(job, Failed("Boom", "Boom", retry_in_ms=1))
        await eventually(bench.promoted)
        await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        assert len(await bench.reap()) == 1
        await steering.cancel(bench.store, [id], "")
        await steering.requeue(bench.store, [id])
        assert await bench.settle(await bench.claim_one(), Completed('"done"'))
        assert await bench.history(id) == ["retrying", "reclaimed", "cancelled", "requeued"]
        assert (await bench.job(id)).result_value == "done"

    async def test_many_concurrent_clients_with_different_statements(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(5)]
        (id,) = await bench.enqueue(1)

        async def look(i: int) -> None:
            store = stores[i % len(stores)]
            for turn in range(10):
                match (i + turn) % 5:
                    case 0:
                        assert (await store.stats()).counts["pending"] == 1
                    case 1:
                        assert [job.id for job in await store.list(Listing(status=Status.PENDING))] == [id]
                    case 2:
                        assert await store.count(Listing()) == 1
                    case 3:
                        assert await store.migrate(dry_run=True) == []
                    case _:
                        assert await store.advance() == (0, [], None)

        await asyncio.gather(*(look(i) for i in range(24)))

    async def test_the_plan_settings_travel_with_each_transaction(self, bench: Workbench) -> None:
        assert isinstance(bench.store, PostgresStore)
        async with bench.store.pools.transaction() as connection:
            assert await connection.fetchval("SHOW enable_seqscan") == "off"
            assert await connection.fetchval("SHOW enable_hashjoin") == "off"
        async with bench.store.pools.acquire() as connection:
            assert await connection.fetchval("SHOW enable_seqscan") == "on", "they were left behind"


class TestClaim(contract.ClaimContract): ...


class TestQueuePolicy(contract.QueuePolicyContract): ...


class TestManyClaimers(contract.ManyClaimersContract): ...
