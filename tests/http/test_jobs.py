"""Jobs over HTTP: enqueue, inspect, control."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.api import Api, failure
from tests.queue.hands import eventually
from treadle import WrongState
from treadle.model.fields import JSON_NAMES
from treadle.model.job import rfc3339

UNKNOWN = "01890000-0000-7000-8000-000000000000"


# -- enqueue -----------------------------------------------------------------------------------------


async def test_an_enqueued_job_is_answered_whole(api: Api) -> None:
    job = await api.enqueue("mail_digest", {"userId": "123"})
    assert set(job) == JSON_NAMES | {"deduplicated"}
    assert (job["topic"], job["status"], job["payload"]) == ("mail_digest", "pending", {"userId": "123"})
    assert (job["steps"], job["result"], job["lockedBy"], job["retries"]) == ([], None, None, 0)
    assert job["createdBy"] == api.people["root"].id


async def test_every_option_of_enqueue(api: Api) -> None:
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    job = await api.enqueue(
        runAt=rfc3339(when),
        expiresAt=rfc3339(when + timedelta(hours=1)),
        maxRetries=5,
        priority="high",
        capability="media",
        idempotencyKey="k-1",
        scope="user",
        scopeId="42",
    )
    assert job["runAt"] == rfc3339(when)
    assert job["expiresAt"] == rfc3339(when + timedelta(hours=1))
    assert (job["maxRetries"], job["maxAttempts"], job["priority"]) == (5, 5, 75)
    assert (job["capability"], job["idempotencyKey"], job["scope"], job["scopeId"]) == ("media", "k-1", "user", "42")


async def test_a_delay_moves_the_time(api: Api) -> None:
    job = await api.enqueue(delay="15m")
    assert datetime.fromisoformat(job["runAt"]) - datetime.fromisoformat(job["createdAt"]) == timedelta(minutes=15)


async def test_the_same_key_is_the_same_job(api: Api) -> None:
    first = await api.enqueue(payload={"a": 1}, idempotencyKey="k")
    again = await api.enqueue(payload={"a": 1}, idempotencyKey="k")
    assert again["id"] == first["id"]
    assert (first["deduplicated"], again["deduplicated"]) == (False, True)
    other = await api.post("/api/jobs/enqueue", {"topic": "mail", "payload": {"a": 2}, "idempotencyKey": "k"})
    assert failure(other) == (422, "idempotency_key_reused")


async def test_the_same_payload_in_another_order_is_the_same(api: Api) -> None:
    first = await api.enqueue(payload={"a": 1, "b": {"x": [1], "y": "ü"}}, idempotencyKey="k")
    again = await api.enqueue(payload={"b": {"y": "ü", "x": [1]}, "a": 1}, idempotencyKey="k")
    assert again["id"] == first["id"]


async def test_a_users_keys_are_their_own(api: Api) -> None:
    await api.rules(enqueue_rule="true", manage_rule="createdBy = @request.auth.id")
    jobs = {who: await api.enqueue(payload={"a": who}, idempotencyKey="k", as_=who) for who in ("ann", "bob", None)}
    in_python = await api.queue.enqueue("mail", {"a": "python"}, idempotency_key="k")
    assert len({*(job["id"] for job in jobs.values()), in_python.id}) == 4
    assert {job["idempotencyKey"] for job in jobs.values()} == {"k"}
    for who, job in jobs.items():
        again = await api.enqueue(payload={"a": who}, idempotencyKey="k", as_=who)
        assert (again["id"], again["deduplicated"]) == (job["id"], True)
        other = {"topic": "mail", "payload": {"a": "other"}, "idempotencyKey": "k"}
        assert failure(await api.post("/api/jobs/enqueue", other, as_=who)) == (422, "idempotency_key_reused")
    many = await api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "mail", "idempotencyKey": "n"}] * 2}, as_="ann")
    assert len({job["id"] for job in many.json()["items"]}) == 1
    assert (await api.enqueue(idempotencyKey="n", as_="bob"))["deduplicated"] is False


async def test_services_and_python_share_their_keys_and_see_no_more_than_they_may(api: Api) -> None:
    first = await api.queue.enqueue("mail", {"a": 1}, idempotency_key="k")
    await api.hands.do(first, {"secret": 1})
    shown = await api.enqueue(payload={"a": 1}, idempotencyKey="k")
    assert (shown["id"], shown["result"], shown["payload"]) == (first.id, {"secret": 1}, {"a": 1})
    hidden = await api.enqueue(payload={"a": 1}, idempotencyKey="k", as_=await api.key("enqueue"))
    assert (hidden["id"], hidden["status"], hidden["deduplicated"]) == (first.id, "completed", True)
    assert (hidden["result"], hidden["payload"], hidden["createdBy"]) == (None, {}, None)


async def test_who_may_only_enqueue_gets_their_own_job_again(api: Api) -> None:
    key = await api.key("enqueue")
    await api.enqueue(payload={"a": 1}, idempotencyKey="k", as_=key)
    again = await api.enqueue(payload={"a": 1}, idempotencyKey="k", as_=key)
    assert (again["payload"], again["deduplicated"]) == ({"a": 1}, True)


async def test_many_are_stored_all_or_none(api: Api) -> None:
    answer = await api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "a"}, {"topic": "b", "payload": {"x": 1}}]})
    assert [job["topic"] for job in answer.json()["items"]] == ["a", "b"]
    answer = await api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "a"}, {"topic": "B"}]})
    assert failure(answer) == (400, "invalid_input")
    assert "jobs.1.topic" in answer.json()["data"]
    assert await api.queue.count() == 2


@pytest.mark.parametrize("path", ["/api/jobs/export_users/dispatch", "/_api/jobs/export_users/dispatch"])
async def test_dispatch_by_topic(api: Api, path: str) -> None:
    answer = await api.post(path, {"args": {"format": "csv"}})
    assert answer.status_code == 200
    job = answer.json()
    assert (job["topic"], job["payload"], job["status"]) == ("export_users", {"format": "csv"}, "pending")


async def test_a_handlers_arguments_are_the_payload_by_name(api: Api) -> None:
    @api.queue.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    await api.queue.save_templates()
    jobs = [await api.enqueue("add", {"a": 1, "b": 3}), await api.enqueue("add", {"a": 4})]
    assert [job["payload"] for job in jobs] == [{"a": 1, "b": 3}, {"a": 4}]
    dispatched = (await api.post("/api/jobs/add/dispatch", {"args": {"a": 5, "b": 6}})).json()
    for payload in ({"a": "x"}, {"b": 1}, {"a": 1, "c": 2}):
        refused = await api.post("/api/jobs/enqueue", {"topic": "add", "payload": payload})
        assert failure(refused) == (400, "invalid_payload"), payload
    await api.queue.run_until_empty()
    ended = [(await api.get(f"/api/jobs/{job['id']}")).json() for job in [*jobs, dispatched]]
    assert [job["result"] for job in ended] == [4, 6, 11]


# -- look --------------------------------------------------------------------------------------------


async def test_get_and_its_404(api: Api) -> None:
    job = await api.enqueue()
    answer = await api.get(f"/api/jobs/{job['id']}")
    assert set(answer.json()) == JSON_NAMES
    unknown, malformed = await api.get(f"/api/jobs/{UNKNOWN}"), await api.get("/api/jobs/nonsense")
    assert failure(unknown) == (404, "not_found")
    assert unknown.content == malformed.content


async def test_a_list_has_pages(api: Api) -> None:
    ids = [(await api.enqueue())["id"] for _ in range(5)]
    answer = (await api.get("/api/jobs?page=2&perPage=2")).json()
    assert [job["id"] for job in answer.pop("items")] == [ids[2], ids[1]]
    assert answer == {
        "totalItems": 5,
        "totalCapped": False,
        "searched": None,
        "limit": 2,
        "offset": 2,
        "page": 2,
        "perPage": 2,
        "totalPages": 3,
    }
    answer = (await api.get("/api/jobs?limit=3&offset=3")).json()
    assert ([job["id"] for job in answer["items"]], answer["page"]) == ([ids[1], ids[0]], 2)


@pytest.mark.parametrize(
    ("query", "size"),
    [
        ("limit=-1", 1),
        ("limit=1000000000", 1000),
        ("perPage=100000", 1000),
        ("perPage=0", 30),
        ("page=0&perPage=-5", 30),
    ],
)
async def test_what_is_out_of_bounds_is_clamped_and_echoed(sqlite_api: Api, query: str, size: int) -> None:
    answer = await sqlite_api.get(f"/api/jobs?{query}")
    assert answer.status_code == 200
    assert (answer.json()["perPage"], answer.json()["limit"], answer.json()["page"]) == (size, size, 1)


async def test_without_a_total(api: Api) -> None:
    await api.enqueue()
    answer = (await api.get("/api/jobs?skipTotal=1")).json()
    assert (answer["totalItems"], answer["totalPages"], len(answer["items"])) == (-1, -1, 1)


async def test_a_list_by_topic_status_scope(api: Api) -> None:
    mine = await api.enqueue("a", scope="user", scopeId="1")
    await api.enqueue("a", scope="user", scopeId="2")
    await api.enqueue("b")
    for query in ("topic=a&scopeId=1", "scope=user&scopeId=1", "topic=a&status=pending&scopeId=1"):
        found = (await api.get(f"/api/jobs?{query}")).json()
        assert [job["id"] for job in found["items"]] == [mine["id"]], query
    assert (await api.get("/api/jobs?status=completed")).json()["items"] == []
    assert (await api.get("/api/jobs?status=stale")).json()["items"] == []


async def test_a_list_by_filter_search_and_sort(api: Api) -> None:
    low = await api.enqueue("a", {"user": {"id": 7}}, priority=1)
    high = await api.enqueue("a", {"user": {"id": 8}}, priority=99)
    await api.enqueue("b", {"user": {"id": "7"}})

    async def ids(**query: str) -> list[str]:
        answer = await api.get("/api/jobs", params=query)
        assert answer.status_code == 200, answer.text
        assert answer.json()["totalItems"] == len(answer.json()["items"])
        return [job["id"] for job in answer.json()["items"]]

    assert await ids(filter="payload.user.id = 7") == [low["id"]]
    assert await ids(filter="topic = 'a' && priority > 50") == [high["id"]]
    assert await ids(filter="topic = 'a'", sort="priority") == [low["id"], high["id"]]
    assert await ids(filter="topic = 'a'", sort="-priority") == [high["id"], low["id"]]
    assert await ids(q="topic:a payload.user.id:7") == [low["id"]]
    assert len(await ids(q="payload.user.id:7")) == 2


async def test_stats(api: Api) -> None:
    await api.queue.enqueue("a")
    await api.hands.do(await api.queue.enqueue("b"))
    found = (await api.get("/api/jobs/stats")).json()
    assert (found["pending"], found["completed"], found["failed"], found["successRate"]) == (1, 1, 0, 1.0)
    assert found["avgExecutionTime"] is not None
    found = (await api.get("/api/jobs/stats?topic=a")).json()
    assert (found["pending"], found["completed"], found["successRate"]) == (1, 0, None)
    assert (await api.get("/api/jobs/stats?since=1h")).json()["completed"] == 1
    assert failure(await api.get("/api/jobs/stats?since=yesterday")) == (400, "invalid_input")


async def test_the_timeline(api: Api) -> None:
    job = await api.queue.enqueue("a")
    claimed = await api.hands.claim_one("a")
    await api.hands.fail(claimed)
    await api.queue.requeue(job.id)
    events = (await api.get(f"/api/jobs/{job.id}/events")).json()["items"]
    assert [event["type"] for event in events] == ["job:enqueued", "job:started", "job:failed", "job:requeued"]
    assert [event["id"] is None for event in events] == [True, True, False, False]
    assert set(events[0]) == {"id", "jobId", "type", "from", "to", "message", "metadata", "createdAt"}


async def test_the_timeline_has_times_and_results_as_everywhere(api: Api) -> None:
    job = await api.queue.enqueue("a")
    await api.hands.fail(await api.hands.claim_one("a"), retry_in_ms=1)
    await eventually(api.hands.promoted)
    await api.hands.do(job, {"ok": True})
    done = (await api.get(f"/api/jobs/{job.id}")).json()
    assert (await api.post(f"/api/jobs/{job.id}/requeue?force=true")).status_code == 200
    events = (await api.get(f"/api/jobs/{job.id}/events")).json()["items"]
    enqueued, started, retrying, again, completed, requeued = events
    assert [event["type"].removeprefix("job:") for event in events] == (
        "enqueued started retrying started completed requeued".split()
    )
    assert enqueued["createdAt"] == done["createdAt"]
    assert retrying["metadata"]["startedAt"] == started["createdAt"]
    assert (again["createdAt"], completed["createdAt"]) == (done["startedAt"], done["completedAt"])
    outcome = requeued["metadata"]["outcome"]
    assert (outcome["startedAt"], outcome["endedAt"]) == (done["startedAt"], done["completedAt"])
    assert (outcome["status"], outcome["result"]) == ("completed", {"ok": True})
    assert (await api.get(f"/api/jobs/{job.id}")).json()["eventsCount"] == len(events)


async def test_why_it_is_not_running(api: Api) -> None:
    job = await api.enqueue("a")
    answer = (await api.get(f"/api/jobs/{job['id']}/why")).json()
    assert answer == {"id": job["id"], "status": "pending", "reasons": ["no live worker serves topic a"]}


# -- steer -------------------------------------------------------------------------------------------


async def test_cancelling_a_cancelled_job_is_409_over_http_and_in_python(api: Api) -> None:
    job = await api.enqueue()
    first = (await api.post(f"/api/jobs/{job['id']}/cancel", {"reason": "once"})).json()
    again = await api.post(f"/api/jobs/{job['id']}/cancel", {"reason": "twice"})
    assert failure(again) == (409, "wrong_state")
    assert again.json()["data"]["status"] == "cancelled"
    with pytest.raises(WrongState, match="the job is cancelled"):
        await api.queue.cancel(job["id"], "thrice")
    assert (await api.get(f"/api/jobs/{job['id']}")).json() == first, "nothing has changed"


async def test_cancel_and_requeue(api: Api) -> None:
    job = await api.enqueue()
    cancelled = (await api.post(f"/api/jobs/{job['id']}/cancel", {"reason": "not needed"})).json()
    assert (cancelled["status"], cancelled["cancelReason"]) == ("cancelled", "not needed")
    again = await api.post(f"/api/jobs/{job['id']}/cancel")
    assert (*failure(again), again.json()["data"]["status"]) == (409, "wrong_state", "cancelled")
    requeued = (await api.post(f"/api/jobs/{job['id']}/requeue")).json()
    assert (requeued["status"], requeued["retries"]) == ("pending", 0)


async def test_cancelling_a_running_job_twice_is_fine(api: Api) -> None:
    job = await api.queue.enqueue("a")
    await api.hands.claim_one("a")
    for _ in range(2):
        answer = await api.post(f"/api/jobs/{job.id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelling")


async def test_a_completed_job_is_requeued_only_with_force(api: Api) -> None:
    job = await api.queue.enqueue("a")
    await api.hands.do(job)
    assert failure(await api.post(f"/api/jobs/{job.id}/requeue")) == (409, "wrong_state")
    assert (await api.post(f"/api/jobs/{job.id}/requeue?force=true")).json()["status"] == "pending"


async def test_requeue_from_a_step_that_is_not_there(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue()
    for body in ({"mode": "from"}, {"mode": "sideways"}, {"mode": "all", "step": "prepare"}):
        assert (await sqlite_api.post(f"/api/jobs/{job['id']}/requeue", body)).status_code == 400
    from_step = {"mode": "from", "step": "prepare"}
    assert failure(await sqlite_api.post(f"/api/jobs/{job['id']}/requeue", from_step)) == (409, "wrong_state")
    await sqlite_api.post(f"/api/jobs/{job['id']}/cancel")
    assert failure(await sqlite_api.post(f"/api/jobs/{job['id']}/requeue", from_step)) == (404, "unknown_step")


async def test_patch_a_pending_job(api: Api) -> None:
    job = await api.enqueue()
    when = rfc3339(datetime.now(UTC) + timedelta(days=1))
    changed = await api.patch(f"/api/jobs/{job['id']}", {"runAt": when, "priority": "low", "maxRetries": 9})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["runAt"], changed.json()["priority"], changed.json()["maxRetries"]) == (when, 25, 9)
    await api.post(f"/api/jobs/{job['id']}/cancel")
    assert failure(await api.patch(f"/api/jobs/{job['id']}", {"priority": 1})) == (409, "wrong_state")


async def test_delete(api: Api) -> None:
    job = await api.enqueue()
    answer = await api.delete(f"/api/jobs/{job['id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert failure(await api.delete(f"/api/jobs/{job['id']}")) == (404, "not_found")


async def test_a_running_job_is_not_deleted_and_a_completed_one_only_with_force(api: Api) -> None:
    job = await api.queue.enqueue("a")
    claimed = await api.hands.claim_one("a")
    refused = await api.delete(f"/api/jobs/{job.id}")
    assert failure(refused) == (409, "wrong_state")
    assert refused.json()["data"]["status"] == "processing"
    await api.hands.complete(claimed)
    refused = await api.delete(f"/api/jobs/{job.id}")
    assert failure(refused) == (409, "wrong_state")
    assert "only with force, which over HTTP is for superusers" in refused.json()["message"]
    key = await api.key("manage")
    assert failure(await api.delete(f"/api/jobs/{job.id}?force=true", as_=key)) == (403, "forbidden")
    waiting = await api.enqueue()
    assert (await api.delete(f"/api/jobs/{waiting['id']}?force=true", as_=key)).status_code == 204
    assert (await api.delete(f"/api/jobs/{job.id}?force=true")).status_code == 204


# -- many together ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "field"),
    [("page=1&limit=5", "limit"), ("perPage=5&offset=0", "offset"), ("page=1&perPage=5&limit=5&offset=5", "limit")],
)
async def test_two_ways_to_page_are_refused(sqlite_api: Api, query: str, field: str) -> None:
    answer = await sqlite_api.get(f"/api/jobs?{query}")
    assert answer.status_code == 400
    assert list(answer.json()["data"]) == [field]


@pytest.mark.parametrize("action", ["cancel", "requeue", "delete", "release"])
@pytest.mark.parametrize(
    ("field", "value"), [("priority", 5), ("runAt", "2030-01-01T00:00:00Z"), ("maxRetries", 2)], ids=str
)
async def test_bulk_refuses_values_that_only_patch_uses(sqlite_api: Api, action: str, field: str, value: Any) -> None:
    await sqlite_api.enqueue("a", {})
    answer = await sqlite_api.post("/api/jobs/bulk", {"action": action, "filter": "topic = 'a'", field: value})
    assert answer.status_code == 400
    assert list(answer.json()["data"]) == [field]
    assert "only for patch" in answer.json()["message"]
    assert await sqlite_api.queue.count(status="pending") == 1


async def test_bulk_counts_before_it_acts(api: Api) -> None:
    for n in range(3):
        await api.enqueue("a", {"n": n})
    await api.enqueue("b")
    body = {"action": "cancel", "filter": "topic = 'a'", "dryRun": True}
    counted = (await api.post("/api/jobs/bulk", body)).json()
    assert counted == {
        "action": "cancel",
        "dryRun": True,
        "matched": 3,
        "changed": 0,
        "refused": 0,
        "operationId": None,
    }
    done = (await api.post("/api/jobs/bulk", {**body, "dryRun": False})).json()
    assert (done["matched"], done["changed"]) == (3, 3)
    assert await api.queue.count(status="cancelled") == 3
    assert await api.queue.count(status="pending") == 1


async def test_bulk_requeue_delete_and_patch(api: Api) -> None:
    for n in range(4):
        await api.enqueue("a", {"n": n})
    await api.post("/api/jobs/bulk", {"action": "cancel", "filter": "payload.n < 2"})
    done = (await api.post("/api/jobs/bulk", {"action": "requeue", "filter": "topic = 'a'"})).json()
    assert (done["matched"], done["changed"]) == (2, 2)
    done = (await api.post("/api/jobs/bulk", {"action": "patch", "filter": "payload.n = 0", "priority": 7})).json()
    assert done["changed"] == 1
    assert (await api.get("/api/jobs", params={"filter": "priority = 7"})).json()["totalItems"] == 1
    done = (await api.post("/api/jobs/bulk", {"action": "delete", "filter": "topic = 'a'"})).json()
    assert (done["matched"], done["changed"]) == (4, 4)
    assert await api.queue.count() == 0


async def test_bulk_in_more_than_one_batch(api: Api) -> None:
    await api.queue.enqueue_many("a", [{"n": n} for n in range(1203)])
    done = (await api.post("/api/jobs/bulk", {"action": "cancel", "filter": "topic = 'a'"})).json()
    assert (done["matched"], done["changed"], done["refused"]) == (1203, 1203, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "cancel"},
        {"action": "cancel", "filter": ""},
        {"action": "explode", "filter": "topic = 'a'"},
        {"action": "cancel", "filter": "topic ="},
        {"action": "patch", "filter": "topic = 'a'"},
    ],
)
async def test_bulk_refuses(sqlite_api: Api, body: dict[str, str]) -> None:
    assert (await sqlite_api.post("/api/jobs/bulk", body)).status_code == 400


# -- topics ------------------------------------------------------------------------------------------


async def test_topics_pause_and_resume(api: Api) -> None:
    await api.enqueue("a")
    paused = (await api.post("/api/topics/a/pause")).json()
    assert (paused["topic"], paused["paused"], paused["pausedUntil"], paused["pending"]) == ("a", True, None, 1)
    until = rfc3339(datetime.now(UTC) + timedelta(hours=1))
    assert (await api.post("/api/topics/a/pause", {"until": until})).json()["pausedUntil"] == until
    assert (await api.get("/api/topics")).json()["items"][0]["paused"] is True
    assert (await api.post("/api/topics/a/resume")).json()["paused"] is False
