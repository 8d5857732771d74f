"""Steps over HTTP: read, answered, run again."""

from typing import Any

import pytest
from pydantic import BaseModel

from tests.http.api import Api, failure
from treadle import Context
from treadle.queue.handlers.flows import Flow


class Approval(BaseModel):
    ok: bool
    reasons: list[str] = []


def declared(api: Api, **external: Any) -> Flow:
    flow = api.queue.flow("approval", max_attempts=1)

    @flow.step(title="Prepare it")
    async def prepare(ctx: Context, payload: dict[str, Any]) -> str:
        return "x" * payload.get("size", 3)

    flow.external("approve", answer=Approval, timeout="1h", **external)

    @flow.step
    async def publish(ctx: Context, payload: dict[str, Any]) -> str:
        if not ctx.results["approve"].ok:
            raise ValueError("not approved")
        return "published"

    return flow


async def waiting(api: Api, flow: Flow, **payload: Any) -> str:
    job = await flow.enqueue(payload)
    await api.queue.run_until_empty()
    return job.id


@pytest.mark.every_store
async def test_a_waiting_flow(api: Api) -> None:
    id = await waiting(api, declared(api))
    job = (await api.get(f"/api/jobs/{id}")).json()
    assert (job["status"], job["step"], job["lockedBy"]) == ("waiting", "approve", None)
    assert [(step["id"], step["name"], step["status"]) for step in job["steps"]] == [
        ("prepare", "Prepare it", "completed"),
        ("approve", "approve", "waiting"),
        ("publish", "publish", "pending"),
    ]
    for query in ("phase='approve'", "step='approve'", "status='waiting'"):
        assert [one["id"] for one in (await api.get(f"/api/jobs?filter={query}")).json()["items"]] == [id], query
    assert "step approve" in (await api.get(f"/api/jobs/{id}/why")).json()["reasons"][0]
    [run] = (await api.get(f"/api/jobs/{id}/steps/approve")).json()["items"]
    assert run["answerSchema"]["required"] == ["ok"]
    assert run["waitsUntil"] is not None
    types = [event["type"] for event in (await api.get(f"/api/jobs/{id}/events")).json()["items"]]
    assert types == ["job:enqueued", "job:started", "job:step:completed", "job:waiting"]


async def test_an_answer_and_what_is_wrong_with_others(api: Api) -> None:
    id = await waiting(api, declared(api))
    path = f"/api/jobs/{id}/signal"
    assert failure(await api.post(path, {"step": "approval", "result": {"ok": True}})) == (404, "unknown_step")
    assert failure(await api.post(path, {"step": "publish", "result": 1})) == (404, "unknown_step"), "it runs code"
    assert failure(await api.post(path, {"step": "prepare", "result": 1})) == (409, "step_ended")
    wrong = await api.post(path, {"step": "approve", "result": {"ok": True, "reasons": [1]}})
    assert failure(wrong) == (400, "invalid_answer")
    assert "result.reasons.0" in wrong.json()["data"]
    assert (await api.post(path, {"step": "approve", "result": 1, "error": "x"})).status_code == 400
    assert (await api.post(path, {"result": 1})).status_code == 400
    for nothing in ({"step": "approve"}, {"step": "approve", "error": None}):
        assert "result" in (await api.post(path, nothing)).json()["data"], "an answer is never only implied"
    assert (await api.post(path, {"step": "x" * 10_000, "result": 1})).status_code == 400
    done = await api.post(path, {"step": "approve", "result": {"ok": True}})
    assert (done.status_code, done.json()["steps"][1]["status"]) == (200, "completed"), done.text
    assert failure(await api.post(path, {"step": "approve", "result": {"ok": True}})) == (409, "step_ended")
    await api.queue.run_until_empty()
    assert (await api.get(f"/api/jobs/{id}")).json()["result"] == "published"


@pytest.mark.every_store
async def test_an_answer_for_a_topic_without_code_here(api: Api) -> None:
    id = await waiting(api, declared(api))
    del api.queue.handlers["approval"]
    wrong = await api.post(f"/api/jobs/{id}/signal", {"step": "approve", "result": {"ok": "perhaps"}})
    assert failure(wrong) == (400, "invalid_answer")
    assert "result.ok" in wrong.json()["data"]
    assert (await api.post(f"/api/jobs/{id}/signal", {"step": "approve", "result": {"ok": True}})).status_code == 200


