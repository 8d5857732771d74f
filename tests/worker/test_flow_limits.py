"""The time limits of flows and their steps: active time only, and a new attempt has all of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import ended, for_ever, give_way, until
from tests.worker import wait_handlers as handlers
from tests.worker.conftest import Start
from tests.worker.step_handlers import noted
from treadle import Context, Job, JobFailed, Queue, Retry, Status

Payload = dict[str, Any]


async def quick(ctx: Context, payload: Payload) -> None: ...


@pytest.mark.parametrize("process", [False, True])
async def test_a_whole_flow_has_a_time_limit(queue: Queue, start: Start, tmp_path: Path, process: bool) -> None:
    """Its steps are within theirs."""
    flow = queue.flow("limited", timeout="800ms", max_attempts=1)
    flow.step(quick)
    flow.step(timeout="1m", process=process)(handlers.sleeps_long)
    job = await flow.enqueue({"path": str(tmp_path / "begun")})
    await start(queue)
    with pytest.raises(JobFailed, match="TimeoutError: the flow was active longer than its limit of 800ms"):
        await job.result("30s")
    assert [step["status"] for step in (await job.refresh()).steps] == ["completed", "failed"]


@pytest.mark.parametrize("requeued", [True, False])
async def test_a_new_attempt_has_all_the_time(queue: Queue, start: Start, requeued: bool) -> None:
    flow = queue.flow("limited", timeout="600ms", retry=Retry(1 if requeued else 2, backoff="fixed", delay="1ms"))
    flow.step(quick)
    slow = [True]

    @flow.step
    async def perhaps_slow(ctx: Context, payload: Payload) -> str:
        if slow:
            slow.clear()
            await for_ever()
        await give_way()
        return "done"

    job = await flow.enqueue({})
    await start(queue)
    if requeued:
        assert (await ended(queue, job)).error_type == "TimeoutError"
        await queue.requeue(job.id)
    assert await job.result("30s") == "done"


async def test_tries_of_a_step_use_the_time_of_their_flow(queue: Queue, start: Start) -> None:
    flow = queue.flow("limited", timeout="700ms", max_attempts=1)
    tries: list[int] = []

    @flow.step(retry=Retry(20, backoff="fixed", delay="1ms"))
    async def flaky(ctx: Context, payload: Payload) -> None:
        tries.append(1)
        await asyncio.sleep(0.2)  # so that 20 tries would take far longer
        raise ValueError("again")

    job = await flow.enqueue({})
    await start(queue)
    seen = await ended(queue, job)
    assert (seen.status, seen.error_type) == (Status.FAILED, "TimeoutError")
    assert len(tries) < 20


async def test_a_step_that_timed_out_is_failed_until_it_is_tried_again(queue: Queue, start: Start) -> None:
    flow = queue.flow("late", retry=Retry(2, backoff="fixed", delay="1h"))

    @flow.step(timeout="50ms")
    async def slow(ctx: Context, payload: Payload) -> None:
        await for_ever()

    job = await flow.enqueue({})
    await start(queue)

    async def put_back() -> Job | None:
        seen = await queue.get(job.id)
        return seen if seen.retries == 1 and seen.locked_by is None else None

    seen = await until(put_back)
    [step] = seen.steps
    assert (seen.step, step["status"]) == ("slow", "failed")
    assert "TimeoutError: step slow ran longer than its limit of 50ms" in step["error"]


async def test_a_flow_without_code_can_have_conditions(queue: Queue, start: Start) -> None:
    flow = queue.flow("bare", max_attempts=1)
    flow.external("never", when=lambda ctx, payload: payload["ask"])
    flow.external("approve", when=lambda ctx, payload: ctx.results["never"] is None)
    job = await flow.enqueue({"ask": False})
    await queue.signal(job.id, "approve", 3)
    await start(queue)
    assert await job.result("30s") == 3
    assert [step["status"] for step in (await job.refresh()).steps] == ["skipped", "completed"]


async def test_a_step_in_a_process_is_interrupted_at_its_limit(queue: Queue, start: Start, tmp_path: Path) -> None:
    """It sleeps and looks at nothing. Its policy tries it again, and the handler goes on."""
    path = str(tmp_path / "noted")
    retry = Retry(2, backoff="fixed", delay="1ms")
    queue.register("sleeps", handlers.sleeps_in_a_step, process=True, retry=retry)
    job = await queue.enqueue("sleeps", {"path": path})
    await start(queue)
    assert await job.result("30s") == "done"
    assert noted(path) == ["begun", "begun", "slow", "slow"]
    steps = {step["id"]: step for step in (await job.refresh()).steps}
    assert (steps["slow"]["status"], steps["slow"]["attempt"]) == ("completed", 2)
    assert "TimeoutError: step outer ran longer than its limit of 200ms" in steps["outer"]["error"]
