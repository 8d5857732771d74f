"""Parents and children over HTTP."""

import asyncio
from typing import Any

import pytest

from tests.http.api import Api, failure
from treadle import Context


async def waiting(api: Api) -> tuple[str, str]:
    """A parent that waits for its child, which is due in an hour."""

    @api.queue.job(topic="child")
    async def child() -> int:
        return 1

    @api.queue.job(topic="parent")
    async def parent(ctx: Context) -> Any:
        return await ctx.run(child, delay="1h")

    job = await parent.enqueue()
    await api.queue.run_until_empty()
    [made] = await api.queue.list(topic="child")
    return job.id, made.id


@pytest.mark.every_store
async def test_a_waiting_parent(api: Api) -> None:
    parent, child = await waiting(api)
    assert (await api.get(f"/api/jobs/{child}")).json()["parentId"] == parent
    for query in (f"parentId={parent}", f"filter=parentId='{parent}'"):
        assert [one["id"] for one in (await api.get(f"/api/jobs?{query}")).json()["items"]] == [child], query
    assert (await api.get(f"/api/jobs?parentId={child}")).json()["items"] == []
    job = (await api.get(f"/api/jobs/{parent}")).json()
    assert (job["status"], job["step"], job["parentId"]) == ("waiting", "child", None)
    [reason] = (await api.get(f"/api/jobs/{parent}/why")).json()["reasons"]
    assert reason == f"it waits for its child {child} of child (pending)"
    [run] = (await api.get(f"/api/jobs/{parent}/steps/child")).json()["items"]
    assert (run["status"], run["childId"]) == ("waiting", child)


async def test_a_wait_for_a_child_takes_no_answer(api: Api) -> None:
    parent, _ = await waiting(api)
    answer = await api.post(f"/api/jobs/{parent}/signal", {"step": "child", "result": 1})
    assert failure(answer) == (404, "unknown_step")


async def test_a_parent_that_is_waited_in_is_not_deleted(api: Api) -> None:
    parent, child = await waiting(api)
    assert failure(await api.delete(f"/api/jobs/{parent}")) == (409, "wrong_state")
    await api.queue.reschedule(child, run_at=(await api.queue.get(child)).created_at)
    await api.queue.run_until_empty()
    assert (await api.queue.get(parent)).result_value == 1


async def test_a_pending_parent_with_a_live_child_is_not_deleted(api: Api) -> None:
    @api.queue.job(topic="child")
    async def child() -> int:
        return 1

    @api.queue.job(topic="parent", max_attempts=1)
    async def parent(ctx: Context) -> None:
        waits = asyncio.create_task(ctx.run(child, delay="1h"))
        await ctx.step("until it is there", there)
        waits.cancel()
        raise ValueError("no")

    async def there() -> None:
        while not await api.queue.list(topic="child"):
            await asyncio.sleep(0.001)  # before it looks again

    job = await parent.enqueue()
    await api.queue.run_until_empty()
    assert (await job.refresh()).status == "failed"
    assert failure(await api.delete(f"/api/jobs/{job.id}")) == (409, "has_children")
    [made] = await api.queue.list(topic="child")
    assert (await api.delete(f"/api/jobs/{made.id}")).status_code == 204
    assert (await api.delete(f"/api/jobs/{job.id}")).status_code == 204


@pytest.mark.parametrize("value", ["x" * 300, "%00", "' OR 1=1--"])
async def test_parents_that_no_job_has(api: Api, value: str) -> None:
    assert (await api.get(f"/api/jobs?parentId={value}")).status_code in (200, 400)
    refused = await api.post("/api/jobs/enqueue", {"topic": "mail", "payload": {}, "parentId": "x"})
    assert failure(refused) == (400, "unknown_parameter")
