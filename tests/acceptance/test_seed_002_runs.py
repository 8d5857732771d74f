"""Seed 002: runs, their events, every status, cancelling, states and locks. On each store."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.conftest import Start
from tests.acceptance.pipeline import TITLES, Pipeline, Task
from tests.http.api import Api, failure, opened
from tests.waiting import deaf_until, ended, in_status, until
from treadle import CancelPolicy, Context
from treadle.model.fields import JSON_NAMES


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with opened(url) as api:
        yield api


async def read(api: Api, id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await api.get(f"/api/jobs/{id}")).json()
    return job


async def timeline(api: Api, id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = (await api.get(f"/api/jobs/{id}/events")).json()["items"]
    return events


def statuses(job: dict[str, Any]) -> dict[str, str]:
    return {step["id"]: step["status"] for step in job["steps"]}


# -- runs ------------------------------------------------------------------------------------------------------------


async def test_a_new_run_has_every_field_of_the_seed(api: Api) -> None:
    Pipeline(api.queue)
    await api.queue.save_templates()
    made = await api.enqueue("demo_long_task", {"target": "a"}, scope="user", scopeId="user_123")
    job = await read(api, made["id"])
    assert set(job) == JSON_NAMES
    expected = {
        "topic": "demo_long_task",
        "templateVersion": 1,
        "scope": "user",
        "scopeId": "user_123",
        "status": "pending",
        "step": None,
        "progress": 0,
        "progressMessage": None,
        "result": None,
        "lastError": None,
        "attempt": 0,
        "maxAttempts": 2,
        "lockedBy": None,
        "lockedUntil": None,
        "cancelRequestedAt": None,
        "cancelReason": None,
        "scheduledAt": None,
        "startedAt": None,
        "completedAt": None,
    }
    assert expected.items() <= job.items()
    assert job["payload"]["target"] == "a"
    assert [(step["id"], step["name"], step["status"]) for step in job["steps"]] == [
        (id, title, "pending") for id, title in TITLES.items()
    ]
    assert job["createdAt"] == job["updatedAt"]


async def test_a_run_from_its_claim_to_its_end(api: Api, start: Start) -> None:
    pipeline = Pipeline(api.queue)
    made = await pipeline.flow.enqueue(Task(target="a"))
    worker = await start(api.queue)

    async def half() -> dict[str, Any] | None:
        job = await read(api, made.id)
        return job if job["progress"] == 50 else None

    job: dict[str, Any] = await until(half)
    assert (job["status"], job["step"], job["attempt"]) == ("processing", "execute", 1)
    assert (job["progress"], job["progressMessage"]) == (50, "2 of 3"), "((1 + 50/100) / 3) x 100"
    assert statuses(job) == {"prepare": "completed", "execute": "processing", "finalize": "pending"}
    assert [step["progress"] for step in job["steps"]] == [100, 50, 0]
    assert job["steps"][0]["result"] == [1, 2, 3]
    assert (job["lockedBy"], job["lockedUntil"] > job["claimedAt"]) == (worker.name, True)
    assert job["startedAt"] >= job["claimedAt"]
    pipeline.go.set()
    await ended(api.queue, made)
    job = await read(api, made.id)
    assert (job["status"], job["progress"], job["result"], job["lastError"]) == ("completed", 100, {"sum": 6}, None)
    assert set(statuses(job).values()) == {"completed"}
    assert (job["lockedBy"], job["lockedUntil"], job["lastWorker"]) == (None, None, worker.name)
    assert job["completedAt"] == job["endedAt"] >= job["startedAt"]
    assert job["updatedAt"] >= job["completedAt"]
    assert pipeline.ran == ["prepare", "execute", "finalize"]


async def test_a_run_keeps_its_error(api: Api, start: Start) -> None:
    pipeline = Pipeline(api.queue, max_attempts=1)
    pipeline.go.set()
    made = await pipeline.flow.enqueue(Task(target="a", fails=1))
    await start(api.queue)
    await ended(api.queue, made)
    job = await read(api, made.id)
    assert (job["status"], job["step"], job["result"], job["errorType"]) == (
        "failed",
        "execute",
        None,
        "ConnectionError",
    )
    assert "the server hung up" in job["lastError"]
    assert "Traceback" in job["lastError"]
    assert statuses(job) == {"prepare": "completed", "execute": "failed", "finalize": "pending"}
    assert "the server hung up" in job["steps"][1]["error"]


# -- events ----------------------------------------------------------------------------------------------------------


async def test_events_have_the_fields_of_the_seed(api: Api, start: Start) -> None:
    pipeline = Pipeline(api.queue)
    pipeline.go.set()
    made = await pipeline.flow.enqueue(Task(target="a"))
    worker = await start(api.queue)
    await ended(api.queue, made)
    events = await timeline(api, made.id)
    assert [event["type"] for event in events] == [
        "job:enqueued",
        "job:started",
        *["job:step:completed"] * 3,
        "job:completed",
    ]
    for event in events:
        assert set(event) == {"id", "jobId", "type", "from", "to", "message", "metadata", "createdAt"}
        assert event["jobId"] == made.id
        assert isinstance(event["message"], str)
        assert datetime.fromisoformat(event["createdAt"]).tzinfo is not None
    started = events[1]
    assert (started["from"], started["to"], started["metadata"]["worker"]) == ("pending", "processing", worker.name)
    assert (events[-1]["from"], events[-1]["to"]) == ("processing", "completed")
    assert [event["metadata"]["step"] for event in events[2:5]] == ["prepare", "execute", "finalize"]


async def test_every_change_can_be_audited(api: Api) -> None:
    job = await api.enqueue("mail")
    await api.hands.fail(await api.hands.claim_one("mail"), "Boom: first", retry_in_ms=0)
    await until(api.hands.promoted)
    await api.hands.fail(await api.hands.claim_one("mail"), "Boom: second")
    await api.post(f"/api/jobs/{job['id']}/requeue")
    await api.post(f"/api/jobs/{job['id']}/cancel", {"reason": "not needed"})
    told = [(one["type"], one["from"], one["to"], one["message"]) for one in await timeline(api, job["id"])]
    assert told == [
        ("job:enqueued", None, "pending", ""),
        ("job:started", "pending", "processing", ""),
        ("job:retrying", "processing", "pending", "Boom: first"),
        ("job:started", "pending", "processing", ""),
        ("job:failed", "processing", "failed", "Boom: second"),
        ("job:requeued", "failed", "pending", "was failed"),
        ("job:cancelled", "pending", "cancelled", "not needed"),
    ]


# -- statuses --------------------------------------------------------------------------------------------------------


async def test_every_status_of_the_seed_is_ours_or_another_word_for_it(api: Api) -> None:
    made = {"pending": (await api.enqueue("a"))["id"], "cancelled": (await api.enqueue("b"))["id"]}
    await api.post(f"/api/jobs/{made['cancelled']}/cancel")
    for status in ("running", "cancel_requested", "succeeded", "failed"):
        made[status] = (await api.enqueue(status))["id"]
        claimed = await api.hands.claim_one(status)
        if status == "cancel_requested":
            await api.post(f"/api/jobs/{made[status]}/cancel")
        elif status != "running":
            await (api.hands.complete(claimed) if status == "succeeded" else api.hands.fail(claimed))
    made["expired"] = (await api.queue.enqueue("c", expires="0s")).id
    await api.queue.store.advance()
    flow = api.queue.flow("approval")
    flow.external("approve")
    made["waiting_worker"] = (await flow.enqueue({})).id
    await api.queue.run_until_empty()
    made["queued"] = made["pending"]
    ours = {
        "pending": "pending",
        "queued": "pending",
        "running": "processing",
        "waiting_worker": "waiting",
        "cancel_requested": "cancelling",
        "succeeded": "completed",
        "failed": "failed",
        "cancelled": "cancelled",
        "expired": "expired",
    }
    assert made.keys() == ours.keys()
    for word, status in ours.items():
        for query in ({"status": word}, {"filter": f"status = '{word}'"}):
            [job] = (await api.get("/api/jobs", params=query)).json()["items"]
            assert (job["id"], job["status"]) == (made[word], status), query


async def test_every_status_of_a_step(api: Api, start: Start) -> None:
    flow = api.queue.flow("steps", max_attempts=1)
    begun, go = asyncio.Event(), asyncio.Event()

    @flow.step
    async def first(ctx: Context, payload: dict[str, Any]) -> None: ...

    @flow.step(when=lambda ctx, payload: False)
    async def second(ctx: Context, payload: dict[str, Any]) -> None: ...

    @flow.step
    async def third(ctx: Context, payload: dict[str, Any]) -> None:
        begun.set()
        await go.wait()
        if payload["fails"]:
            raise ValueError("no")

    flow.external("fourth")
    job, failing = await flow.enqueue({"fails": False}), await flow.enqueue({"fails": True})
    new = {"first": "pending", "second": "pending", "third": "pending", "fourth": "pending"}
    assert statuses(await read(api, job.id)) == new
    await start(api.queue)
    await begun.wait()
    await until(lambda: _step_is(api, job.id, "third", "processing"))
    assert statuses(await read(api, job.id)) == {
        **new,
        "first": "completed",
        "second": "skipped",
        "third": "processing",
    }
    go.set()
    await in_status(api.queue, job, "waiting")
    await ended(api.queue, failing)
    assert statuses(await read(api, job.id))["fourth"] == "waiting"
    assert statuses(await read(api, failing.id))["third"] == "failed"
    await api.post(f"/api/jobs/{job.id}/cancel")
    assert statuses(await read(api, job.id))["fourth"] == "cancelled"


async def _step_is(api: Api, id: str, step: str, status: str) -> bool:
    return statuses(await read(api, id))[step] == status


# -- cancelling ------------------------------------------------------------------------------------------------------


async def test_a_pending_run_is_cancelled_directly_and_no_worker_gets_it(api: Api) -> None:
    job = await api.enqueue("mail")
    answer = (await api.post(f"/api/jobs/{job['id']}/cancel", {"reason": "not wanted"})).json()
    assert (answer["status"], answer["cancelReason"]) == ("cancelled", "not wanted")
    assert await api.hands.claim("mail") == []


async def test_a_running_run_is_asked_and_the_worker_acknowledges(api: Api) -> None:
    job = await api.enqueue("mail")
    [claimed] = (await api.post("/api/workers/claim", {"workerId": "go-1", "topics": ["mail"]})).json()["items"]
    asked = (await api.post(f"/api/jobs/{job['id']}/cancel", {"reason": "not wanted"})).json()
    assert (asked["status"], asked["cancelReason"], asked["lockedBy"]) == ("cancelling", "not wanted", "go-1")
    assert asked["cancelRequestedAt"] is not None
    own = f"/api/workers/jobs/{job['id']}"
    token = {"token": claimed["token"]}
    assert (await api.post(f"{own}/heartbeat", token)).json()["cancelRequested"] is True
    done = (await api.post(f"{own}/ack-cancel", token)).json()
    assert (done["status"], done["lockedBy"], done["lockedUntil"]) == ("cancelled", None, None)
    last = (await timeline(api, job["id"]))[-1]
    assert (last["type"], last["from"], last["to"]) == ("job:cancelled", "cancelling", "cancelled")


async def test_a_worker_looks_for_the_request_between_steps_and_inside_a_long_one(api: Api, start: Start) -> None:
    """`execute` is stopped where it waits; `finalize`, which must finish once begun, never begins."""
    pipeline = Pipeline(api.queue)
    made = await pipeline.flow.enqueue(Task(target="a"))
    await start(api.queue)
    await pipeline.begun.wait()
    await api.post(f"/api/jobs/{made.id}/cancel", {"reason": "enough"})
    await ended(api.queue, made)
    job = await read(api, made.id)
    assert (job["status"], pipeline.ran) == ("cancelled", ["prepare", "execute"])
    assert statuses(job) == {"prepare": "completed", "execute": "cancelled", "finalize": "cancelled"}
    assert [one["type"] for one in await timeline(api, made.id)][-2:] == ["job:cancelling", "job:cancelled"]


async def test_a_waiting_run_without_a_worker_is_cancelled_with_both_events(api: Api) -> None:
    flow = api.queue.flow("approval")
    flow.external("approve")
    job = await flow.enqueue({})
    await api.queue.run_until_empty()
    done = (await api.post(f"/api/jobs/{job.id}/cancel", {"reason": "too late"})).json()
    assert (done["status"], done["cancelReason"], statuses(done)) == ("cancelled", "too late", {"approve": "cancelled"})
    assert [one["type"] for one in await timeline(api, job.id)][-2:] == ["job:cancelling", "job:cancelled"]
    answer = await api.post(f"/api/jobs/{job.id}/signal", {"step": "approve", "result": 1})
    assert failure(answer) == (409, "step_ended")


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "expired"])
async def test_an_ended_run_is_refused_with_its_state(api: Api, status: str) -> None:
    job = await api.queue.enqueue("mail", expires="0s" if status == "expired" else None)
    if status == "expired":
        await api.queue.store.advance()
    elif status == "cancelled":
        await job.cancel()
    else:
        claimed = await api.hands.claim_one("mail")
        await (api.hands.complete(claimed) if status == "completed" else api.hands.fail(claimed))
    answer = await api.post(f"/api/jobs/{job.id}/cancel")
    assert failure(answer) == (409, "wrong_state")
    assert answer.json()["data"]["status"] == status
    assert (await read(api, job.id))["status"] == status


async def test_after_the_grace_the_reaper_cancels_and_the_history_says_timeout(api: Api, start: Start) -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    @api.queue.job(cancel=CancelPolicy(grace="100ms"))
    async def deaf() -> None:
        begun.set()
        await deaf_until(let_go)

    job = await deaf.enqueue()
    await start(api.queue)
    await begun.wait()
    await api.post(f"/api/jobs/{job.id}/cancel")
    await ended(api.queue, job)
    let_go.set()
    assert (await read(api, job.id))["status"] == "cancelled"
    last = (await timeline(api, job.id))[-1]
    assert (last["type"], last["message"]) == (
        "job:cancelled",
        "timeout: the handler did not stop within the grace period",
    )


# -- states and locks ------------------------------------------------------------------------------------------------


async def test_a_claim_and_a_cancel_at_the_same_time_never_both_win(api: Api) -> None:
    for _ in range(20):
        job = await api.enqueue("mail")
        claimed, cancelled = await asyncio.gather(api.hands.claim("mail"), api.post(f"/api/jobs/{job['id']}/cancel"))
        assert cancelled.json()["status"] == ("cancelling" if claimed else "cancelled")


@pytest.mark.parametrize("verb", ["complete", "fail", "progress", "heartbeat", "release"])
async def test_only_the_owner_writes(api: Api, verb: str) -> None:
    """Not a worker that lost its job, also under the same name, and not one that never had it."""
    job = await api.enqueue("mail")
    claim = {"workerId": "go-1", "topics": ["mail"]}
    [old] = (await api.post("/api/workers/claim", claim)).json()["items"]
    await api.post(f"/api/jobs/{job['id']}/release")
    [new] = (await api.post("/api/workers/claim", claim)).json()["items"]
    bodies: dict[str, dict[str, Any]] = {"fail": {"error": "x"}, "progress": {"percent": 1, "message": "x"}}
    more = bodies.get(verb, {})
    before = await read(api, job["id"])
    path = f"/api/workers/jobs/{job['id']}/{verb}"
    assert failure(await api.post(path, {"token": old["token"], **more})) == (409, "lease_lost")
    assert await read(api, job["id"]) == before
    assert (await api.post(path, {"token": new["token"], **more})).status_code == 200
