"""PostgreSQL goes away at the worst moment: the truth is read again, never assumed."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable

import asyncpg
import psycopg
import pytest

from tests.contract.proxy import COMMITTING, Proxy, running
from tests.contract.relational import RelationalDatabase
from treadle.model.errors import ConcurrencyRejected, InvalidInput, KeyReused, StoreUnavailable
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed
from treadle.queue import steering
from treadle.store.postgres.pools import Pools
from treadle.store.postgres.store import TRIES, PostgresStore
from treadle.store.values import Claimed, Inserted, NewJob, Wants
from treadle.store.views import Listing
from treadle.testing.contract import ContractPart
from treadle.testing.contract.racing import FULL
from treadle.testing.workbench import DAY, LEASES_ONLY, Workbench, eventually, new_job, settlement

INSERT = running("INSERT INTO treadle.jobs")
CLAIM = running("INSERT INTO treadle.running")
SETTLE = running("INSERT INTO treadle.outcomes")


@pytest.fixture
def database(postgres_database: RelationalDatabase) -> RelationalDatabase:
    return postgres_database


@pytest.fixture
def postgres_url(postgres_database: RelationalDatabase) -> str:
    return postgres_database.url


@pytest.mark.fault
class TestLostAtCommit(ContractPart):
    """Through a proxy that cuts the connection when a statement or its COMMIT is under way."""

    @pytest.fixture
    async def proxy(self, bench: Workbench, postgres_url: str) -> AsyncIterator[Proxy]:
        async with Proxy(postgres_url) as proxy:
            yield proxy

    @pytest.fixture
    async def store(self, proxy: Proxy) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(proxy.url, stale_after_ms=7 * DAY)
        await store.open()
        yield store
        await store.close()

    @pytest.mark.parametrize("forward", [True, False], ids=["its answer is lost", "it is lost"])
    async def test_a_plain_enqueue(self, bench: Workbench, proxy: Proxy, store: PostgresStore, forward: bool) -> None:
        await store.insert([new_job()])  # the lane is known
        jobs = [new_job() for _ in range(3)]
        with proxy.lose(INSERT, forward=forward):
            answers = await store.insert(jobs)
        assert all(isinstance(answer, Inserted) and answer.existing_id is None for answer in answers)
        assert await bench.statuses([job.id for job in jobs]) == [Status.PENDING] * 3
        assert await bench.store.count(Listing()) == 4

    @pytest.mark.parametrize("forward", [True, False], ids=["its answer is lost", "it is lost"])
    async def test_an_enqueue_with_keys(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore, forward: bool
    ) -> None:
        job = new_job(idempotency_key="k", dedupe_key="d", limit=Limit("g", "queue_same_scope", 1))
        with proxy.lose(COMMITTING, forward=forward):
            (answer,) = await store.insert([job])
        assert isinstance(answer, Inserted)
        assert answer.existing_id is None
        assert await bench.claimable() == [job.id]

    @pytest.mark.parametrize("keys", [{}, {"idempotency_key": "k"}], ids=["plain", "keyed"])
    async def test_an_enqueue_with_its_commit_still_on_its_way(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore, keys: dict[str, str]
    ) -> None:
        """The client is told of the loss before the server has committed: what it looks for is not there yet."""
        await store.insert([new_job()])
        jobs = [new_job(**keys), new_job(topic="other", dedupe_key="d")]
        with proxy.lose(COMMITTING, delay=0.05):
            answers = await store.insert(jobs)
        assert all(isinstance(answer, Inserted) and answer.existing_id is None for answer in answers), answers
        assert await bench.store.count(Listing()) == 3

    @pytest.mark.parametrize("forward", [True, False], ids=["its answer is lost", "it is lost"])
    async def test_a_batch_of_which_some_are_refused(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore, forward: bool
    ) -> None:
        """Every caller gets the right answer for its own job."""
        first = await bench.enqueue_one(idempotency_key="taken")
        gate = Limit("g", "reject_same_scope", 1)
        batch: list[NewJob] = [
            new_job(idempotency_key="taken"),
            new_job(),
            new_job(idempotency_key="taken", payload='{"other": 1}'),
            new_job(limit=gate),
            new_job(limit=gate),
            new_job(dedupe_key="d"),
            new_job(dedupe_key="d"),
        ]
        with proxy.lose(COMMITTING, forward=forward):
            answers = await store.insert(batch, atomic=False)
        kinds = [answer.existing_id if isinstance(answer, Inserted) else type(answer) for answer in answers]
        assert kinds == [first, None, KeyReused, None, ConcurrencyRejected, None, batch[5].id]
        made = [job.id for job, kind in zip(batch, kinds, strict=True) if kind is None]
        assert sorted(job.id for job in await bench.store.list(Listing())) == sorted([first, *made])

    @pytest.mark.parametrize("delay", [0, 0.05])
    async def test_the_ending_of_plain_jobs(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore, delay: float
    ) -> None:
        ids = await bench.enqueue(3)
        jobs = await bench.claim(3)
        endings = [settlement(job, Completed('"done"')) for job in jobs]
        with proxy.lose(SETTLE, delay=delay), pytest.raises(StoreUnavailable):
            await store.settle(endings)
        assert await store.settle(endings) == [], "an ending that is written was taken for lost"
        assert await bench.statuses(ids) == [Status.COMPLETED] * 3
        assert (await bench.store.stats()).counts["completed"] == 3

    @pytest.mark.parametrize("forward", [True, False], ids=["its answer is lost", "it is lost"])
    async def test_the_ending_of_a_job_with_keys(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore, forward: bool
    ) -> None:
        id = await bench.enqueue_one(dedupe_key="d")
        job = await bench.claim_one()
        ending = settlement(job, Failed("Boom", "Boom"))
        with proxy.lose(COMMITTING, forward=forward), pytest.raises(StoreUnavailable):
            await store.settle([ending])
        assert await store.settle([ending]) == []
        assert await bench.status(id) is Status.FAILED
        assert await bench.history(id) == ["failed"]
        assert (await bench.store.stats()).counts["failed"] == 1

    async def test_a_claim_with_a_lost_answer_is_given_back(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore
    ) -> None:
        (id,) = await bench.enqueue(1)
        lease = await bench.lease()
        with proxy.lose(CLAIM), pytest.raises(StoreUnavailable):
            await store.claim(lease, Wants(["mail"], [], 1, 1))
        await eventually(lambda: self.is_processing(bench, id))
        assert await store.release_unknown(lease, []) == 1
        assert (await bench.job(id)).attempt == 0

    async def is_processing(self, bench: Workbench, id: str) -> bool:
        return await bench.status(id) is Status.PROCESSING

    async def test_while_the_server_is_away_every_call_says_so(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore
    ) -> None:
        await store.insert([new_job()])
        assert proxy._server is not None
        proxy._server.close()
        proxy.cut_all()
        for call in (
            store.now(),
            store.insert([new_job()]),
            store.stats(),
            store.open_lease("w", 1),
            store.reap(LEASES_ONLY),
        ):
            with pytest.raises(StoreUnavailable):
                await call

    async def test_after_all_connections_were_cut_it_works_again(
        self, bench: Workbench, proxy: Proxy, store: PostgresStore
    ) -> None:
        await store.insert([new_job()])
        await store.now()
        proxy.cut_all()

        async def works() -> bool:
            try:
                await store.open_lease("w", 1000)
                await store.now()
            except StoreUnavailable:
                return False
            return True

        await eventually(works)
        await store.insert([new_job()])
        assert await bench.store.count(Listing()) == 2


@pytest.mark.fault
class TestConnecting(ContractPart):
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda url: url.rpartition("/")[0] + "/nowhere", 'database "nowhere" does not exist'),
            (lambda url: f"{url}?sslmode=perhaps", "sslmode"),
            (lambda url: "postgresql://ada:se/cret@localhost:port/jobs", "write @ : / in a password as %40 %3A %2F"),
        ],
        ids=["a database that is not there", "an option that there is not", "a password that is not quoted"],
    )
    async def test_what_no_waiting_will_mend_is_bad_input(
        self, postgres_url: str, change: Callable[[str], str], said: str
    ) -> None:
        with pytest.raises(InvalidInput) as refusal:
            await PostgresStore(change(postgres_url), stale_after_ms=DAY).open()
        assert said in str(refusal.value)
        assert "cret" not in str(refusal.value)

    async def test_an_unexpected_error_says_what_it_is(self, postgres_url: str) -> None:
        with pytest.raises(asyncpg.UndefinedObjectError, match="no_such_setting"):
            await PostgresStore(f"{postgres_url}?no_such_setting=1", stale_after_ms=DAY).open()

    async def test_behind_a_pooler_the_plan_settings_travel_with_each_transaction(self, postgres_url: str) -> None:
        pools = Pools(postgres_url)
        await pools.open()
        pools.pooled = True
        ((seqscan,),) = await pools.fetch("SELECT current_setting('enable_seqscan')")
        async with pools.acquire() as connection:
            outside = await connection.fetchval("SELECT current_setting('enable_seqscan')")
        await pools.close()
        assert (seqscan, outside) == ("off", "on")
        with pytest.raises(StoreUnavailable, match="not open"):
            await pools.fetch("SELECT 1")

    async def test_a_transaction_that_fails_again_and_again_is_given_up(
        self, bench: Workbench, database: RelationalDatabase
    ) -> None:
        await database.execute(
            "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM nextval('tries'); RAISE 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END $$",
            "CREATE SEQUENCE tries",
            "CREATE TRIGGER deadlock BEFORE INSERT ON treadle.leases FOR EACH ROW EXECUTE FUNCTION deadlock()",
        )
        with pytest.raises(StoreUnavailable, match="gave up on a transaction: deadlock detected"):
            await bench.lease()
        assert await database.execute("SELECT last_value FROM tries") == [(TRIES,)]


class TestKilledBackends(ContractPart):
    async def test_every_call_succeeds_or_says_that_the_store_is_away(
        self, bench: Workbench, postgres_url: str
    ) -> None:
        """Backends are killed all the time; never a half state, and what was answered is there."""
        stores = [bench.store, *await bench.others(2)]
        until = time.monotonic() + (60 if FULL else 2)
        made: list[str] = []
        completed: list[str] = []
        refused = 0

        async def kill() -> None:
            async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as killer:
                while time.monotonic() < until:
                    await killer.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2"
                    )
                    await asyncio.sleep(random.uniform(0.005, 0.03))  # the moment of the next kill

        async def use(store: PostgresStore) -> None:
            nonlocal refused
            while time.monotonic() < until:
                try:
                    gate = random.choice([None, Limit("g", "queue_same_scope", 2)])
                    job = new_job(limit=gate, dedupe_key=random.choice([None, f"d{random.random()}"]))
                    await store.insert([job])
                    made.append(job.id)
                    lease = await store.open_lease("w", 60_000)
                    for claimed in (await store.claim(lease, Wants(["mail"], [], 2, 2))).jobs:
                        if not await store.settle([settlement(claimed, Completed())]):
                            completed.append(claimed.id)
                    await steering.cancel(store, [random.choice(made)], "")
                    await store.advance()
                except StoreUnavailable:
                    refused += 1

        await asyncio.gather(kill(), *(use(store) for store in stores * 2 if isinstance(store, PostgresStore)))
        fresh = await bench.another()
        jobs = await fresh.get(made)
        assert None not in jobs, "an answered enqueue is gone"
        done = [job.status for job in await fresh.get(completed) if job]
        assert done == [Status.COMPLETED] * len(completed)
        assert refused > 0, "nothing was killed"
        assert completed, "nothing was done"


class TestTidyingManyKeys(ContractPart):
    async def test_a_key_that_is_used_while_others_are_tidied_away_is_counted_right(
        self, bench: Workbench, database: RelationalDatabase
    ) -> None:
        """A count may be dropped after a claim has made sure of it and before it locks it."""
        other, lease = await bench.another(), await bench.lease()
        for _ in range(200 if FULL else 15):
            await database.execute(
                "INSERT INTO {limits} SELECT 'empty' || i, 0 FROM generate_series(1, 900) i ON CONFLICT DO NOTHING",
                "INSERT INTO {limits} VALUES ('zz', 0) ON CONFLICT DO NOTHING",
            )
            await bench.enqueue_one(limit=Limit("zz", "queue_same_scope", 1))

            async def claim() -> list[Claimed]:
                await asyncio.sleep(random.uniform(0, 0.006))  # somewhere in the tidying
                return await bench.claim(1, lease=lease)

            jobs, _ = await asyncio.gather(claim(), other.tidy())
            jobs = jobs or await bench.claim(1, lease=lease)
            assert await database.execute("SELECT running FROM {limits} WHERE key = 'zz'") == [(1,)]
            assert await bench.settle(jobs[0], Completed())
