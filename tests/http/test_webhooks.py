"""Webhooks over HTTP: every field, every refusal, who may do what, and reading by cursor."""

from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from tests.http.api import Api, failure
from treadle import Queue
from treadle.model.webhooks import WEBHOOK_EVENTS, Delivered, GaveUp, SettledDelivery, Try, Verdict
from treadle.policy.saved_endpoint import KIND

FIELDS = set(
    "id url events topics enabled description disabledReason failingSince lastDeliveredAt lastFailedAt "
    "previousSecretUntil warnings version createdAt updatedAt".split()
)
DELIVERY_FIELDS = set(
    "id webhookId endpointId jobId topic event url status createdAt finishedAt nextTryAt attempts".split()
)
URL = "https://example.com/hook"
OK = Try(200, None, 12, "thanks")


async def made(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.post("/api/webhooks", {"url": URL, **body})
    assert answer.status_code == 200, answer.text
    endpoint: dict[str, Any] = answer.json()
    return endpoint


async def counting(api: Api, **body: Any) -> dict[str, Any]:
    """One that counts already."""
    endpoint = await made(api, **body)
    await age(api.queue)
    return endpoint


async def age(queue: Queue) -> None:
    """Its endpoints become older than their first 5 seconds."""
    await RelationalDatabase(queue.url).execute(
        f"UPDATE {{records}} SET created_at = created_at - 6000 WHERE kind = '{KIND}'"
    )


async def completed(api: Api, **body: Any) -> str:
    job = await api.enqueue(**body)
    await api.hands.complete(await api.hands.claim_one(job["topic"]))
    id: str = job["id"]
    return id


async def sent(api: Api, verdict: Verdict, answer: Try = OK) -> int:
    """Settle all that is to be sent; how many there were."""
    store = api.queue.store
    claim = await store.claim_deliveries("test", 60_000)
    await store.settle_deliveries([SettledDelivery(one, answer, verdict) for one in claim.deliveries])
    return len(claim.deliveries)


# -- endpoints ---------------------------------------------------------------------------------------


async def test_an_endpoint_has_every_field_and_shows_its_secret_once(api: Api) -> None:
    new = await made(api)
    assert set(new) == FIELDS | {"secret", "key", "hints"}
    assert (new["key"], new["hints"]) == (None, [])
    assert new["secret"].startswith("whsec_")
    assert (new["url"], new["events"], new["topics"]) == (URL, list(WEBHOOK_EVENTS), [])
    assert (new["enabled"], new["version"], new["failingSince"], new["disabledReason"]) == (True, 1, None, None)
    one = (await api.get(f"/api/webhooks/{new['id']}")).json()
    assert set(one) == FIELDS
    assert one == {name: new[name] for name in FIELDS}
    assert (await api.get("/api/webhooks")).json() == {"items": [one]}


async def test_every_option(api: Api) -> None:
    secret = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldY"
    body = {"id": "ops", "events": ["job:failed"], "topics": ["mail"], "enabled": False, "description": "On call"}
    new = await made(api, secret=secret, **body)
    assert {name: new[name] for name in body} == body
    assert new["secret"] == secret
    assert new["hints"] == ["no job of topic mail is known"]
    assert failure(await api.post("/api/webhooks", {"url": URL, "id": "ops"})) == (409, "version_conflict")


BAD: list[tuple[str, Any]] = [
    ("url", "file:///etc/passwd"),
    ("url", "https://ann:secret@example.com/"),
    ("url", "https://0x7f.1/"),
    ("url", "https://2130706433/"),
    ("url", "https://127.1/"),
    ("url", "https://１２７.0.0.1/"),
    ("url", "https://[::ffff:127.0.0.1]/"),
    ("url", "https://[64:ff9b::7f00:1]/"),
    ("url", "https://10.0.0.7/"),
    ("url", "https://localhost/"),
    ("url", "https://example.com:22/"),
    ("url", "http://example.com/"),
    ("url", ""),
    ("url", 7),
    ("events", []),
    ("events", ["job:started"]),
    ("events", ["completed"]),
    ("events", "job:failed"),
    ("topics", ["../x"]),
    ("secret", "whsec_not base64"),
    ("secret", "whsec_AAAA"),
    ("id", "Ops"),
    ("id", "x" * 70),
    ("description", "x" * 300),
    ("enabled", "perhaps"),
    ("nope", 1),
]


@pytest.mark.parametrize(("field", "value"), BAD)
async def test_bad_input_names_its_field(sqlite_api: Api, field: str, value: Any) -> None:
    answer = await sqlite_api.post("/api/webhooks", {"url": URL, field: value})
    assert answer.status_code == 400, answer.text
    assert any(name.startswith(field) for name in answer.json()["data"]), answer.text
    assert (await sqlite_api.get("/api/webhooks")).json() == {"items": []}
    if field not in ("id", "secret"):
        one = await made(sqlite_api)
        answer = await sqlite_api.patch(f"/api/webhooks/{one['id']}", {field: value})
        assert answer.status_code == 400, answer.text


async def test_a_url_is_needed_but_may_be_null(sqlite_api: Api) -> None:
    assert failure(await sqlite_api.post("/api/webhooks", {})) == (400, "invalid_input")
    new = await made(sqlite_api, url=None)
    assert (new["url"], new["key"][:4]) == (None, "whk_")


async def test_a_change_is_a_compare_and_set(api: Api) -> None:
    one = await made(api)
    path = f"/api/webhooks/{one['id']}"
    changed = (await api.patch(path, {"events": ["job:failed"], "topics": ["mail"], "version": 1})).json()
    assert (changed["events"], changed["topics"], changed["version"]) == (["job:failed"], ["mail"], 2)
    assert "secret" not in changed
    assert failure(await api.patch(path, {"enabled": False, "version": 1})) == (409, "version_conflict")
    assert (await api.patch(path, {"events": None, "topics": None})).json()["events"] == list(WEBHOOK_EVENTS)
    assert not (await api.patch(path, {"enabled": False})).json()["enabled"]
    assert (await api.patch(path, {"enabled": True})).json()["enabled"]


async def test_delete(api: Api) -> None:
    one = await made(api)
    path = f"/api/webhooks/{one['id']}"
    assert (await api.delete(path)).status_code == 204
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/rotate"), ("POST", "/test"), ("GET", "/deliveries")):
        assert failure(await api.request(method, path + rest)) == (404, "not_found")


async def test_rotate(api: Api) -> None:
    one = await made(api)
    path = f"/api/webhooks/{one['id']}"
    rotated = (await api.post(f"{path}/rotate", {"keep": "24h"})).json()
    assert rotated["secret"] not in (None, one["secret"])
    assert rotated["previousSecretUntil"] is not None
    assert rotated["key"] is None
    assert (await api.post(f"{path}/rotate", {"keep": "0s"})).json()["previousSecretUntil"] is None
    assert failure(await api.post(f"{path}/rotate", {"keep": "soon"})) == (400, "invalid_input")


async def test_only_superusers_and_keys_with_the_scope(sqlite_api: Api) -> None:
    api = sqlite_api
    one = await made(api)
    ours, other = await api.key("webhooks"), await api.key("manage", "settings")
    await api.rules(manage_rule="true", enqueue_rule="true")
    for method, path in (
        ("GET", "/api/webhooks"),
        ("POST", "/api/webhooks"),
        ("GET", f"/api/webhooks/{one['id']}"),
        ("PATCH", f"/api/webhooks/{one['id']}"),
        ("DELETE", f"/api/webhooks/{one['id']}"),
        ("GET", f"/api/webhooks/{one['id']}/deliveries"),
        ("POST", f"/api/webhooks/{one['id']}/rotate"),
        ("POST", f"/api/webhooks/{one['id']}/test"),
        ("POST", f"/api/webhooks/{one['id']}/redeliver"),
        ("POST", f"/api/webhooks/{one['id']}/deliveries/1/redeliver"),
    ):
        assert failure(await api.request(method, path, as_=None)) == (401, "unauthorized")
        assert failure(await api.request(method, path, as_="ann")) == (403, "forbidden")
        assert failure(await api.request(method, path, as_=other)) == (403, "forbidden")
    assert (await api.get("/api/webhooks", as_=ours)).status_code == 200


# -- deliveries --------------------------------------------------------------------------------------


async def test_deliveries_with_their_attempts(api: Api) -> None:
    one = await counting(api)
    id = await completed(api)
    path = f"/api/webhooks/{one['id']}"
    (delivery,) = (await api.get(f"{path}/deliveries")).json()["items"]
    assert set(delivery) == DELIVERY_FIELDS
    assert (delivery["jobId"], delivery["event"], delivery["status"]) == (id, "job:completed", "pending")
    assert delivery["attempts"] == []
    assert (await api.get(f"/api/jobs/{id}")).json()["webhookSent"] is False
    assert await sent(api, GaveUp(), Try(500, None, 7, "oh no")) == 1
    (delivery,) = (await api.get(f"{path}/deliveries", params={"status": "failed"})).json()["items"]
    (attempt,) = delivery["attempts"]
    assert attempt.pop("at")
    assert attempt == {"status": 500, "error": None, "durationMs": 7, "answer": "oh no"}
    again = (await api.post(f"{path}/deliveries/{delivery['id']}/redeliver")).json()
    assert (again["status"], again["webhookId"]) == ("pending", delivery["webhookId"])
    assert await sent(api, Delivered()) == 1
    assert (await api.get(f"/api/jobs/{id}")).json()["webhookSent"] is True
    events = [event["type"] for event in (await api.get(f"/api/jobs/{id}/events")).json()["items"]]
    assert [name for name in events if "webhook" in name] == ["job:webhook:failed", "job:webhook:delivered"]


async def test_pages_of_deliveries(sqlite_api: Api) -> None:
    api = sqlite_api
    one = await counting(api)
    ids = [await completed(api) for _ in range(5)]
    path = f"/api/webhooks/{one['id']}/deliveries"
    first = (await api.get(path, params={"limit": 3})).json()
    assert [item["jobId"] for item in first["items"]] == ids[:1:-1]
    rest = (await api.get(path, params={"limit": 3, "after": first["next"]})).json()
    assert [item["jobId"] for item in rest["items"]] == ids[1::-1]
    assert rest["next"] is None
    for bad in ({"status": "done"}, {"after": "x"}, {"after": "9" * 19}, {"nope": 1}):
        assert (await api.get(path, params=bad)).status_code == 400


async def test_all_since_a_time(sqlite_api: Api) -> None:
    api = sqlite_api
    one = await counting(api)
    since = (await api.enqueue("other"))["createdAt"]
    for _ in range(2):
        await completed(api)
    await sent(api, Delivered())
    path = f"/api/webhooks/{one['id']}/redeliver"
    assert (await api.post(path, {"since": since, "undelivered": True})).json() == {"redelivered": 0}
    assert (await api.post(path, {"since": since})).json() == {"redelivered": 2}
    assert await sent(api, Delivered()) == 2
    for bad in ({}, {"since": "yesterday"}, {"since": since, "nope": 1}):
        assert (await api.post(path, bad)).status_code == 400
    await api.patch(f"/api/webhooks/{one['id']}", {"enabled": False})
    assert failure(await api.post(path, {"since": since})) == (400, "invalid_input")


async def test_another_endpoints_delivery_is_unknown(sqlite_api: Api) -> None:
    api = sqlite_api
    one, other = await counting(api), await counting(api, topics=["none"])
    await completed(api)
    (delivery,) = (await api.get(f"/api/webhooks/{one['id']}/deliveries")).json()["items"]
    for id in (delivery["id"], "999", "x", "9" * 30):
        answer = await api.post(f"/api/webhooks/{other['id']}/deliveries/{id}/redeliver")
        assert failure(answer) == (404, "not_found")


# -- a job's own URL ---------------------------------------------------------------------------------


async def test_a_job_names_a_url(api: Api) -> None:
    job = await api.enqueue(webhookUrl=URL)
    assert (job["webhookUrl"], job["webhookSent"]) == (URL, None)
    many = await api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "a", "webhookUrl": URL}, {"topic": "b"}]})
    assert [one["webhookUrl"] for one in many.json()["items"]] == [URL, None]
    dispatched = await api.post("/api/jobs/mail/dispatch", {"webhookUrl": URL})
    assert dispatched.json()["webhookUrl"] == URL
    await api.hands.complete(await api.hands.claim_one("mail"))
    assert await sent(api, Delivered()) == 1
    seen = (await api.get(f"/api/jobs/{job['id']}")).json()
    assert (seen["webhookUrl"], seen["webhookSent"]) == (URL, True)


