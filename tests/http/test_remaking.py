"""A requeue with a payload and a change of options make another job: the caller must be able to enqueue that job."""

from typing import Any

import pytest

from tests.http.api import Api, failure

OWN = "createdBy = @request.auth.id"
SIGNED_IN = "@request.auth.id != ''"


async def ended(api: Api, topic: str = "mail", **body: Any) -> str:
    made = await api.enqueue(topic, as_="ann", **body)
    assert (await api.post(f"/api/jobs/{made['id']}/cancel", as_="ann")).status_code == 200
    return str(made["id"])


@pytest.mark.parametrize("rule", ["payload.size < 10", "@request.body.payload.size < 10"])
async def test_a_requeue_with_a_payload_passes_the_enqueue_rule(api: Api, rule: str) -> None:
    await api.rules(enqueue_rule=f"{SIGNED_IN} && {rule}", manage_rule=OWN)
    id = await ended(api, payload={"size": 1})
    bodies: list[dict[str, Any]] = [{"payload": {"size": 10}}, {"payload": {}}]
    for body in (*bodies, {**bodies[0], "dryRun": True}):
        refused = await api.post(f"/api/jobs/{id}/requeue", body, as_="ann")
        assert failure(refused) == (403, "forbidden"), body
    job = await api.queue.get(id)
    assert (job.status, job.payload) == ("cancelled", {"size": 1})
    done = await api.post(f"/api/jobs/{id}/requeue", {"payload": {"size": 9}}, as_="ann")
    assert (done.status_code, done.json()["payload"]) == (200, {"size": 9})


async def test_a_requeue_with_a_payload_passes_allowed_topics(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=OWN)
    id = await ended(api, "old")
    await api.rules(allowed_topics=["mail"])
    again = await api.post(f"/api/jobs/{id}/requeue", {"payload": {"x": 1}}, as_="ann")
    assert failure(again) == (403, "topic_not_allowed")
    key = await api.key("manage", "enqueue")
    assert failure(await api.post(f"/api/jobs/{id}/requeue", {"payload": {}}, as_=key)) == (403, "topic_not_allowed")
    assert (await api.post(f"/api/jobs/{id}/requeue", as_="ann")).status_code == 200  # the job that she was let make
    await api.post(f"/api/jobs/{id}/cancel")
    assert (await api.post(f"/api/jobs/{id}/requeue", {"payload": {"x": 1}})).status_code == 200  # as the superuser


async def test_a_requeue_without_a_payload_is_a_matter_of_the_manage_rule(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=OWN)
    id = await ended(api)
    await api.rules(enqueue_rule="")
    assert failure(await api.post(f"/api/jobs/{id}/requeue", {"payload": {}}, as_="ann")) == (403, "forbidden")
    key = await api.key("manage")
    assert failure(await api.post(f"/api/jobs/{id}/requeue", {"payload": {}}, as_=key)) == (403, "forbidden")
    assert (await api.post(f"/api/jobs/{id}/requeue", as_="ann")).status_code == 200


async def test_the_body_of_a_requeue_is_read_as_the_enqueue_that_would_make_the_job(api: Api) -> None:
    scoped = "@request.body.scopeId = @request.auth.team && @request.body.topic = 'mail'"
    retries = "@request.body.maxRetries:isset = false || @request.body.maxRetries <= 3"
    await api.rules(enqueue_rule=f"{scoped} && ({retries})", manage_rule=OWN)
    id = await ended(api, scope="team", scopeId="red", maxRetries=2, idempotencyKey="k")
    assert (await api.post(f"/api/jobs/{id}/requeue", {"payload": {"x": 1}}, as_="ann")).status_code == 200
    assert (await api.patch(f"/api/jobs/{id}", {"maxAttempts": 3}, as_="ann")).status_code == 200
    assert (await api.patch(f"/api/jobs/{id}", {"maxAttempts": 4}, as_="ann")).status_code == 403
    assert (await api.patch(f"/api/jobs/{id}", {"priority": 1}, as_="ann")).status_code == 200


async def test_a_job_changed_by_patch_passes_the_enqueue_rule(api: Api) -> None:
    await api.rules(enqueue_rule="priority <= 50 && createdBy = @request.auth.id", manage_rule=OWN)
    made = await api.enqueue("mail", as_="ann")
    path = f"/api/jobs/{made['id']}"
    for body in ({"priority": 2_000_000_000}, {"priority": "high"}, {"priority": 51, "maxRetries": 2}):
        assert failure(await api.patch(path, body, as_="ann")) == (403, "forbidden"), body
    assert (await api.queue.get(made["id"])).priority == 50
    for body in ({"priority": 50}, {"priority": "low"}, {"runAt": "2999-01-01T00:00:00Z"}):
        assert (await api.patch(path, body, as_="ann")).status_code == 200, body
    assert (await api.patch(path, {"priority": 100}, as_=await api.key("manage"))).status_code == 200


async def test_a_bulk_patch_changes_only_jobs_that_the_caller_could_enqueue(api: Api) -> None:
    rule = "createdBy = @request.auth.id && (priority <= 50 || topic = 'urgent')"
    await api.rules(enqueue_rule=rule, manage_rule=SIGNED_IN)
    topics = ["mail", "urgent", "mail"]
    ids = [(await api.enqueue(topic, as_="ann"))["id"] for topic in topics]
    ids.append((await api.enqueue("urgent", as_="bob"))["id"])
    bulk = {"action": "patch", "filter": "id != ''", "priority": 1000}
    done = (await api.post("/api/jobs/bulk", bulk, as_="ann")).json()
    assert (done["matched"], done["changed"], done["refused"]) == (4, 1, 3)
    assert [(await api.queue.get(id)).priority for id in ids] == [50, 1000, 50, 50]
    background = await api.post("/api/jobs/bulk", {**bulk, "background": True}, as_="ann")
    assert failure(background) == (403, "forbidden")


async def test_in_a_bulk_patch_the_body_is_that_of_each_job(api: Api) -> None:
    rule = f"{SIGNED_IN} && @request.body.payload.kind = 'small' && @request.body.priority <= 75"
    await api.rules(enqueue_rule=f"{SIGNED_IN}", manage_rule=OWN)
    ids = [(await api.enqueue("mail", {"kind": kind}, as_="ann"))["id"] for kind in ("small", "large")]
    await api.rules(enqueue_rule=rule)
    for priority in (75, 76):
        await api.post("/api/jobs/bulk", {"action": "patch", "filter": "id != ''", "priority": priority}, as_="ann")
    assert [(await api.queue.get(id)).priority for id in ids] == [75, 50]
