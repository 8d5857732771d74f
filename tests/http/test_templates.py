"""Templates over HTTP: every field, the operator's switch, rolling back, and who may do what."""

from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.http.api import Api, failure
from treadle import CancelPolicy, Concurrency, Context, InvalidPayload, Retry

# As the design lists them, and the options that only Python has.
FIELDS = set(
    "topic version name description enabled repeatable concurrencyPolicy dedupeKeys timeoutSeconds cancelPolicy "
    "retryPolicy steps payloadSchema resultSchema schedulable createdAt updatedAt".split()
)
OURS = set(
    "concurrencyKeys concurrencyLimit rate idempotencyKey capability priority expiresSeconds secret retention "
    "stepResultLimit finalStates".split()
)


class Target(BaseModel):
    path: str


class Task(BaseModel):
    target: str = Field(min_length=1)
    pages: int = 1
    where: Target | None = None


async def demo_long_task(ctx: Context, task: Task) -> dict[str, int]:
    return {"pages": task.pages}


OPTIONS: dict[str, Any] = {
    "title": "示範長任務",
    "description": "展示 job template",
    "concurrency": Concurrency("reject_same_scope"),
    "dedupe_keys": ["scope_id", "target"],
    "timeout": 600,
    "cancel": CancelPolicy(grace=30),
    "retry": Retry(2, [30, 120]),
}


async def save(api: Api, **changes: Any) -> None:
    """As a start of the application's code does; without the handler if another process has it."""
    api.queue.handlers.pop("demo_long_task", None)
    api.queue.register("demo_long_task", demo_long_task, **{**OPTIONS, **changes})
    await api.queue.save_templates()