async def test_who_may_answer(sqlite_api: Api) -> None:
    api = sqlite_api
    await api.rules(enqueue_rule="@request.auth.id != ''", manage_rule="createdBy = @request.auth.id")
    bob = api.people["bob"].id
    flow = declared(api, answer_rule=f"@request.auth.id = '{bob}'")
    job = await flow.options(created_by=api.people["ann"].id).enqueue({})
    await api.queue.run_until_empty()
    body = {"step": "approve", "result": {"ok": True}}
    assert failure(await api.post(f"/api/jobs/{job.id}/signal", body, as_="ann"))[0] == 403
    assert failure(await api.post(f"/api/jobs/{job.id}/signal", body, as_=None))[0] == 404
    answered = await api.post(f"/api/jobs/{job.id}/signal", body, as_="bob")
    assert answered.status_code == 200
    assert answered.json() == {"id": job.id, "status": "pending", "step": "approve"}, "he may answer, and see no more"


async def test_a_signal_for_one_scope_never_wakes_the_job_of_another(api: Api) -> None:
    await api.rules(
        enqueue_rule="scopeId = @request.auth.team", manage_rule="scope = 'team' && scopeId = @request.auth.team"
    )
    flow = declared(api)
    made = {
        name: (await api.enqueue("approval", scope="team", scopeId=team, as_=name))["id"]
        for name, team in (("ann", "red"), ("bob", "blue"))
    }
    await api.queue.run_until_empty()
    body = {"step": "approve", "result": {"ok": True}}
    stranger = await api.post(f"/api/jobs/{made['bob']}/signal", body, as_="ann")
    assert failure(stranger)[0] == 404, "as if it were not there"
    assert (await api.post(f"/api/jobs/{made['ann']}/signal", body, as_="ann")).status_code == 200
    await api.queue.run_until_empty()
    seen = {name: (await api.get(f"/api/jobs/{id}", as_=name)).json() for name, id in made.items()}
    assert {name: job["status"] for name, job in seen.items()} == {"ann": "completed", "bob": "waiting"}
    assert [step["status"] for step in seen["bob"]["steps"]] == ["completed", "waiting", "pending"]
    assert (await api.post(f"/api/jobs/{made['bob']}/signal", body, as_="bob")).status_code == 200
    await api.queue.run_until_empty()
    assert (await flow.queue.get(made["bob"])).status == "completed"


async def claimed(api: Api, **more: Any) -> list[str]:
    answer = await api.post("/api/workers/claim", {"workerId": "go-1", "topics": ["approval", "mail"], **more})
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["items"]]


async def test_a_flow_is_never_claimed_over_http(api: Api) -> None:
    flow = declared(api)
    answered = await waiting(api, flow)
    await api.queue.signal(answered, "approve", {"ok": True})
    job, plain = await flow.enqueue({}), await api.enqueue()
    assert await claimed(api, limit=10) == [plain["id"]]
    assert await claimed(api, topics=["approval"]) == []
    for id in (answered, job.id):
        seen = (await api.get(f"/api/jobs/{id}")).json()
        assert (seen["status"], seen["attempt"]) == ("pending", 0)
        assert (await api.get(f"/api/jobs/{id}/why")).json()["reasons"] == [
            "no live worker serves topic approval",
            "topic approval is a flow: workers that claim over HTTP don't get its jobs",
        ]


async def test_a_flow_on_a_topic_that_was_plain_is_put_back(api: Api) -> None:
    """Or is plain again by now; what counts is whether the job has declared steps."""
    job, plain = await declared(api).enqueue({}), await api.enqueue()
    del api.queue.handlers["approval"]
    api.queue.register("approval", lambda: None)
    assert await claimed(api, limit=10) == [plain["id"]]
    seen = await job.refresh()
    assert (seen.status, seen.attempt, seen.started_at) == ("pending", 0, None)
    assert "no worker has the code of step prepare" in (await api.get(f"/api/jobs/{job.id}/why")).json()["reasons"]


