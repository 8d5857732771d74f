"""NOTIFY wakes other processes; whatever becomes of the connection that listens."""

import asyncio
import logging
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.contract.relational import RelationalDatabase
from treadle.lifecycle import Completed
from treadle.store.postgres import PostgresStore
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
        assert store.link.listening
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
        await bench.store.cancel([job.id], "")
        await eventually(lambda: "cancel" in heard)

    async def test_an_ending_wakes_another_process(self, bench: Workbench, elsewhere: PostgresStore) -> None:
        """Of a plain job it is told in this process only: it would cost a NOTIFY for every batch."""
        await bench.enqueue(1, dedupe_key="d")
        job = await bench.claim_one()
        heard = await self.listening(elsewhere)
        await bench.settle(job, Completed())
        await eventually(lambda: "ended" in heard)

    async def test_many_enqueues_are_one_notification(self, bench: Workbench, postgres_url: str) -> None:
        heard: list[str] = []
        listener = await asyncpg.connect(postgres_url)
        await listener.add_listener("treadle", lambda *args: heard.append(args[-1]))
        await asyncio.gather(*(bench.store.insert([new_job()]) for _ in range(200)))
        await eventually(lambda: bool(heard))
        assert len(heard) < 100
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
        await eventually(lambda: not elsewhere.link.listening)
        await eventually(lambda: elsewhere.link.listening)
        await eventually(lambda: "ready" in heard)  # what was missed meanwhile is worth a look
        heard.clear()
        await bench.store.insert([new_job()])
        await eventually(lambda: "ready" in heard)

    async def test_a_listener_that_cannot_connect_tries_again(
        self, bench: Workbench, postgres_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "treadle.postgres")
        store = PostgresStore(postgres_url, stale_after_ms=7 * DAY)
        await store.open()
        store.link.url = f"{postgres_url}_nowhere"
        heard: list[str] = []
        store.subscribe(heard.append)
        await eventually(lambda: "listen failed" in caplog.text)
        assert not store.link.listening
        store.link.url = postgres_url
        await eventually(lambda: store.link.listening)
        await eventually(lambda: "ready" in heard)
        await store.close()

    async def test_closing_ends_the_listener(self, bench: Workbench, postgres_url: str) -> None:
        store = PostgresStore(f"{postgres_url}?application_name=short", stale_after_ms=7 * DAY)
        await store.open()
        await self.listening(store)
        await store.close()

        async def gone() -> bool:
            rows = await bench.store.query(  # type: ignore[attr-defined]
                "SELECT 1 FROM pg_stat_activity WHERE application_name = 'short'", []
            )
            return not rows

        await eventually(gone)