async def test_who_may_name_a_url(sqlite_api: Api) -> None:
    api = sqlite_api
    await api.rules(enqueue_rule="true")
    body = {"topic": "mail", "webhookUrl": URL}
    assert failure(await api.post("/api/jobs/enqueue", body, as_="ann")) == (403, "forbidden")
    assert failure(await api.post("/api/jobs/enqueue", body, as_=None)) == (403, "forbidden")
    key = await api.key("enqueue")
    assert (await api.post("/api/jobs/enqueue", body, as_=key)).status_code == 200
    changed = await api.patch("/api/settings", {"webhooks": {"job_urls": True}})
    assert changed.json()["webhooks"] == {"job_urls": True}
    assert (await api.post("/api/jobs/enqueue", body, as_="ann")).status_code == 200
    await api.rules(enqueue_rule="webhookUrl = ''")
    assert failure(await api.post("/api/jobs/enqueue", body, as_="ann")) == (403, "forbidden")


@pytest.mark.parametrize("url", ["", "http://example.com", "https://127.0.0.1/", "nonsense", "x" * 3000, 7])
async def test_a_jobs_bad_url_names_the_field(sqlite_api: Api, url: Any) -> None:
    answer = await sqlite_api.post("/api/jobs/enqueue", {"topic": "mail", "webhookUrl": url})
    assert answer.status_code == 400
    assert list(answer.json()["data"]) == ["webhookUrl"]


