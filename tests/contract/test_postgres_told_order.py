"""What is committed later is told later, even if its clock was read before it waited for a lock."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.waiting import event_types, until
from treadle import Job, Queue, Worker
from treadle.model.job import to_ms

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
CANCELLING = """
    WITH marked AS (
        UPDATE treadle.running
        SET cancel_at = floor(extract(epoch FROM clock_timestamp()) * 1000), cancel_reason = 'enough'
        RETURNING n, cancel_at)
    INSERT INTO treadle.events (n, type, from_status, to_status, message, metadata, created_at)
    SELECT n, 'job:cancelling', 'processing', 'cancelling', 'enough', '{}', cancel_at FROM marked
    RETURNING created_at"""


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[Any]:
    """Another program's connection."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("with_steps", [False, True])
async def test_a_completion_that_waited_for_a_cancel_is_told_after_it(
    postgres_url: str, other: Any, with_steps: bool
) -> None:
    async with Queue(postgres_url) as queue:
        begun, let_go = asyncio.Event(), asyncio.Event()

        async def deaf(payload: object) -> str:
            begun.set()
            await let_go.wait()
            return "done"

        if with_steps:
            queue.flow("deaf").step(name="only", cancelable=False)(deaf)
        else:
            queue.register("deaf", deaf)
        worker = Worker(queue, maintenance=False)
        running = asyncio.create_task(worker.run())
        job = await queue.enqueue("deaf")
        await asyncio.wait_for(begun.wait(), 60)
        await until(lambda: _is_quiet(other))
        async with other.transaction():
            await other.execute("SELECT * FROM treadle.running FOR UPDATE")
            let_go.set()
            await until(lambda: _waits(other))
            cancelled_at = await other.fetchval(CANCELLING)
        job = await until(lambda: _ended(queue, job))
        assert job.status == "completed"
        assert job.completed_at is not None
        assert to_ms(job.completed_at) >= cancelled_at
        types = [type_ for type_ in await event_types(queue, job) if type_ != "job:step:completed"]
        assert types == ["job:enqueued", "job:started", "job:cancelling", "job:completed"]
        worker.stop()
        await running


async def _waits(connection: Any) -> bool:
    return bool(await connection.fetchval(WAITING))


async def _is_quiet(connection: Any) -> bool:
    return not await _waits(connection)


async def _ended(queue: Queue, job: Job) -> Job | None:
    now = await queue.get(job.id)
    return now if now.ended else None
