"""An answer that was accepted is used: against a timeout that its worker has already decided, and after a requeue."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import ended, in_status
from tests.worker.conftest import Start
from tests.worker.test_waits import ASKS
from treadle import Context, Queue, Status, StepEnded


def register(queue: Queue, kind: str) -> None:
    if kind == "flow":
        flow = queue.flow("asks", max_attempts=1)
        flow.external("approve", timeout="50ms")
    else:
        function, options = ASKS[kind]
        queue.register("asks", function, max_attempts=1, **options)


@pytest.mark.parametrize("error", [False, True])
@pytest.mark.parametrize("kind", [*ASKS, "flow"])
async def test_an_answer_in_the_last_moment_counts(
    queue: FaultyQueue, start: Start, tmp_path: Path, kind: str, error: bool
) -> None:
    """The worker has read the wait as over, and is about to store that."""
    told, go = asyncio.Event(), asyncio.Event()

    async def checkpoint(call: Any, lease: int, checkpoints: Any) -> Any:
        if any(step.error_type == "WaitTimeout" for one in checkpoints for step in one.steps):
            told.set()
            await go.wait()
        return await call(lease, checkpoints)

    register(queue, kind)
    queue.faults.around("checkpoint", checkpoint)
    job = await queue.enqueue("asks", {"path": str(tmp_path / "noted"), "timeout": "50ms"})
    await start(queue)
    await told.wait()
    if error:
        await queue.signal(job.id, "approve", error="not like this")
    else:
        await queue.signal(job.id, "approve", "yes")
    with pytest.raises(StepEnded):
        await queue.signal(job.id, "approve", "no")
    go.set()
    seen = await ended(queue, job)
    if error:
        assert (seen.status, seen.error_type) == (Status.FAILED, "AnswerError")
    else:
        assert (seen.status, seen.result_value) == (Status.COMPLETED, "yes")


@pytest.mark.parametrize("flow", [False, True])
async def test_who_has_answered_is_not_asked_again(queue: Queue, start: Start, flow: bool) -> None:
    """The answer came early, and the job failed before it was used: a requeue of the rest goes on with it."""
    fails = True
    if flow:
        asks = queue.flow("asks", max_attempts=1)

        @asks.step
        async def prepare(ctx: Context, payload: dict[str, Any]) -> None:
            if fails:
                raise ValueError("no")

        asks.external("approve", timeout="1h")
    else:

        async def handler(ctx: Context, payload: dict[str, Any]) -> Any:
            if fails:
                raise ValueError("no")
            return await ctx.wait_external("approve", timeout="1h")

        queue.register("asks", handler, max_attempts=1)
    job = await queue.enqueue("asks", {})
    await queue.signal(job.id, "approve", "yes")
    await start(queue)
    assert (await ended(queue, job)).status is Status.FAILED
    fails = False
    await queue.requeue(job.id)
    assert await job.result("30s") == "yes"


async def test_an_early_answer_is_not_for_another_payload(queue: Queue, start: Start) -> None:
    @queue.job(max_attempts=1)
    async def pays(ctx: Context, payload: dict[str, Any]) -> Any:
        return [payload["amount"], await ctx.wait_external("approve", timeout="1h")]

    job = await pays.enqueue({"amount": 10})
    await queue.signal(job.id, "approve", "yes")
    await queue.cancel(job.id)
    await queue.requeue(job.id, payload={"amount": 1_000_000})
    await start(queue)
    await in_status(queue, job, Status.WAITING)
    await queue.signal(job.id, "approve", "yes, that too")
    assert await job.result("30s") == [1_000_000, "yes, that too"]