async def test_requeue_in_three_ways(api: Api) -> None:
    id = await waiting(api, declared(api), size=100_000)
    await api.post(f"/api/jobs/{id}/signal", {"step": "approve", "result": {"ok": False}})
    await api.queue.run_until_empty()
    assert (await api.get(f"/api/jobs/{id}")).json()["status"] == "failed"
    for body, steps in (
        ({}, ["publish"]),
        ({"mode": "all"}, ["prepare", "approve", "publish"]),
        ({"mode": "from", "step": "approve"}, ["approve", "publish"]),
        ({"payload": {"size": 1}}, ["prepare", "approve", "publish"]),
    ):
        planned = await api.post(f"/api/jobs/{id}/requeue?dryRun=true", body)
        assert (planned.status_code, planned.json()["wouldRun"], planned.json()["status"]) == (200, steps, "failed")
    assert failure(await api.post(f"/api/jobs/{id}/requeue", {"mode": "from", "step": "x"})) == (404, "unknown_step")
    assert (await api.post(f"/api/jobs/{id}/requeue", {"mode": "from", "payload": {}})).status_code == 400
    done = (await api.post(f"/api/jobs/{id}/requeue", {"mode": "from", "step": "approve"})).json()
    assert [step["status"] for step in done["steps"]] == ["completed", "pending", "pending"]
    assert done["steps"][0]["result"] is None
    [run] = (await api.get(f"/api/jobs/{id}/steps/prepare")).json()["items"]
    assert (len(run["result"]), run["resultSize"]) == (100_000, 100_002)


async def test_requeue_of_a_job_that_has_not_ended(api: Api) -> None:
    id = await waiting(api, declared(api))
    for body in ({}, {"mode": "all"}, {"mode": "from", "step": "approve"}, {"mode": "from", "step": "nothing"}):
        assert failure(await api.post(f"/api/jobs/{id}/requeue", body)) == (409, "wrong_state"), body
    assert (await api.post(f"/api/jobs/{id}/requeue", {"mode": "some"})).status_code == 400
    assert (await api.post(f"/api/jobs/{id}/requeue", {"mode": "from"})).status_code == 400


async def test_a_new_payload(api: Api) -> None:
    id = await waiting(api, declared(api))
    await api.post(f"/api/jobs/{id}/cancel")
    done = (await api.post(f"/api/jobs/{id}/requeue", {"payload": {"size": 5}})).json()
    assert (done["payload"], [step["status"] for step in done["steps"]]) == ({"size": 5}, ["pending"] * 3)
    events = (await api.get(f"/api/jobs/{id}/events")).json()["items"]
    assert events[-1]["metadata"]["payload"] == {}


async def test_steps_that_are_not_there(api: Api) -> None:
    id = (await api.enqueue())["id"]
    assert failure(await api.get(f"/api/jobs/{id}/steps/nothing")) == (404, "unknown_step")
    assert (await api.get(f"/api/jobs/{id}/steps/outer/inner")).status_code == 404
    assert (await api.get(f"/api/jobs/{id}/steps/x?limit=0")).status_code == 400


@pytest.mark.every_store
async def test_the_items_of_a_mapped_step_are_paged(api: Api) -> None:
    flow = api.queue.flow("mapped", max_attempts=1)

    @flow.step
    async def fetch(ctx: Context, payload: dict[str, Any]) -> list[dict[str, str]]:
        return [{"id": name} for name in "abcde"]

    @flow.step(map=fetch, key="id", max_failed=1)
    async def each(ctx: Context, payload: dict[str, Any], item: dict[str, str]) -> str:
        if item["id"] == "b":
            raise ValueError("no b")
        return item["id"].upper()

    @flow.step(after=[fetch])
    async def beside(ctx: Context, payload: dict[str, Any]) -> None: ...

    id = await waiting(api, flow)
    job = (await api.get(f"/api/jobs/{id}")).json()
    assert (job["status"], job["result"]) == ("completed", {"each": ["A", None, "C", "D", "E"], "beside": None})
    entry = next(step for step in job["steps"] if step["id"] == "each")
    assert (entry["status"], entry["items"], entry["progress"], entry["result"], entry["key"]) == (
        "completed",
        {"total": 5, "done": 4, "failed": 1},
        100,
        None,
        None,
    )
    page = (await api.get(f"/api/jobs/{id}/steps/each?offset=1&limit=2")).json()
    assert [(one["key"], one["status"], one["result"]) for one in page["items"]] == [
        ("b", "failed", None),
        ("c", "completed", "C"),
    ]
    assert "no b" in page["items"][0]["error"]
    again = await api.post(f"/api/jobs/{id}/requeue?dryRun=true", {"mode": "from", "step": "each", "force": True})
    assert again.json()["wouldRun"] == ["each"]
    await api.queue.save_templates()
    steps = (await api.get("/api/templates/mapped")).json()["steps"]
    assert [(step["after"], step["map"], step["limit"]) for step in steps] == [
        (None, None, None),
        (None, "fetch", 8),
        (["fetch"], None, None),
    ]
