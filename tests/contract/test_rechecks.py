"""What another process changed after a duty of the leader looked: the duty checks again in the statement that writes.

On SQLite nothing can come in between, because a transaction there is alone from its beginning.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tests.contract.relational import RelationalDatabase
from tests.contract.test_changes import finish, step_until
from treadle.model.status import Status
from treadle.policy.lifecycle import Completed
from treadle.queue import steering
from treadle.store.sql import scripts
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, Workbench

Meddle = Callable[[Workbench, str], Awaitable[None]]


async def cancelled_again(bench: Workbench, id: str) -> None:
    await steering.requeue(bench.store, [id])
    await steering.cancel(bench.store, [id], "again")


async def completed_again(bench: Workbench, id: str) -> None:
    await steering.requeue(bench.store, [id])
    assert await bench.settle(await bench.claim_one(), Completed())


async def requeued(bench: Workbench, id: str) -> None:
    await steering.requeue(bench.store, [id])


class TestRechecks(ContractPart):
    @pytest.fixture
    def database(self, postgres_database: RelationalDatabase) -> RelationalDatabase:
        return postgres_database

    @pytest.fixture
    async def leader(self, postgres_database: RelationalDatabase) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(postgres_database.url)
        yield connection
        await connection.close()

    @pytest.mark.parametrize("meddle", [cancelled_again, completed_again, requeued])
    async def test_retention_keeps_a_job_that_was_requeued_after_it_looked(
        self, bench: Workbench, leader: Any, meddle: Meddle
    ) -> None:
        id, old = await bench.make("failed"), await bench.make("failed")
        await bench.pass_time(HOUR)
        pruning = leader.transaction()
        await pruning.start()
        script = scripts.prune(MINUTE, 100)
        looked = await step_until(bench.store, leader, script, "old_outcomes")
        assert len(looked) == 2
        await meddle(bench, id)
        before = await bench.job(id)
        await finish(bench.store, leader, script, looked)
        await pruning.commit()
        assert await bench.job(id) == before
        assert await bench.store.get([old]) == [None]

    @pytest.mark.parametrize("meddle", [cancelled_again, completed_again, requeued])
    async def test_a_deadline_ends_no_job_that_was_requeued_after_the_look(
        self, bench: Workbench, leader: Any, meddle: Meddle
    ) -> None:
        id = await bench.enqueue_one(expires_in_ms=MINUTE)
        await bench.pass_time(HOUR)
        expiring = leader.transaction()
        await expiring.start()
        script = scripts.advance(100)
        looked = await step_until(bench.store, leader, script, "due_deadlines")
        assert len(looked) == 1
        assert [moved.id for moved in (await bench.store.advance()).moved] == [id]
        await meddle(bench, id)
        before = await bench.job(id)
        assert before.status is not Status.EXPIRED
        assert (await finish(bench.store, leader, script, looked)).moved == []
        await expiring.commit()
        assert await bench.job(id) == before