@pytest.mark.every_store
async def test_a_template_has_every_field_of_the_seed(api: Api) -> None:
    await save(api)
    found = (await api.get("/api/templates/demo_long_task")).json()
    assert set(found) == FIELDS | OURS
    expected = {
        "topic": "demo_long_task",
        "version": 1,
        "name": "示範長任務",
        "description": "展示 job template",
        "enabled": True,
        "repeatable": True,
        "concurrencyPolicy": "reject_same_scope",
        "dedupeKeys": ["scope_id", "target"],
        "timeoutSeconds": 600,
        "cancelPolicy": {"supported": True, "mode": "cooperative", "graceSeconds": 30},
        "retryPolicy": {"maxAttempts": 2, "backoffSeconds": [30, 120]},
        "steps": [],
        "schedulable": True,
    }
    assert expected.items() <= found.items()
    assert found["payloadSchema"]["required"] == ["target"]
    assert found["resultSchema"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert found["createdAt"].endswith("Z")
    assert (await api.get("/api/templates")).json() == {"items": [found]}


async def test_the_steps_of_a_template_have_every_field(api: Api) -> None:
    flow = api.queue.flow("publish")

    @flow.step(title="準備資料", timeout=60)
    async def prepare(ctx: Context, task: Task) -> list[int]:
        return []

    flow.external("approve", answer=Target, timeout="3d", answer_rule="@request.auth.id != ''")
    flow.step(name="finalize", cancelable=False)(lambda ctx, task: None)
    await api.queue.save_templates()
    found = (await api.get("/api/templates/publish")).json()
    prepare_, approve, finalize = found["steps"]
    assert prepare_ == {
        "id": "prepare",
        "name": "準備資料",
        "workerType": "python",
        "timeoutSeconds": 60,
        "cancelable": True,
        "resultSchema": {"type": "array", "items": {"type": "integer"}},
        "answerSchema": None,
        "answerRule": None,
        "after": None,
        "map": None,
        "limit": None,
    }
    assert (approve["workerType"], approve["timeoutSeconds"], approve["resultSchema"]) == (None, 259_200, None)
    assert (approve["answerSchema"]["required"], approve["answerRule"]) == (["path"], "@request.auth.id != ''")
    assert finalize == {
        **prepare_,
        "id": "finalize",
        "name": "finalize",
        "timeoutSeconds": 600,
        "cancelable": False,
        "resultSchema": None,
    }
    assert found["payloadSchema"]["required"] == ["target"]


@pytest.mark.every_store
async def test_older_versions_are_listed_and_one_is_used_again(api: Api) -> None:
    await save(api)
    await save(api, timeout=60)
    items = (await api.get("/api/templates/demo_long_task/versions")).json()["items"]
    assert [(one["version"], one["timeoutSeconds"], one["current"]) for one in items] == [
        (2, 60, True),
        (1, 600, False),
    ]
    assert set(items[0]) == FIELDS | OURS | {"current"}
    back = (await api.patch("/api/templates/demo_long_task", {"useVersion": 1, "version": 2})).json()
    assert (back["version"], back["timeoutSeconds"]) == (1, 600)
    job = (await api.post("/api/jobs/enqueue", {"topic": "demo_long_task", "payload": {"target": "a"}})).json()
    assert job["templateVersion"] == 1
    await save(api, timeout=60)
    assert (await api.get("/api/templates/demo_long_task")).json()["version"] == 1, "a rollback survives a restart"


async def test_a_switch_that_stands(api: Api) -> None:
    await save(api)
    body = {"topic": "demo_long_task", "payload": {"target": "a"}}
    job = (await api.post("/api/jobs/enqueue", body)).json()
    await api.post(f"/api/jobs/{job['id']}/cancel")
    path = "/api/templates/demo_long_task"
    assert (await api.patch(path, {"enabled": False})).json()["enabled"] is False
    await save(api, timeout=60)
    assert (await api.get(path)).json()["enabled"] is False
    refused = [
        await api.post("/api/jobs/enqueue", body),
        await api.post("/api/jobs/enqueue-many", {"jobs": [body]}),
        await api.post("/api/jobs/demo_long_task/dispatch", {"args": {"target": "a"}}),
        await api.post(f"/api/jobs/{job['id']}/requeue"),
    ]
    for answer in refused:
        assert failure(answer) == (409, "template_disabled")
    assert (await api.patch(path, {"enabled": True})).json()["enabled"] is True
    assert (await api.post(f"/api/jobs/{job['id']}/requeue")).status_code == 200


@pytest.mark.parametrize("with_handler", [True, False], ids=["the handler is here", "the handler is elsewhere"])
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "payload.target"),
        ({"target": ""}, "payload.target"),
        ({"target": "a", "pages": "many"}, "payload.pages"),
        ({"target": "a", "where": {"path": 5}}, "payload.where.path"),
        ({"target": "a", "where": {}}, "payload.where.path"),
    ],
    ids=str,
)
async def test_a_payload_is_checked_on_every_way_in(
    api: Api, with_handler: bool, payload: dict[str, Any], path: str
) -> None:
    await save(api)
    if not with_handler:
        del api.queue.handlers["demo_long_task"]
    good = {"topic": "demo_long_task", "payload": {"target": "a"}}
    job = await api.enqueue("demo_long_task", {"target": "a"})
    await api.post(f"/api/jobs/{job['id']}/cancel")
    scheduled = (await api.post("/api/schedules", {**good, "cron": "@daily"})).json()
    body = {**good, "payload": payload}
    for answer in (
        await api.post("/api/jobs/enqueue", body),
        await api.post("/api/jobs/enqueue-many", {"jobs": [good, body]}),
        await api.post("/api/jobs/demo_long_task/dispatch", {"args": payload}),
        await api.post(f"/api/jobs/{job['id']}/requeue", {"payload": payload}),
        await api.post("/api/schedules", {**body, "cron": "@daily"}),
        await api.patch(f"/api/schedules/{scheduled['id']}", {"payload": payload}),
    ):
        assert failure(answer) == (400, "invalid_payload")
        assert f"demo_long_task: {path}: " in answer.json()["message"]
        assert list(answer.json()["data"]) == [path]
        many = answer.request.url.path.endswith("many")
        assert answer.json()["message"].startswith("jobs[1]: ") is many
    for refused in (
        api.queue.enqueue("demo_long_task", payload),
        api.queue.enqueue_many("demo_long_task", [{"target": "a"}, payload]),
        api.queue.schedules.create("demo_long_task", "@daily", payload=payload),
    ):
        with pytest.raises(InvalidPayload, match=f"demo_long_task: {path}: "):
            await refused
    [kept] = (await api.get("/api/jobs")).json()["items"]
    assert (kept["status"], kept["payload"]["target"]) == ("cancelled", "a")
    assert (await api.get("/api/schedules")).json()["items"] == [scheduled]


