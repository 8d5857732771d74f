"""Seed 002: templates and schedules, with the seed's own examples, over HTTP and on each store."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.acceptance.conftest import Start, Travel
from tests.acceptance.pipeline import TITLES, Pipeline, Task
from tests.http.api import Api, failure, opened
from tests.queue.scheduling import fire, make_due
from tests.waiting import after_failures, ended
from treadle import CancelPolicy
from treadle.cli import demo_jobs

TAIPEI = ZoneInfo("Asia/Taipei")


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with opened(url) as api:
        yield api


def step(id: str, seconds: int, cancelable: bool = True) -> dict[str, Any]:
    """As the seed writes it, with Python as the worker and the fields that the seed does not have."""
    return {
        "id": id,
        "name": TITLES[id],
        "workerType": "python",
        "timeoutSeconds": seconds,
        "cancelable": cancelable,
        "answerSchema": None,
        "answerRule": None,
        "after": None,
        "map": None,
        "limit": None,
    }


STEPS = [step("prepare", 60), step("execute", 300), step("finalize", 30, cancelable=False)]
SEED = {
    "topic": "demo_long_task",
    "version": 1,
    "name": "示範長任務",
    "description": "展示 job template、進度、取消、重跑與排程能力",
    "enabled": True,
    "repeatable": True,
    "concurrencyPolicy": "reject_same_scope",
    "dedupeKeys": ["scope_id", "target"],
    "timeoutSeconds": 600,
    "cancelPolicy": {"supported": True, "mode": "cooperative", "graceSeconds": 30},
    "retryPolicy": {"maxAttempts": 2, "backoffSeconds": [30, 120]},
}


async def test_the_templates_of_the_demo_are_the_seeds_examples_field_by_field(api: Api) -> None:
    for topic in ("demo_long_task", "scheduled_report", "multi_step_pipeline"):
        api.queue.handlers[topic] = demo_jobs.queue.handlers[topic]
    before = datetime.now(UTC).replace(microsecond=0)
    await api.queue.save_templates()
    found = (await api.get("/api/templates/demo_long_task")).json()
    assert SEED.items() <= found.items()
    for name in ("createdAt", "updatedAt"):
        assert before <= datetime.fromisoformat(found[name]), "milliseconds since 1970 in the seed"
    pipeline = (await api.get("/api/templates/multi_step_pipeline")).json()
    for template in (found, pipeline):
        assert [{**one, "resultSchema": None} for one in template["steps"]] == [
            {**one, "resultSchema": None} for one in STEPS
        ]
    assert found["steps"][0]["resultSchema"] == {"type": "array", "items": {"type": "integer"}}
    report = (await api.get("/api/templates/scheduled_report")).json()
    assert (report["steps"], report["schedulable"]) == ([], True)
    assert report["payloadSchema"]["properties"].keys() == {"month", "format", "since"}


async def test_a_template_answers_how_its_jobs_may_run_together(api: Api) -> None:
    """The same account: refused. The same account and target: the job that is there."""
    Pipeline(api.queue)
    await api.queue.save_templates()
    body = {"topic": "demo_long_task", "payload": {"target": "a"}, "scope": "account", "scopeId": "a1"}
    first = (await api.post("/api/jobs/enqueue", body)).json()
    again = (await api.post("/api/jobs/enqueue", body)).json()
    assert (again["id"], again["deduplicated"]) == (first["id"], True)
    refused = await api.post("/api/jobs/enqueue", {**body, "payload": {"target": "b"}})
    assert failure(refused) == (409, "concurrency_rejected")
    assert refused.json()["data"]["jobId"] == first["id"]
    other = await api.post("/api/jobs/enqueue", {**body, "scopeId": "a2"})
    assert other.json()["status"] == "pending"


async def test_a_template_answers_whether_it_can_be_repeated(api: Api) -> None:
    api.queue.register("once", lambda payload: None, repeatable=False, dedupe_keys=["target"])
    api.queue.register("often", lambda payload: None, repeatable=True, dedupe_keys=["target"])
    await api.queue.save_templates()
    for topic in ("once", "often"):
        await api.enqueue(topic, {"target": "a"})
    await api.queue.run_until_empty()
    body = {"payload": {"target": "a"}}
    assert failure(await api.post("/api/jobs/enqueue", {"topic": "once", **body})) == (409, "not_repeatable")
    assert (await api.post("/api/jobs/enqueue", {"topic": "often", **body})).json()["deduplicated"] is False


async def test_a_template_answers_how_often_it_is_tried(api: Api, start: Start, travel: Travel) -> None:
    pipeline = Pipeline(api.queue)
    pipeline.go.set()
    job = await pipeline.flow.enqueue(Task(target="a", fails=2))
    assert job.max_attempts == 2
    await start(api.queue)
    first = await after_failures(api.queue, job, 1)
    assert first.status == "pending"
    events = (await api.get(f"/api/jobs/{job.id}/events")).json()["items"]
    [failed_at] = [datetime.fromisoformat(one["createdAt"]) for one in events if one["type"] == "job:retrying"]
    assert round((first.run_at - failed_at).total_seconds()) == 30
    await travel(31)
    last = await ended(api.queue, job)
    assert (last.status, last.attempt, last.error_type) == ("failed", 2, "ConnectionError")


async def test_a_template_answers_whether_it_can_be_cancelled(api: Api) -> None:
    for supported in (True, False):
        options = {"supported": supported, "mode": "cooperative", "graceSeconds": 30}
        topic = f"cancel_{supported}".lower()
        api.queue.register(topic, lambda: None, cancel=CancelPolicy(supported=supported))
        await api.queue.save_templates()
        assert (await api.get(f"/api/templates/{topic}")).json()["cancelPolicy"] == options
        job = await api.enqueue(topic)
        await api.hands.claim_one(topic)
        answer = await api.post(f"/api/jobs/{job['id']}/cancel")
        assert answer.status_code == (200 if supported else 409)
    assert failure(answer) == (409, "not_cancelable")


async def test_a_run_names_its_template_and_the_version_that_it_was_made_with(api: Api) -> None:
    Pipeline(api.queue)
    await api.queue.save_templates()
    old = await api.enqueue("demo_long_task", {"target": "a"})
    del api.queue.handlers["demo_long_task"]
    Pipeline(api.queue, timeout=700)
    await api.queue.save_templates()
    new = await api.enqueue("demo_long_task", {"target": "b"}, scopeId="other")
    seen = [(await api.get(f"/api/jobs/{job['id']}")).json() for job in (old, new)]
    assert [(one["topic"], one["templateVersion"]) for one in seen] == [("demo_long_task", 1), ("demo_long_task", 2)]


# -- schedules -------------------------------------------------------------------------------------------------------


async def test_the_example_schedule_field_by_field(api: Api) -> None:
    """Nine in the morning in Taipei, for one user."""
    Pipeline(api.queue)
    await api.queue.save_templates()
    example = {
        "topic": "demo_long_task",
        "scope": "user",
        "scopeId": "user_123",
        "enabled": True,
        "cron": "0 9 * * *",
        "timezone": "Asia/Taipei",
        "payload": {"target": "{{scheduleId}}"},
    }
    made = (await api.post("/api/schedules", example)).json()
    assert example.items() <= made.items()
    assert made["lastRunAt"] is None
    assert made["createdAt"] == made["updatedAt"]
    nine = datetime.fromisoformat(made["nextRunAt"]).astimezone(TAIPEI)
    assert (nine.hour, nine.minute) == (9, 0)
    await make_due(api.queue, made["id"])
    await fire(api.queue)
    after = (await api.get(f"/api/schedules/{made['id']}")).json()
    job = (await api.get(f"/api/jobs/{after['lastJobId']}")).json()
    assert after["lastRunAt"] == job["scheduledAt"]
    assert after["nextRunAt"] == made["nextRunAt"]
    assert (job["scope"], job["scopeId"], job["payload"]["target"]) == ("user", "user_123", made["id"])
    edited = (await api.patch(f"/api/schedules/{made['id']}", {"cron": "0 10 * * *"})).json()
    assert edited["updatedAt"] >= edited["createdAt"]
    assert edited["version"] == 2


@pytest.mark.parametrize("scope", ["user", "account", "system"])
async def test_a_schedule_has_a_target_scope(api: Api, scope: str) -> None:
    body = {"topic": "report", "cron": "@daily", "scope": scope, "scopeId": "x1"}
    made = (await api.post("/api/schedules", body)).json()
    job = (await api.post(f"/api/schedules/{made['id']}/run")).json()
    assert (job["scope"], job["scopeId"]) == (scope, "x1")


async def test_a_schedule_that_is_off_makes_no_run(api: Api) -> None:
    made = (await api.post("/api/schedules", {"topic": "report", "cron": "0 9 * * *"})).json()
    path = f"/api/schedules/{made['id']}"
    off = (await api.patch(path, {"enabled": False})).json()
    assert (off["enabled"], off["nextRunAt"]) == (False, None)
    await fire(api.queue)
    assert (await api.get("/api/jobs")).json()["totalItems"] == 0
    on = (await api.patch(path, {"enabled": True})).json()
    assert (on["enabled"], on["nextRunAt"]) == (True, made["nextRunAt"])
