"""A busy lane is claimed from a mark, not from its head: there lie the rows that an old snapshot still sees."""

import asyncio
from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from treadle.store.postgres import lane_marks
from treadle.store.postgres.claim_statement import claim_statement
from treadle.store.postgres.store import PostgresStore
from treadle.store.sql import scripts
from treadle.store.values import Wants
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import Workbench, eventually, new_job


@pytest.fixture
def database(postgres_database: RelationalDatabase) -> RelationalDatabase:
    return postgres_database


class TestMarks(ContractPart):
    @pytest.fixture
    def from_head(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Of each claim, whether it started at the head of its lane, which is made slow."""
        assert isinstance(bench.store, PostgresStore)
        fetch, claim = bench.store.pools.fetch, claim_statement(1)
        seen: list[bool] = []

        async def slow_at_the_head(sql: str, *values: Any) -> list[Any]:
            if sql == claim:
                lanes = values[7]
                seen.append(not lanes)
                await asyncio.sleep(0 if lanes else 0.05)  # how slow it is
            return await fetch(sql, *values)

        monkeypatch.setattr(bench.store.pools, "fetch", slow_at_the_head)
        return seen

    async def test_a_look_from_the_head_is_the_rarer_the_longer_it_takes(
        self, bench: Workbench, from_head: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lane_marks, "MARK_SECONDS", 0.01)
        await bench.enqueue(101)
        lease = await bench.lease()
        for _ in range(100):
            assert len((await bench.store.claim(lease, Wants(["mail"], [], 1, 1))).jobs) == 1
        assert from_head[0]
        assert from_head.count(True) < 10

    async def test_what_others_put_in_front_of_the_mark_is_found_at_the_next_look(
        self, bench: Workbench, from_head: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lane_marks, "MARK_SECONDS", 0.01)
        monkeypatch.setattr(lane_marks, "LOOK_SHARE", 0)
        await bench.enqueue(100)
        lease = await bench.lease()
        await bench.store.claim(lease, Wants(["mail"], [], 1, 1))
        other = await bench.another()
        await other.insert([older := new_job(run_at=1)])
        claimed: list[str] = []
        while older.id not in claimed:
            claim = await bench.store.claim(lease, Wants(["mail"], [], 1, 1))
            claimed += [job.id for job in claim.jobs]
            await asyncio.sleep(0.005)  # a few of them in the time of a mark
        assert len(claimed) < 50
        assert from_head.count(True) > 1

    async def test_after_a_quick_look_there_are_no_marks(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = bench.store
        assert isinstance(mine, PostgresStore)
        monkeypatch.setattr(lane_marks, "SLOW_LOOK_S", 3600.0)
        await bench.enqueue(10)
        lease = await bench.lease()
        for _ in range(8):
            await mine.claim(lease, Wants(["mail"], [], 1, 1))
            assert mine._marks.places == {}

    async def test_a_more_urgent_job_from_anywhere_drops_the_marks(
        self, bench: Workbench, from_head: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lane_marks, "MARK_SECONDS", 3600.0)
        mine = bench.store
        assert isinstance(mine, PostgresStore)
        mine.subscribe(lambda _: None)
        await eventually(lambda: mine.notifier.listening)
        await bench.enqueue(100)
        lease = await bench.lease()
        for _ in range(lane_marks.SLOW_LOOKS):
            await mine.claim(lease, Wants(["mail"], [], 1, 1))
        assert mine._marks.places
        other = await bench.another()
        await other.insert([urgent := new_job(priority=75)])
        await eventually(lambda: not mine._marks.places)
        (job,) = (await mine.claim(lease, Wants(["mail"], [], 1, 1))).jobs
        assert job.id == urgent.id


class TestLockedRows(ContractPart):
    async def test_a_claim_asks_again_soon_if_another_has_every_job_locked(self, bench: Workbench) -> None:
        """The other one may leave some of them, and no hint tells of that."""
        assert isinstance(bench.store, PostgresStore)
        await bench.enqueue(3)
        lease = await bench.lease()
        async with bench.store.pools.acquire() as connection, connection.transaction():
            await connection.fetch("SELECT n FROM treadle.ready FOR UPDATE")
            claim = await bench.store.claim(lease, Wants(["mail"], [], 5, 5))
            assert (claim.jobs, claim.again_in_ms) == ([], scripts.LOCKED_MS)
        claim = await bench.store.claim(lease, Wants(["mail"], [], 5, 5))
        assert (len(claim.jobs), claim.again_in_ms) == (3, None)
        assert (await bench.store.claim(lease, Wants(["mail"], [], 5, 5))).again_in_ms is None