async def test_refusals_of_a_template(api: Api) -> None:
    api.queue.register("once", lambda payload: None, dedupe_keys=["n"], repeatable=False)
    await save(api)
    body = {"topic": "demo_long_task", "payload": {"target": "a"}, "scope": "user", "scopeId": "u1"}
    first = (await api.post("/api/jobs/enqueue", body)).json()
    other = await api.post("/api/jobs/enqueue", {**body, "payload": {"target": "b"}})
    assert failure(other) == (409, "concurrency_rejected")
    assert other.json()["data"]["jobId"] == first["id"]
    once = {"topic": "once", "payload": {"n": 1}}
    job = (await api.post("/api/jobs/enqueue", once)).json()
    claim = {"workerId": "w", "topics": ["once"]}
    [claimed] = (await api.post("/api/workers/claim", claim)).json()["items"]
    await api.post(f"/api/workers/jobs/{job['id']}/complete", {"token": claimed["token"], "result": None})
    assert failure(await api.post("/api/jobs/enqueue", once)) == (409, "not_repeatable")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"useVersion": 9}, 400, "invalid_input"),
        ({"useVersion": 2**62}, 400, "invalid_input"),
        ({"useVersion": "1"}, 400, "invalid_input"),
        ({"enabled": "no"}, 400, "invalid_input"),
        ({"version": 3, "enabled": False}, 409, "version_conflict"),
        ({"timeoutSeconds": 5}, 409, "code_defined"),
        ({"name": "Other", "enabled": False}, 409, "code_defined"),
        ({"colour": "red"}, 400, "unknown_parameter"),
    ],
    ids=str,
)
async def test_bad_input_changes_nothing(api: Api, body: dict[str, Any], status: int, code: str) -> None:
    await save(api)
    before = (await api.get("/api/templates/demo_long_task")).json()
    assert failure(await api.patch("/api/templates/demo_long_task", body)) == (status, code)
    assert (await api.get("/api/templates/demo_long_task")).json() == before


async def test_a_topic_without_a_template(api: Api) -> None:
    await api.enqueue()
    for answer in (
        await api.get("/api/templates/mail"),
        await api.get("/api/templates/mail/versions"),
        await api.patch("/api/templates/mail", {"enabled": False}),
        await api.patch("/api/templates/mail", {"timeoutSeconds": 5}),
    ):
        assert failure(answer) == (404, "not_found")
    assert failure(await api.get("/api/templates/" + "x" * 5000))[0] == 400


async def test_who_may_read_and_who_may_change(sqlite_api: Api) -> None:
    api = sqlite_api
    await save(api)
    await api.rules(manage_rule="@request.auth.id != '' && topic = 'demo_long_task'")
    assert len((await api.get("/api/templates", as_="ann")).json()["items"]) == 1
    change = {"enabled": False}
    assert failure(await api.patch("/api/templates/demo_long_task", change, as_="ann"))[0] == 403
    key = await api.key("templates")
    assert (await api.patch("/api/templates/demo_long_task", change, as_=key)).status_code == 200
    await api.rules(manage_rule="createdBy = @request.auth.id")
    assert (await api.get("/api/templates", as_="ann")).json() == {"items": []}
    assert failure(await api.get("/api/templates/demo_long_task", as_="ann")) == (404, "not_found")
