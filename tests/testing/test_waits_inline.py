"""`inline` with jobs that wait, and the clock where it can't be moved."""

from typing import Any

import pytest

from treadle import Context, InvalidInput, Queue, Status
from treadle.testing import Clock, inline


async def test_a_waiting_job_is_returned_and_a_signal_runs_the_rest(treadle_queue: Queue) -> None:
    @treadle_queue.job
    async def approve(ctx: Context) -> Any:
        return await ctx.wait_external("approve", answer=bool)

    with inline(treadle_queue):
        job = await approve.enqueue()
        assert job.status is Status.WAITING
        job = await treadle_queue.signal(job.id, "approve", True)
    assert (job.status, job.result_value) == (Status.COMPLETED, True)


async def test_a_sleeping_job_is_returned(treadle_queue: Queue) -> None:
    @treadle_queue.job
    async def naps(ctx: Context) -> None:
        await ctx.sleep("1h")

    with inline(treadle_queue):
        assert (await naps.enqueue()).status is Status.PENDING


async def test_a_job_that_fails_after_its_wait_raises_its_error(treadle_queue: Queue) -> None:
    @treadle_queue.job
    async def approve(ctx: Context) -> None:
        raise ValueError(await ctx.wait_external("approve"))

    with inline(treadle_queue):
        job = await approve.enqueue()
        with pytest.raises(ValueError, match="never"):
            await treadle_queue.signal(job.id, "approve", "never")


def test_a_clock_that_can_not_be_moved_refuses(postgres_url: str, treadle_clock: Clock) -> None:
    Queue(postgres_url)
    with pytest.raises(InvalidInput, match="can't be moved, only that of SQLite"):
        treadle_clock.advance("1h")
