"""Who may do what: rules, scopes, tokens, cookies."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.api import PASSWORD, Api, failure
from treadle.model.job import rfc3339

SIGNED_IN = "@request.auth.id != ''"
OWN = "createdBy = @request.auth.id"

BODY = {"topic": "mail", "payload": {}}


async def status(api: Api, method: str, path: str, as_: str | None, json: object = None) -> int:
    answer = await api.request(method, path, as_=as_, **({"json": json} if json is not None else {}))
    return answer.status_code


async def test_by_default_only_superusers(api: Api) -> None:
    key = await api.key("metrics")
    for method, path, body in (("POST", "/api/jobs/enqueue", BODY), ("GET", "/api/jobs", None)):
        assert await status(api, method, path, None, body) == 401
        assert await status(api, method, path, "ann", body) == 403
        assert await status(api, method, path, key, body) == 403
        assert await status(api, method, path, "root", body) == 200


async def test_true_is_everybody_without_signing_in(api: Api) -> None:
    await api.rules(enqueue_rule="true", manage_rule="true")
    assert await status(api, "POST", "/api/jobs/enqueue", None, BODY) == 200
    assert await status(api, "GET", "/api/jobs", None) == 200
    assert await status(api, "GET", "/api/jobs/stats", "ann") == 200


async def test_signed_in_users(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=SIGNED_IN)
    assert await status(api, "POST", "/api/jobs/enqueue", None, BODY) == 401
    assert await status(api, "POST", "/api/jobs/enqueue", "ann", BODY) == 200
    assert await status(api, "GET", "/api/jobs", None) == 401
    assert await status(api, "GET", "/api/jobs", "ann") == 200


async def test_enqueue_and_manage_are_apart(api: Api) -> None:
    await api.rules(enqueue_rule="true", manage_rule="")
    assert await status(api, "POST", "/api/jobs/enqueue", None, BODY) == 200
    assert await status(api, "GET", "/api/jobs", None) == 401


async def test_an_enqueue_rule_looks_at_the_candidate(api: Api) -> None:
    await api.rules(enqueue_rule="topic = 'mail' && scopeId = @request.auth.id && payload.size < 10")
    mine = {"topic": "mail", "scope": "user", "scopeId": api.people["ann"].id, "payload": {"size": 1}}
    assert await status(api, "POST", "/api/jobs/enqueue", "ann", mine) == 200
    assert await status(api, "POST", "/api/jobs/enqueue", "bob", mine) == 403
    assert await status(api, "POST", "/api/jobs/enqueue", None, mine) == 401
    assert await status(api, "POST", "/api/jobs/enqueue", "ann", {**mine, "payload": {"size": 10}}) == 403
    assert await status(api, "POST", "/api/jobs/enqueue-many", "ann", {"jobs": [mine, {**mine, "topic": "x"}]}) == 403
    assert await api.queue.count() == 1


async def test_a_manage_rule_with_job_fields_filters_rows(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=OWN)
    hers = await api.enqueue("mail", as_="ann")
    his = await api.enqueue("other", as_="bob")
    await api.enqueue("third")

    listed = (await api.get("/api/jobs", as_="ann")).json()
    assert ([job["id"] for job in listed["items"]], listed["totalItems"]) == ([hers["id"]], 1)
    assert await status(api, "GET", f"/api/jobs/{hers['id']}", "ann") == 200
    foreign = await api.get(f"/api/jobs/{his['id']}", as_="ann")
    nothing = await api.get("/api/jobs/01890000-0000-7000-8000-000000000000", as_="ann")
    assert failure(foreign) == (404, "not_found")
    assert foreign.content == nothing.content
    for method, path in (
        ("GET", "events"),
        ("GET", "why"),
        ("POST", "cancel"),
        ("POST", "requeue"),
    ):
        assert await status(api, method, f"/api/jobs/{his['id']}/{path}", "ann") == 404
    assert await status(api, "PATCH", f"/api/jobs/{his['id']}", "ann", {"priority": 1}) == 404
    assert await status(api, "DELETE", f"/api/jobs/{his['id']}", "ann") == 404
    assert (await api.queue.get(his["id"])).status == "pending"


async def test_figures_since_an_instant_are_of_ones_own_jobs_too(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=OWN)
    past = rfc3339(datetime.now(UTC) - timedelta(seconds=1))
    for who in ("ann", "bob"):
        await api.enqueue("mail", as_=who, expiresAt=past)
    assert len((await api.queue.store.advance()).moved) == 2
    for since, expired in (("1h", 1), ("2999-01-01T00:00:00Z", 0)):
        assert (await api.get(f"/api/jobs/stats?since={since}", as_="ann")).json()["expired"] == expired


async def test_topics_are_counted_for_ones_own_jobs(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=OWN)
    for topic, who in (("mail", "ann"), ("mail", "ann"), ("mail", "bob"), ("video", "ann"), ("secret", "bob")):
        await api.enqueue(topic, as_=who)
    await api.hands.fail(await api.hands.claim_one("video"))
    stats = (await api.get("/api/jobs/stats", as_="ann")).json()
    assert (stats["pending"], stats["failed"]) == (2, 1)
    counted = {topic: {status: n for status, n in one.items() if n} for topic, one in stats["topics"].items()}
    assert counted == {"mail": {"pending": 2}, "video": {"failed": 1}}
    all_stats = (await api.get("/api/jobs/stats")).json()["topics"]
    assert stats["topics"]["mail"].keys() == all_stats["mail"].keys()
    assert list((await api.get("/api/jobs/stats?topic=video", as_="ann")).json()["topics"]) == ["video"]


@pytest.mark.every_store
async def test_figures_and_bulk_are_of_ones_own_jobs(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=OWN)
    await api.enqueue("mail", as_="ann")
    await api.enqueue("secret_topic", as_="bob")
    assert (await api.get("/api/jobs/stats", as_="ann")).json()["pending"] == 1
    topics = (await api.get("/api/topics", as_="ann")).json()["items"]
    assert [(topic["topic"], topic["pending"]) for topic in topics] == [("mail", 1)]
    done = await api.post("/api/jobs/bulk", {"action": "cancel", "filter": "id != ''"}, as_="ann")
    assert done.json()["changed"] == 1
    assert await api.queue.count(status="pending") == 1


async def test_anonymous_callers_do_not_own_jobs_without_an_owner(api: Api) -> None:
    await api.queue.enqueue("mail")  # createdBy is null
    await api.rules(manage_rule=OWN)
    listed = await api.get("/api/jobs", as_=None)
    assert (listed.status_code, listed.json()["totalItems"]) == (200, 0)


async def test_scope_rules_by_a_field_of_the_user(api: Api) -> None:
    await api.rules(manage_rule="scope = 'team' && scopeId = @request.auth.team")
    red = await api.enqueue(scope="team", scopeId="red")
    await api.enqueue(scope="team", scopeId="blue")
    assert [job["id"] for job in (await api.get("/api/jobs", as_="ann")).json()["items"]] == [red["id"]]


async def test_a_candidate_has_its_defaults(api: Api) -> None:
    @api.queue.job(topic="video", priority="high", max_attempts=7, capability="gpu", expires="1h")
    async def video() -> None: ...

    await api.queue.save_templates()
    for topic, rule, let_in in (
        ("mail", "maxRetries = 3 && maxAttempts = 3 && priority = 50 && capability = ''", True),
        ("video", "maxRetries = 7 && priority = 75 && capability = 'gpu'", True),
        ("video", "maxRetries = 3", False),
        ("mail", "expiresAt = '' && runAt <= @now", True),
        ("video", "expiresAt > @now && expiresAt < @tomorrow", True),
    ):
        await api.rules(enqueue_rule=rule)
        answer = await api.post("/api/jobs/enqueue", {"topic": topic}, as_="ann")
        assert answer.status_code == (200 if let_in else 403), (topic, rule)
    await api.rules(enqueue_rule="runAt < @tomorrow")
    for delay, status_ in (("1h", 200), ("1000d", 403)):
        answer = await api.post("/api/jobs/enqueue", {"topic": "mail", "delay": delay}, as_="ann")
        assert answer.status_code == status_, delay


async def test_any_service_with_a_key_reads_the_metrics(api: Api) -> None:
    assert (await api.get("/metrics", as_=await api.key("enqueue"))).status_code == 200
    assert failure(await api.get("/metrics", as_="ann")) == (403, "forbidden")
    assert failure(await api.get("/metrics", as_=None)) == (401, "unauthorized")


async def test_a_changed_user_is_asked_anew(api: Api) -> None:
    await api.rules(enqueue_rule="@request.auth.team = 'red'", manage_rule="scopeId = @request.auth.team")
    job = await api.enqueue(scopeId="blue")
    assert (await api.post("/api/jobs/enqueue", {"topic": "mail"}, as_="ann")).status_code == 200
    assert (await api.get(f"/api/jobs/{job['id']}", as_="ann")).status_code == 404
    await api.accounts.update_user("ann@example.com", data={"team": "blue"})
    assert (await api.post("/api/jobs/enqueue", {"topic": "mail"}, as_="ann")).status_code == 403
    assert (await api.get(f"/api/jobs/{job['id']}", as_="ann")).status_code == 200


@pytest.mark.every_store
async def test_scopes_of_api_keys(api: Api) -> None:
    enqueue, manage, workers = await api.key("enqueue"), await api.key("manage"), await api.key("workers", "topics")
    assert await status(api, "POST", "/api/jobs/enqueue", enqueue, BODY) == 200
    assert await status(api, "GET", "/api/jobs", enqueue) == 403
    assert await status(api, "GET", "/api/jobs", manage) == 200
    assert await status(api, "POST", "/api/jobs/enqueue", manage, BODY) == 403
    assert await status(api, "POST", "/api/topics/mail/pause", workers) == 200
    assert await status(api, "POST", "/api/topics/mail/pause", manage) == 403
    assert await status(api, "GET", "/api/settings", manage) == 403
    assert await status(api, "GET", "/api/settings", await api.key("settings")) == 200
    assert await status(api, "GET", "/api/workers", workers) == 200


@pytest.mark.every_store
async def test_the_api_can_be_switched_off(api: Api) -> None:
    job = await api.enqueue()
    await api.rules(http_enabled=False)
    for method, path, body in (
        ("POST", "/api/jobs/enqueue", BODY),
        ("GET", "/api/jobs", None),
        ("GET", f"/api/jobs/{job['id']}", None),
        ("POST", "/api/workers/claim", {"workerId": "w", "topics": ["mail"]}),
        ("GET", "/api/workers", None),
        ("POST", f"/api/workers/jobs/{job['id']}/complete", {"token": 1}),
        ("GET", "/api/jobs/stream", None),
        ("GET", "/api/topics", None),
        ("POST", "/api/topics/mail/pause", {}),
    ):
        for who in ("root", "ann", None):
            answer = await api.request(method, path, json=body, as_=who)
            assert failure(answer) == (403, "http_disabled"), path
    assert await status(api, "GET", "/api/health", None) == 200
    assert await status(api, "GET", "/api/settings", "root") == 200
    await api.rules(http_enabled=True)
    assert await status(api, "GET", "/api/jobs", "root") == 200


async def test_allowed_topics_bind_all_but_superusers(api: Api) -> None:
    await api.rules(enqueue_rule=SIGNED_IN, allowed_topics=["mail"])
    key = await api.key("enqueue")
    assert await status(api, "POST", "/api/jobs/enqueue", "ann", BODY) == 200
    for who in ("ann", key):
        answer = await api.post("/api/jobs/enqueue", {"topic": "other"}, as_=who)
        assert failure(answer) == (403, "topic_not_allowed")
        assert failure(await api.post("/api/jobs/other/dispatch", {}, as_=who)) == (403, "topic_not_allowed")
    assert await status(api, "POST", "/api/jobs/enqueue", "root", {"topic": "other"}) == 200


@pytest.mark.parametrize(
    "rule", ["topic =", "true true", "@request.nope = 1", "unknownField = 1", "  ", "// only a comment"]
)
async def test_a_bad_rule_is_refused_and_the_old_one_stays(api: Api, rule: str) -> None:
    await api.rules(manage_rule=SIGNED_IN)
    answer = await api.patch("/api/settings", {"jobs": {"manage_rule": rule, "enqueue_rule": "true"}})
    assert failure(answer) == (400, "invalid_rule")
    assert answer.json()["data"]["manage_rule"]["code"] == "validation_invalid_rule"
    settings = (await api.get("/api/settings")).json()["jobs"]
    assert (settings["manage_rule"], settings["enqueue_rule"]) == (SIGNED_IN, "")


@pytest.mark.parametrize("token", ["nonsense", "Bearer x.y.z", "Basic cm9vdDpyb290", "Token abc", "x" * 100_000])
async def test_a_bad_token_is_401_under_every_rule(api: Api, token: str) -> None:
    await api.rules(enqueue_rule="true", manage_rule="true")
    for path in ("/api/jobs", "/api/health", "/api/settings", "/api/topics", "/api/openapi.json", "/metrics"):
        answer = await api.get(path, as_=None, headers={"Authorization": token})
        assert failure(answer) == (401, "invalid_token")


async def test_a_changed_password_ends_every_token(api: Api) -> None:
    await api.rules(manage_rule=SIGNED_IN)
    assert await status(api, "GET", "/api/jobs", "ann") == 200
    await api.accounts.update_user("ann@example.com", password="another horse")
    assert await status(api, "GET", "/api/jobs", "ann") == 401


# -- cookies -----------------------------------------------------------------------------------------


async def signed_in(api: Api) -> None:
    body = {"identity": "root@example.com", "password": PASSWORD}
    answer = await api.post("/api/collections/_superusers/auth-with-password?cookie=true", body, as_=None)
    assert answer.status_code == 200, answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


async def test_a_cookie_is_a_session(sqlite_api: Api) -> None:
    await signed_in(sqlite_api)
    assert await status(sqlite_api, "GET", "/api/settings", None) == 200
    assert await status(sqlite_api, "POST", "/api/jobs/enqueue", None, BODY) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://queue.test.evil.test"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://queue.test"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.test"},
    ],
)
async def test_a_foreign_page_cannot_use_the_session(sqlite_api: Api, headers: dict[str, str]) -> None:
    await signed_in(sqlite_api)
    answer = await sqlite_api.post("/api/jobs/enqueue", BODY, as_=None, headers=headers)
    assert failure(answer) == (403, "cross_origin")
    assert await sqlite_api.queue.count() == 0


async def test_our_own_page_can(sqlite_api: Api) -> None:
    await signed_in(sqlite_api)
    for headers in (
        {"Origin": "http://queue.test"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://queue.test", "Sec-Fetch-Site": "same-origin"},
    ):
        answer = await sqlite_api.post("/api/jobs/enqueue", BODY, as_=None, headers=headers)
        assert answer.status_code == 200


# -- one body, whichever way it comes ----------------------------------------------------------------

GOOD = {"topic": "mail", "payload": {"size": 1}, "maxRetries": 1, "priority": 1, "runAt": "2020-01-01T00:00:00Z"}
SOON = "@request.body.runAt = null || @request.body.runAt < @tomorrow"
FEW_RETRIES = "@request.body.maxRetries = null || @request.body.maxRetries <= 3"
FEW_ATTEMPTS = "@request.body.maxAttempts = null || @request.body.maxAttempts <= 3"
WAYS = [
    ("/api/jobs/enqueue", lambda job: {"topic": "mail", **job}),
    ("/api/jobs/enqueue-many", lambda job: {"jobs": [{"topic": "mail", **job}]}),
    ("/api/jobs/enqueue-many", lambda job: {"jobs": [GOOD, {"topic": "mail", **job}, GOOD]}),
    ("/api/jobs/mail/dispatch", lambda job: {"args" if key == "payload" else key: value for key, value in job.items()}),
    (
        "/_api/jobs/mail/dispatch",
        lambda job: {"args" if key == "payload" else key: value for key, value in job.items()},
    ),
]


@pytest.mark.parametrize(("path", "body"), WAYS)
@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("@request.body.payload.size <= 10", {"payload": {"size": 10}}, {"payload": {"size": 11}}),
        ("@request.body.topic = 'mail' && @request.body.payload.size:isset = true", {"payload": {"size": 1}}, {}),
        ("@request.body.maxRetries < 5", {"maxRetries": 4}, {"maxRetries": 5}),
        ("@request.body.maxRetries < 5", {"maxAttempts": 4}, {"maxAttempts": 5}),
        ("@request.body.maxAttempts < 5", {"maxRetries": 4}, {"maxRetries": 5}),
        ("@request.body.priority <= 50", {"priority": "low"}, {"priority": "high"}),
        ("@request.body.runAt < @tomorrow", {"delay": "1h"}, {"delay": "30h"}),
        ("@request.body.payload.size = 1 || @request.body.scopeId:isset = false", {}, {"scopeId": "ann"}),
        (FEW_RETRIES, {"maxRetries": None, "maxAttempts": 3}, {"maxRetries": None, "maxAttempts": 4}),
        (FEW_ATTEMPTS, {"maxAttempts": None, "maxRetries": 3}, {"maxAttempts": None, "maxRetries": 4}),
        (SOON, {"delay": "1h", "runAt": None}, {"delay": "30h", "runAt": None}),
    ],
)
async def test_a_rule_sees_one_body_whichever_way_it_comes(
    sqlite_api: Api, path: str, body: Any, rule: str, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    await sqlite_api.rules(enqueue_rule=rule)
    assert await status(sqlite_api, "POST", path, "ann", body(good)) == 200
    before = await sqlite_api.queue.count()
    assert await status(sqlite_api, "POST", path, "ann", body(bad)) == 403
    assert await sqlite_api.queue.count() == before


async def test_a_rule_sees_a_change_whichever_way_it_is_said(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue()
    manage_rule = "@request.body.maxRetries:isset = false && @request.body.force:isset = false"
    await sqlite_api.rules(enqueue_rule=SIGNED_IN, manage_rule=manage_rule)
    path = f"/api/jobs/{job['id']}"
    for name in ("maxRetries", "maxAttempts"):
        assert await status(sqlite_api, "PATCH", path, "ann", {name: 9}) == 403
        bulk = {"action": "patch", "filter": "topic = 'mail'", name: 9}
        assert await status(sqlite_api, "POST", "/api/jobs/bulk", "ann", bulk) == 403
    assert await status(sqlite_api, "PATCH", path, "ann", {"priority": 9}) == 200
    for query, body in (("?force=true", {}), ("", {"force": True})):
        assert await status(sqlite_api, "POST", f"{path}/requeue{query}", "ann", body) == 403


async def test_a_null_does_not_hide_a_change_from_a_rule(sqlite_api: Api) -> None:
    path = f"/api/jobs/{(await sqlite_api.enqueue())['id']}"
    await sqlite_api.rules(enqueue_rule=SIGNED_IN, manage_rule=FEW_RETRIES)
    hidden = {"maxRetries": None, "maxAttempts": 4}
    assert await status(sqlite_api, "PATCH", path, "ann", hidden) == 403
    bulk = {"action": "patch", "filter": "topic = 'mail'", **hidden}
    assert await status(sqlite_api, "POST", "/api/jobs/bulk", "ann", bulk) == 403
    assert await status(sqlite_api, "PATCH", path, "ann", {**hidden, "maxAttempts": 3}) == 200
    await sqlite_api.rules(manage_rule="@request.body.force != true")
    assert await status(sqlite_api, "POST", f"{path}/requeue?force=true", "ann", {"force": None}) == 403


async def test_an_unreadable_body_is_refused(sqlite_api: Api) -> None:
    await sqlite_api.rules(enqueue_rule="@request.body.payload.size <= 10")
    for content in (b"{", b"[]", b'{"jobs": 5}', b'{"jobs": [5]}'):
        for path in ("/api/jobs/enqueue", "/api/jobs/enqueue-many"):
            options = {"content": content, "headers": {"Content-Type": "application/json"}}
            assert (await sqlite_api.request("POST", path, as_="ann", **options)).status_code == 403