# -- reading by cursor -------------------------------------------------------------------------------


async def test_events_are_read_with_the_endpoints_key(api: Api) -> None:
    one = await counting(api, url=None)
    ids = [await completed(api) for _ in range(3)]
    path, key = f"/api/webhooks/{one['id']}/events", {"Authorization": f"Bearer {one['key']}"}

    async def read(**params: Any) -> dict[str, Any]:
        answer = await api.get(path, as_=None, headers=key, params=params)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    first = await read(limit=2)
    assert [set(item) for item in first["items"]] == [{"id", "type", "timestamp", "data"}] * 2
    assert [item["data"]["job"]["id"] for item in first["items"]] == ids[:2]
    assert await read(limit=2) == first
    rest = await read(after=first["next"])
    assert [item["data"]["job"]["id"] for item in rest["items"]] == ids[2:]
    assert await read(after=rest["next"]) == {"items": [], "next": rest["next"]}
    assert (await api.get(f"/api/jobs/{ids[2]}")).json()["webhookSent"] is True
    for bad in ({"after": -1}, {"after": 2**63}, {"after": "x"}, {"nope": 1}):
        assert (await api.get(path, as_=None, headers=key, params=bad)).status_code == 400


async def test_only_its_key_reads_an_endpoints_events(sqlite_api: Api) -> None:
    api = sqlite_api
    one, other, pushed = await made(api, url=None), await made(api, url=None), await made(api)
    path = f"/api/webhooks/{one['id']}/events"
    assert failure(await api.get(path, as_=None)) == (401, "unauthorized")
    for key in (other["key"], "whk_nonsense", one["secret"], "whk_" + "é" * 5000):
        wrong = {"Authorization": f"Bearer {key}".encode()}
        assert failure(await api.get(path, as_=None, headers=wrong)) == (401, "invalid_token")
    assert failure(await api.get(path, as_="ann")) == (403, "forbidden")
    assert failure(await api.get(path, as_=await api.key("manage"))) == (403, "forbidden")
    assert (await api.get(path)).status_code == 200
    assert (await api.get(path, as_=await api.key("webhooks"))).status_code == 200
    assert failure(await api.get("/api/webhooks/none/events")) == (404, "not_found")
    assert failure(await api.get(f"/api/webhooks/{pushed['id']}/events")) == (400, "invalid_input")
    headers = {"Authorization": f"Bearer {one['key']}"}
    assert (await api.get(path, as_=None, headers=headers)).status_code == 200
    assert failure(await api.get(f"/api/webhooks/{pushed['id']}/events", as_=None, headers=headers))[0] == 401
    rotated = (await api.post(f"/api/webhooks/{one['id']}/rotate")).json()
    assert failure(await api.get(path, as_=None, headers=headers)) == (401, "invalid_token")
    headers = {"Authorization": f"Bearer {rotated['key']}"}
    assert (await api.get(path, as_=None, headers=headers)).status_code == 200
    await api.patch(f"/api/webhooks/{one['id']}", {"enabled": False})
    assert failure(await api.get(path, as_=None, headers=headers)) == (401, "invalid_token")


async def test_no_answer_has_a_secret(sqlite_api: Api) -> None:
    api = sqlite_api
    one = await counting(api, id="ops")
    await completed(api)
    for path in ("/api/webhooks", "/api/webhooks/ops", "/api/webhooks/ops/deliveries", "/api/settings"):
        assert one["secret"] not in (await api.get(path)).text
