"""Secret payload fields over HTTP: only the worker that claims a job gets them."""

import json

import pytest

from tests.http.api import Api, failure

TOKEN = "s3cr3t-t0k3n"
GIVEN = {"user": "ann", "token": TOKEN}
SHOWN = {"user": "ann", "token": "***"}


@pytest.mark.every_store
async def test_only_a_worker_gets_a_secret(api: Api) -> None:
    api.queue.register("pay", lambda payload: None, secret=["token"])
    await api.queue.save_templates()
    made = await api.enqueue("pay", GIVEN)
    assert made["payload"] == SHOWN
    many = await api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "pay", "payload": GIVEN}]})
    dispatched = await api.post("/api/jobs/pay/dispatch", {"args": GIVEN})
    answers = [many, dispatched]
    for path in (f"/{made['id']}", "", f"/{made['id']}/events", "?topic=pay", '?filter=payload.user="ann"'):
        answers.append(await api.get(f"/api/jobs{path}"))
    answers.append(await api.patch(f"/api/jobs/{made['id']}", {"priority": "low"}))
    answers.append(await api.post(f"/api/jobs/{made['id']}/cancel"))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert TOKEN not in answer.text
    claimed = await api.post("/api/workers/claim", {"workerId": "rust-1", "topics": ["pay"], "limit": 5})
    assert [job["payload"] for job in claimed.json()["items"]] == [GIVEN, GIVEN]


async def test_a_filter_over_a_secret_is_refused(api: Api) -> None:
    api.queue.register("pay", lambda payload: None, secret=["token"])
    await api.queue.save_templates()
    await api.enqueue("pay", GIVEN)
    refused = await api.get("/api/jobs", params={"filter": f'payload.token = "{TOKEN}"'})
    assert failure(refused)[0] == 400
    assert "payload.token is secret and can't be searched" in refused.text
    bulk = await api.post(
        "/api/jobs/bulk", {"action": "cancel", "filter": f'payload.token = "{TOKEN}"', "dryRun": True}
    )
    assert failure(bulk)[0] == 400


async def test_asterisks_are_refused_as_a_value(api: Api) -> None:
    api.queue.register("pay", lambda payload: None, secret=["token"])
    await api.queue.save_templates()
    refused = await api.post("/api/jobs/enqueue", {"topic": "pay", "payload": SHOWN})
    assert failure(refused)[0] == 400
    assert "stands for a secret" in json.loads(refused.text)["message"]


@pytest.mark.every_store
async def test_a_schedule_shows_no_secret_and_its_jobs_get_it(api: Api) -> None:
    api.queue.register("pay", lambda payload: None, secret=["token"])
    await api.queue.save_templates()
    body = {"id": "monthly", "topic": "pay", "cron": "0 0 1 * *", "payload": GIVEN}
    made = await api.post("/api/schedules", body)
    assert made.json()["payload"] == SHOWN
    edited = await api.patch("/api/schedules/monthly", {"payload": {**SHOWN, "user": "bob"}})
    assert edited.json()["payload"] == {"user": "bob", "token": "***"}
    answers = [made, edited, await api.patch("/api/schedules/monthly", {"timezone": "Asia/Taipei"})]
    answers += [await api.get(f"/api/schedules{path}") for path in ("", "/monthly", "/monthly/events")]
    answers.append(await api.post("/api/schedules/monthly/run"))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert TOKEN not in answer.text
    claimed = await api.post("/api/workers/claim", {"workerId": "rust-1", "topics": ["pay"], "limit": 5})
    assert [job["payload"] for job in claimed.json()["items"]] == [{"user": "bob", "token": TOKEN}]


async def test_no_refusal_of_a_schedule_repeats_a_secret(api: Api) -> None:
    api.queue.register("pay", lambda payload: None, secret=["token"])
    await api.queue.save_templates()
    refused = await api.post(
        "/api/schedules", {"topic": "pay", "cron": "@daily", "payload": {"token": "{{%s}}" % TOKEN}}
    )
    assert failure(refused)[0] == 400
    assert "payload.token: has an unknown placeholder" in refused.text
    assert TOKEN not in refused.text
    asterisks = await api.post("/api/schedules", {"topic": "pay", "cron": "@daily", "payload": SHOWN})
    assert failure(asterisks)[0] == 400
    assert "stands for a secret" in asterisks.text


async def test_a_schedule_takes_no_secret_to_another_topic(api: Api) -> None:
    api.queue.register("pay", lambda payload: None, secret=["token"])
    await api.queue.save_templates()
    await api.post("/api/schedules", {"id": "monthly", "topic": "pay", "cron": "@monthly", "payload": GIVEN})
    refused = await api.patch("/api/schedules/monthly", {"topic": "open"})
    assert failure(refused)[0] == 400
    assert "payload: it has secrets of pay" in refused.text
    moved = await api.patch("/api/schedules/monthly", {"topic": "open", "payload": SHOWN})
    assert moved.status_code == 200
    assert TOKEN not in moved.text
    await api.post("/api/schedules/monthly/run")
    claimed = await api.post("/api/workers/claim", {"workerId": "rust-1", "topics": ["open"], "limit": 5})
    assert [job["payload"] for job in claimed.json()["items"]] == [SHOWN]


async def test_the_events_of_a_requeue_show_no_secret_of_the_old_payload(api: Api) -> None:
    api.queue.register("pay", lambda payload: None, secret=["token"])
    await api.queue.save_templates()
    made = await api.enqueue("pay", GIVEN)
    await api.post(f"/api/jobs/{made['id']}/cancel")
    again = await api.post(f"/api/jobs/{made['id']}/requeue", {"payload": {**GIVEN, "user": "bob"}})
    told = await api.get(f"/api/jobs/{made['id']}/events")
    assert told.json()["items"][-1]["metadata"]["payload"] == SHOWN
    assert TOKEN not in again.text + told.text
