"""A busy lane is claimed from a mark, not from its head: there lie the rows that an old snapshot still sees."""

import asyncio
from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from treadle.store import postgres
from treadle.store.postgres import PostgresStore
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import Workbench, new_job


@pytest.fixture
def database(postgres_database: RelationalDatabase) -> RelationalDatabase:
    return postgres_database


class TestMarks(ContractPart):
    @pytest.fixture
    def from_head(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Of each claim, whether it started at the head of its lane, which is made slow."""
        assert isinstance(bench.store, PostgresStore)
        fetch, claim = bench.store.link.fetch, bench.store.queries["claim"].sql
        seen: list[bool] = []

        async def slow_at_the_head(sql: str, *values: Any) -> list[Any]:
            if sql == claim:
                lanes = values[5]
                seen.append(not lanes)
                await asyncio.sleep(0 if lanes else 0.05)
            return await fetch(sql, *values)

        monkeypatch.setattr(bench.store.link, "fetch", slow_at_the_head)
        return seen

    async def test_a_look_from_the_head_is_the_rarer_the_longer_it_takes(
        self, bench: Workbench, from_head: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres, "MARK_SECONDS", 0.01)
        await bench.enqueue(101)
        lease = await bench.lease()
        for _ in range(100):
            assert len((await bench.store.claim(lease, ["mail"], [], 1, 1)).jobs) == 1
        assert from_head[0]
        assert from_head.count(True) < 10

    async def test_what_others_put_in_front_of_the_mark_is_found_at_the_next_look(
        self, bench: Workbench, from_head: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres, "MARK_SECONDS", 0.01)
        monkeypatch.setattr(postgres, "LOOK_SHARE", 0)
        await bench.enqueue(100)
        lease = await bench.lease()
        await bench.store.claim(lease, ["mail"], [], 1, 1)
        other = await bench.another()
        await other.insert([older := new_job(run_at=1)])
        claimed: list[str] = []
        while older.id not in claimed:
            claim = await bench.store.claim(lease, ["mail"], [], 1, 1)
            claimed += [job.id for job in claim.jobs]
            await asyncio.sleep(0.005)
        assert len(claimed) < 50
        assert from_head.count(True) > 1
