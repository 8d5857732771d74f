"""Schedules over HTTP: every field, every refusal, and who may do what."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from tests.http.api import PASSWORD, Api, failure
from tests.queue.scheduling import fire, make_due
from treadle.accounts import SUPERUSERS
from treadle.store.values import RecordWrite

FIELDS = set(
    "id topic cron every startAt endAt timezone payload scope scopeId createdBy createdAt updatedAt version enabled "
    "missed overlap jitterSeconds nextRunAt lastRunAt lastJobId description next source problem".split()
)
DAILY = {"topic": "report", "cron": "0 9 * * *"}


async def made(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.post("/api/schedules", {**DAILY, **body})
    assert answer.status_code == 200, answer.text
    schedule: dict[str, Any] = answer.json()
    return schedule


async def test_a_schedule_has_every_field(api: Api) -> None:
    schedule = await made(api, timezone="Asia/Taipei", payload={"until": "{{scheduledAt}}"})
    assert set(schedule) == FIELDS
    assert schedule["description"] == "Every day at 09:00 (Asia/Taipei)"
    assert len(schedule["next"]) == 5
    assert schedule["nextRunAt"] == schedule["next"][0]
    assert schedule["nextRunAt"].endswith("T01:00:00.000Z")
    assert schedule["createdBy"] == api.people["root"].id
    expected = {"missed": "one", "overlap": "allow", "jitterSeconds": 0, "version": 1, "enabled": True, "every": None}
    assert expected.items() <= schedule.items()
    one = (await api.get(f"/api/schedules/{schedule['id']}")).json()
    assert one == schedule
    assert (await api.get("/api/schedules")).json() == {"items": [schedule]}
    assert (await api.get("/api/schedules", params={"topic": "other"})).json() == {"items": []}


async def test_an_interval_with_every_option(api: Api) -> None:
    schedule = await made(
        api,
        cron=None,
        every="90s",
        id="poller",
        startAt="2030-01-01T00:00:00Z",
        endAt="2030-02-01T00:00:00+01:00",
        scope="user",
        scopeId="u1",
        missed="all",
        overlap="queue",
        jitterSeconds=30,
    )
    expected = {
        "id": "poller",
        "cron": None,
        "every": "90s",
        "startAt": "2030-01-01T00:00:00.000Z",
        "endAt": "2030-01-31T23:00:00.000Z",
        "scope": "user",
        "scopeId": "u1",
        "missed": "all",
        "overlap": "queue",
        "jitterSeconds": 30,
        "nextRunAt": "2030-01-01T00:00:00.000Z",
        "description": "Every 90 seconds",
    }
    assert expected.items() <= schedule.items()
    assert failure(await api.post("/api/schedules", {**DAILY, "id": "poller"})) == (409, "version_conflict")


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"cron": "61 * * * *"}, 400, "invalid_cron", "cron"),
        ({"cron": "0 0 30 2 *"}, 400, "invalid_cron", "cron"),
        ({"cron": "0 0 1--100000000 * *"}, 400, "invalid_cron", "cron"),
        ({"cron": "*" * 10_240}, 400, "invalid_cron", "cron"),
        ({"cron": "1," * 5_120 + "1 * * * *"}, 400, "invalid_cron", "cron"),
        ({"cron": "0 0 */40 * MON#5"}, 400, "invalid_cron", "cron"),
        ({"timezone": "Mars/Base"}, 400, "unknown_timezone", "timezone"),
        ({"timezone": "../../etc/passwd"}, 400, "unknown_timezone", "timezone"),
        ({"timezone": "A" * 10_240}, 400, "unknown_timezone", "timezone"),
        ({"payload": {"a": "{{today}}"}}, 400, "invalid_payload", "payload"),
        ({"payload": {"a": [{"{{scheduledAt}}": 1}]}}, 400, "invalid_payload", "payload"),
        ({"endAt": "2020-01-01T00:00:00Z"}, 400, "invalid_input", "endAt"),
        ({"payload": []}, 400, "invalid_input", "payload"),
        ({"every": "5s"}, 400, "invalid_input", "cron"),
        ({"cron": None}, 400, "invalid_input", "cron"),
        ({"cron": None, "every": "1ms"}, 400, "invalid_input", "every"),
        ({"cron": None, "every": "soon"}, 400, "invalid_input", "every"),
        ({"missed": "some"}, 400, "invalid_input", "missed"),
        ({"jitterSeconds": -1}, 400, "invalid_input", "jitterSeconds"),
        ({"jitterSeconds": 86_401}, 400, "invalid_input", "jitterSeconds"),
        ({"jitterSeconds": "5s"}, 400, "invalid_input", "jitterSeconds"),
        ({"startAt": "2030-01-01"}, 400, "invalid_input", "startAt"),
        ({"startAt": "2030-01-02T00:00:00Z", "endAt": "2030-01-01T00:00:00Z"}, 400, "invalid_input", "endAt"),
        ({"id": "../x"}, 400, "invalid_input", "id"),
        ({"topic": "../x"}, 400, "invalid_input", "topic"),
        ({"colour": "red"}, 400, None, "colour"),
        ({"nextRunAt": "2030-01-01T00:00:00Z"}, 400, None, "nextRunAt"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_bad_input_names_its_field_and_stores_nothing(
    api: Api, body: dict[str, Any], status: int, code: str | None, field: str
) -> None:
    answer = await api.post("/api/schedules", {**DAILY, **body})
    found = failure(answer)
    assert found == (status, code or found[1])
    assert field in answer.json()["data"]
    assert (await api.get("/api/schedules")).json() == {"items": []}
    kept = await made(api, id="kept")
    if "id" not in body:
        refused = failure(await api.patch("/api/schedules/kept", {"cron": DAILY["cron"], **body}))
        assert refused == found
    assert (await api.get("/api/schedules")).json() == {"items": [kept]}


async def test_a_patch_changes_what_is_given_and_an_older_version_is_refused(api: Api) -> None:
    schedule = await made(api, scope="user", startAt="2030-01-01T00:00:00Z")
    path = f"/api/schedules/{schedule['id']}"
    answer = await api.patch(path, {"version": 1, "cron": "0 10 * * *", "startAt": None, "timezone": "Europe/Berlin"})
    changed = answer.json()
    assert (changed["version"], changed["cron"], changed["startAt"], changed["scope"]) == (
        2,
        "0 10 * * *",
        None,
        "user",
    )
    assert failure(await api.patch(path, {"version": 1, "enabled": False})) == (409, "version_conflict")
    assert failure(await api.patch(path, {"cron": "61 * * * *"})) == (400, "invalid_cron")
    assert failure(await api.patch(path, {"timezone": "Mars/Base"})) == (400, "unknown_timezone")
    assert (await api.get(path)).json() == changed
    every = (await api.patch(path, {"every": "90s"})).json()
    assert (every["cron"], every["every"]) == (None, "90s")
    off = (await api.patch(path, {"enabled": False, "timezone": None, "payload": None})).json()
    assert (off["enabled"], off["nextRunAt"]) == (False, None)


async def test_run_now_makes_a_job(api: Api) -> None:
    schedule = await made(api, payload={"by": "{{scheduleId}}"}, overlap="skip")
    path = f"/api/schedules/{schedule['id']}"
    for _ in range(2):
        answer = await api.post(f"{path}/run")
        assert answer.status_code == 200
        job = answer.json()
        assert (job["scheduleId"], job["payload"], job["topic"]) == (schedule["id"], {"by": schedule["id"]}, "report")
        assert job["scheduledAt"] is not None
    after = (await api.get(path)).json()
    assert (after["nextRunAt"], after["lastJobId"]) == (schedule["nextRunAt"], job["id"])
    listed = await api.get("/api/jobs", params={"filter": f"scheduleId = '{schedule['id']}'"})
    assert listed.json()["totalItems"] == 2


async def test_a_topic_that_can_not_be_scheduled(api: Api) -> None:
    schedule = await made(api)
    api.queue.register("by_hand", lambda: None, schedulable=False)
    await api.queue.save_templates()
    answer = await api.post("/api/schedules", {**DAILY, "topic": "by_hand"})
    assert failure(answer) == (409, "not_schedulable")
    moved = await api.patch(f"/api/schedules/{schedule['id']}", {"topic": "by_hand"})
    assert failure(moved) == (409, "not_schedulable")
    assert (await api.get("/api/schedules")).json() == {"items": [schedule]}
    api.queue.register("report", lambda: None, schedulable=False)
    await api.queue.save_templates()
    assert failure(await api.post(f"/api/schedules/{schedule['id']}/run")) == (409, "not_schedulable")


async def test_a_schedule_from_code_is_edited_but_not_deleted(api: Api) -> None:
    api.queue.register("nightly", lambda: None, schedule="30 2 * * *", timezone="Europe/Berlin")
    await api.queue.save_templates()
    schedule = (await api.get("/api/schedules/nightly")).json()
    assert schedule["source"] == "http/test_schedules.py"
    assert failure(await api.delete("/api/schedules/nightly")) == (409, "code_defined")
    assert failure(await api.patch("/api/schedules/nightly", {"topic": "other"})) == (409, "code_defined")
    assert (await api.patch("/api/schedules/nightly", {"cron": "30 3 * * *"})).json()["version"] == 2


@pytest.mark.every_store
async def test_deleting(api: Api) -> None:
    schedule = await made(api)
    path = f"/api/schedules/{schedule['id']}"
    assert (await api.delete(path)).status_code == 204
    for answer in (
        await api.get(path),
        await api.delete(path),
        await api.post(f"{path}/run"),
        await api.patch(path, {}),
    ):
        assert failure(answer) == (404, "not_found")
    assert failure(await api.get("/api/schedules/" + "x" * 5000)) == (404, "not_found")


async def test_why_a_slot_made_no_job(api: Api) -> None:
    api.queue.register("off", lambda: None, enabled=False)
    schedule = await made(api, topic="off")
    path = f"/api/schedules/{schedule['id']}"
    assert failure(await api.post(f"{path}/run")) == (409, "template_disabled")
    assert (await api.get(f"{path}/events")).json() == {"items": []}
    await make_due(api.queue, schedule["id"])
    await fire(api.queue)
    [event] = (await api.get(f"{path}/events")).json()["items"]
    assert (event["type"], event["message"]) == ("schedule:skipped", "the template of off is disabled")
    assert set(event) == {"type", "message", "createdAt"}
    after = (await api.get(path)).json()
    assert (after["problem"], after["lastRunAt"], after["lastJobId"]) == (event["message"], None, None)
    assert after["nextRunAt"] == schedule["nextRunAt"]
    assert (await api.get("/api/jobs")).json()["totalItems"] == 0


async def test_a_slot_and_its_job(api: Api) -> None:
    schedule = await made(api, payload={"until": "{{scheduledAt}}"}, scope="account", scopeId="a1")
    path = f"/api/schedules/{schedule['id']}"
    await make_due(api.queue, schedule["id"])
    await fire(api.queue)
    after = (await api.get(path)).json()
    job = (await api.get(f"/api/jobs/{after['lastJobId']}")).json()
    assert (job["scheduleId"], job["scheduledAt"], job["topic"]) == (schedule["id"], after["lastRunAt"], "report")
    assert job["payload"] == {"until": job["scheduledAt"]}
    assert (job["scope"], job["scopeId"], job["createdBy"]) == ("account", "a1", schedule["createdBy"])
    assert {**after, "lastRunAt": None, "lastJobId": None} == schedule, "a run changes nothing else, also no version"


async def test_jitter_is_a_number_of_seconds(api: Api) -> None:
    schedule = await made(api, id="spread", jitterSeconds=0.5)
    assert schedule["jitterSeconds"] == 0.5
    path = "/api/schedules/spread"
    assert (await api.patch(path, {"jitterSeconds": 3600})).json()["jitterSeconds"] == 3600
    await make_due(api.queue, "spread")
    await fire(api.queue)
    [job] = (await api.get("/api/jobs")).json()["items"]
    late = datetime.fromisoformat(job["runAt"]) - datetime.fromisoformat(job["scheduledAt"])
    assert timedelta(0) <= late <= timedelta(hours=1)


async def test_the_schedules_of_a_deleted_account_are_off_and_say_so(api: Api) -> None:
    eve = await api.accounts.upsert_superuser("eve@example.com", PASSWORD)
    api.tokens["eve"] = await api.accounts.token(eve)
    answer = await api.post("/api/schedules", {**DAILY, "id": "hers"}, as_="eve")
    assert answer.json()["createdBy"] == eve.id
    await made(api, id="mine")
    await api.accounts.delete(SUPERUSERS, eve.id)
    await api.queue.schedules.disable_created_by(eve.id, "the account eve@example.com was deleted")
    hers, mine = [(await api.get(f"/api/schedules/{id}")).json() for id in ("hers", "mine")]
    assert (hers["enabled"], hers["nextRunAt"]) == (False, None)
    assert hers["problem"] == "the account eve@example.com was deleted"
    assert (mine["enabled"], mine["problem"]) == (True, None)


# -- who may -----------------------------------------------------------------------------------------


async def test_superusers_and_keys_write_and_the_rule_says_who_reads(api: Api) -> None:
    schedule = await made(api)
    path = f"/api/schedules/{schedule['id']}"
    await api.rules(manage_rule="@request.auth.id != ''")
    assert (await api.get(path, as_="ann")).status_code == 200
    assert failure(await api.get(path, as_=None))[0] == 401
    for answer in (
        await api.post("/api/schedules", DAILY, as_="ann"),
        await api.patch(path, {"enabled": False}, as_="ann"),
        await api.delete(path, as_="ann"),
        await api.post(f"{path}/run", as_="ann"),
        await api.post("/api/schedules", DAILY, as_=await api.key("enqueue", "manage")),
    ):
        assert failure(answer) == (403, "forbidden")
    answer = await api.post("/api/schedules", DAILY, as_=await api.key("schedules"))
    assert answer.status_code == 200


async def test_a_rule_over_jobs_shows_the_schedules_of_such_jobs(api: Api) -> None:
    ann = api.people["ann"].id
    mine = await made(api, scope="user", scopeId=ann)
    other = await made(api, scope="user", scopeId="somebody")
    await api.rules(manage_rule="scopeId = @request.auth.id")
    assert [one["id"] for one in (await api.get("/api/schedules", as_="ann")).json()["items"]] == [mine["id"]]
    hidden, unknown = (
        await api.get(f"/api/schedules/{other['id']}", as_="ann"),
        await api.get("/api/schedules/x", as_="ann"),
    )
    assert failure(hidden) == (404, "not_found")
    assert hidden.content == unknown.content


async def test_allowed_topics_bind_keys(api: Api) -> None:
    key = await api.key("schedules")
    schedule = await made(api)
    await api.rules(allowed_topics=["mail"])
    assert failure(await api.post("/api/schedules", DAILY, as_=key)) == (403, "topic_not_allowed")
    assert (await api.post("/api/schedules", {**DAILY, "topic": "mail"}, as_=key)).status_code == 200
    answer = await api.patch(f"/api/schedules/{schedule['id']}", {"topic": "other"}, as_=key)
    assert failure(answer) == (403, "topic_not_allowed")


async def test_the_api_that_is_switched_off(api: Api) -> None:
    schedule = await made(api)
    await api.rules(http_enabled=False)
    for answer in (await api.get("/api/schedules"), await api.post(f"/api/schedules/{schedule['id']}/run")):
        assert failure(answer) == (403, "http_disabled")


async def test_an_end_can_not_be_moved_to_the_past_but_an_ended_schedule_can_be_changed(api: Api) -> None:
    schedule = await made(api, id="ending", endAt="2030-01-01T00:00:00Z")
    refused = await api.patch("/api/schedules/ending", {"endAt": "2020-01-01T00:00:00Z"})
    assert failure(refused) == (400, "invalid_input")
    assert set(refused.json()["data"]) == {"endAt"}
    assert (await api.get("/api/schedules/ending")).json()["endAt"] == schedule["endAt"]
    (record,) = await api.queue.store.get_records([("schedule", "ending")])
    assert record is not None
    ended = from_json(record.body) | {"end_ms": 1_577_836_800_000}
    write = RecordWrite("schedule", "ending", "ending", to_json(ended).decode(), None, record.version)
    assert (await api.queue.store.write_records([write]))[0]
    changed = await api.patch("/api/schedules/ending", {"enabled": False, "endAt": "2020-01-01T00:00:00Z"})
    assert (changed.status_code, changed.json()["enabled"]) == (200, False)
