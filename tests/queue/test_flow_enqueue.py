"""A flow is enqueued like a task: by itself, in place of its topic, and without an event loop."""

from typing import Any

import pytest

from treadle import Context, JobRequest, Queue
from treadle.testing import assert_enqueued, inline, refute_enqueued


def make_flow(queue: Queue) -> Any:
    flow = queue.flow("order")

    @flow.step
    def check(ctx: Context, payload: dict[str, Any]) -> int:
        return int(payload["id"]) * 2

    @flow.step
    async def ship(ctx: Context, payload: dict[str, Any]) -> str:
        return f"shipped {ctx.results['check']}"

    return flow


@pytest.mark.every_store
async def test_a_flow_stands_for_its_topic(queue: Queue) -> None:
    flow = make_flow(queue)

    @queue.job
    async def customer(ctx: Context) -> str:
        return (await ctx.enqueue(flow, {"id": 4})).id

    jobs = [
        await queue.enqueue(flow, {"id": 1}, priority="high"),
        *await queue.enqueue_many(flow, [{"id": 2}]),
        *await queue.enqueue_many([JobRequest(flow, {"id": 3})]),
    ]
    await customer.enqueue()
    await queue.run_until_empty()
    assert [await job.result("60s") for job in jobs] == ["shipped 2", "shipped 4", "shipped 6"]
    assert {job.payload["id"] for job in await queue.list(topic="order")} == {1, 2, 3, 4}


def test_a_flow_is_enqueued_without_an_event_loop(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    flow = make_flow(queue)
    with queue.sync:
        job = flow.sync.enqueue({"id": 1}, delay="1h")
        assert (job.topic, job.status) == ("order", "pending")
        assert flow.options(priority="high").sync.enqueue_many([{"id": 2}])[0].priority == 75
        assert_enqueued(queue, flow, payload={"id": 1}, count=1)
        refute_enqueued(queue, flow, payload={"id": 3})
        with inline(queue):
            assert flow.sync.enqueue({"id": 4}).result() == "shipped 8"
