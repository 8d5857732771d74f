"""NOTIFY wakes other processes, even if the listening connection is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.contract.proxy import Proxy
from tests.contract.relational import RelationalDatabase
from treadle.policy.lifecycle import Completed
from treadle.queue import steering
from treadle.store.postgres import notifier
from treadle.store.postgres.store import PostgresStore
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import DAY, HOUR, Workbench, eventually, new_job


@pytest.fixture
def database(postgres_database: RelationalDatabase) -> RelationalDatabase:
    return postgres_database


@pytest.fixture
def postgres_url(postgres_database: RelationalDatabase) -> str:
    return postgres_database.url


class TestWakeUps(ContractPart):
    @pytest.fixture
    async def elsewhere(self, bench: Workbench, postgres_url: str) -> AsyncIterator[PostgresStore]:
        """A store that shares nothing with the bench's but the database, as in another process."""
        store = PostgresStore(f"{postgres_url}?application_name=elsewhere", stale_after_ms=7 * DAY)
        await store.open()
        assert isinstance(bench.store, PostgresStore)
        assert store.hub is not bench.store.hub
        yield store
        await store.close()

    async def listening(self, store: PostgresStore) -> list[str]:
        heard: list[str] = []
        store.subscribe(heard.append)
        await eventually(lambda: "ready" in heard)  # told to everybody when it begins to listen
        assert store.notifier.listening
        heard.clear()
        return heard

    async def test_new_work_wakes_another_process(self, bench: Workbench, elsewhere: PostgresStore) -> None:
        heard = await self.listening(elsewhere)
        await bench.store.insert([new_job()])
        await eventually(lambda: "ready" in heard)
        await bench.store.insert([new_job(delay_ms=HOUR)])
        await eventually(lambda: "later" in heard)

    async def test_a_cancel_wakes_another_process(self, bench: Workbench, elsewhere: PostgresStore) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        heard = await self.listening(elsewhere)
        await steering.cancel(bench.store, [job.id], "")
        await eventually(lambda: "cancel" in heard)

    async def test_an_ending_wakes_another_process(self, bench: Workbench, elsewhere: PostgresStore) -> None:
        """The end of a plain job is announced in this process only, to save a NOTIFY for every batch."""
        await bench.enqueue(1, dedupe_key="d")
        job = await bench.claim_one()
        heard = await self.listening(elsewhere)
        await bench.settle(job, Completed())
        await eventually(lambda: "ended" in heard)

    async def test_many_enqueues_are_one_notification(self, bench: Workbench, postgres_url: str) -> None:
        heard: list[str] = []
        listener = await asyncpg.connect(postgres_url)
        try:
            await listener.add_listener("treadle", lambda *args: heard.append(args[-1]))
            await asyncio.gather(*(bench.store.insert([new_job()]) for _ in range(200)))
            await eventually(lambda: bool(heard))
            assert len(heard) < 100
        finally:
            await listener.close()

    async def test_a_dropped_listener_comes_back(
        self, bench: Workbench, elsewhere: PostgresStore, database: RelationalDatabase
    ) -> None:
        heard = await self.listening(elsewhere)
        killed = await database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
        )
        assert killed == [(True,)]
        await eventually(lambda: not elsewhere.notifier.listening)
        await eventually(lambda: elsewhere.notifier.listening)
        await eventually(lambda: "ready" in heard)  # a look finds what was missed in between
        heard.clear()
        await bench.store.insert([new_job()])
        await eventually(lambda: "ready" in heard)

    async def test_a_listener_with_a_silently_lost_connection_is_noticed(
        self, bench: Workbench, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(notifier, "CHECK_S", 0.1)
        monkeypatch.setattr(notifier, "ANSWER_S", 0.2)
        async with Proxy(postgres_url) as proxy:
            store = PostgresStore(proxy.url, stale_after_ms=7 * DAY)
            await store.open()
            heard = await self.listening(store)
            proxy.silence()
            await eventually(lambda: not store.notifier.listening)
            await eventually(lambda: store.notifier.listening)
            await eventually(lambda: "ready" in heard)  # a look finds what was missed in between
            heard.clear()
            await bench.store.insert([new_job()])
            await eventually(lambda: "ready" in heard)
            proxy.cut_all()
            await store.close()

    async def test_a_quiet_listener_stays_on_its_connection(
        self, elsewhere: PostgresStore, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(notifier, "CHECK_S", 0.02)
        await self.listening(elsewhere)

        async def asked() -> list[int]:
            rows = await database.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'elsewhere' AND query = 'SELECT 1'"
            )
            return [row[0] for row in rows]

        async def was_asked() -> bool:
            return bool(await asked())

        await eventually(was_asked)
        first = await asked()
        await asyncio.sleep(0.2)  # ten times
        assert await asked() == first
        assert elsewhere.notifier.listening

    async def test_a_listener_that_cannot_connect_tries_again(
        self, bench: Workbench, postgres_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "treadle.postgres")
        store = PostgresStore(postgres_url, stale_after_ms=7 * DAY)
        await store.open()
        store.pools.url = f"{postgres_url}_nowhere"
        heard: list[str] = []
        store.subscribe(heard.append)
        await eventually(lambda: "listen failed" in caplog.text)
        assert not store.notifier.listening
        store.pools.url = postgres_url
        await eventually(lambda: store.notifier.listening)
        await eventually(lambda: "ready" in heard)
        await store.close()

    async def test_closing_ends_the_listener(self, database: RelationalDatabase, postgres_url: str) -> None:
        store = PostgresStore(f"{postgres_url}?application_name=short", stale_after_ms=7 * DAY)
        await store.open()
        await self.listening(store)
        await store.close()

        async def gone() -> bool:
            return not await database.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'short'")

        await eventually(gone)
