"""Repeated and unknown parameters and fields are refused, never ignored."""

import gzip
import json
from typing import Any

import pytest

from tests.http.api import Api, failure
from tests.http.test_routes import filled, routes
from treadle.http import bodies
from treadle.model.other_names import STATUS_WORDS
from treadle.model.status import Status

EXEMPT = ("/api/collections/", "/api/realtime", "/_/")


async def test_no_route_ignores_a_parameter_that_it_does_not_know(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue()
    for method, path in routes():
        if path.startswith(EXEMPT):
            continue
        answer = await sqlite_api.request(method.upper(), f"{filled(path, job['id'])}?dry_run=true")
        assert failure(answer) == (400, "unknown_parameter"), (method, path, answer.text)
        assert "dry_run" in answer.json()["data"]
    assert (await sqlite_api.queue.get(job["id"])).status is Status.PENDING


async def test_no_route_takes_a_parameter_twice(sqlite_api: Api) -> None:
    for path in ("/api/jobs?topic=a&topic=b", "/api/jobs/stats?topic=a&topic=a"):
        assert failure(await sqlite_api.get(path)) == (400, "repeated_parameter")
    job = await sqlite_api.enqueue()
    answer = await sqlite_api.delete(f"/api/jobs/{job['id']}?force=false&force=true")
    assert failure(answer) == (400, "repeated_parameter")


async def test_no_route_ignores_a_field_that_it_does_not_know(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue()
    for method, path in routes():
        if method not in ("post", "patch") or path.startswith(EXEMPT):
            continue
        body = {"nonsense": 1}
        answer = await sqlite_api.request(method.upper(), filled(path, job["id"]), json=body)
        assert failure(answer) == (400, "unknown_parameter"), (method, path, answer.text)
        assert list(answer.json()["data"]) == ["nonsense"]


async def test_who_may_not_ask_is_not_told_what_is_wrong(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue()
    for method, path in routes():
        if path.startswith("/api/jobs"):
            answer = await sqlite_api.request(method.upper(), f"{filled(path, job['id'])}?nonsense=1", as_=None)
            assert failure(answer)[0] == 401, (method, path)


async def test_a_rule_may_use_its_own_parameters(api: Api) -> None:
    await api.rules(manage_rule="@request.query.secret = 'open sesame'")
    assert (await api.get("/api/jobs?secret=open sesame", as_=None)).status_code == 200
    assert failure(await api.get("/api/jobs?secret=no", as_=None)) == (401, "unauthorized")
    assert failure(await api.get("/api/jobs?secret=open sesame&x=1", as_=None)) == (400, "unknown_parameter")


@pytest.mark.parametrize(
    ("body", "field", "right"),
    [
        ({"job_type": "mail"}, "job_type", "topic"),
        ({"type": "mail"}, "type", "topic"),
        ({"topic": "mail", "args": {}}, "args", "payload"),
        ({"topic": "mail", "max_retries": 3}, "max_retries", "maxRetries"),
        ({"topic": "mail", "scheduled_at": "2030-01-01T00:00:00Z"}, "scheduled_at", "runAt"),
        ({"topic": "mail", "worker_capability": "media"}, "worker_capability", "capability"),
    ],
)
async def test_the_right_word_is_named(sqlite_api: Api, body: dict[str, Any], field: str, right: str) -> None:
    answer = await sqlite_api.post("/api/jobs/enqueue", body)
    assert failure(answer) == (400, "unknown_parameter")
    assert answer.json()["data"] == {
        field: {"code": "unknown_parameter", "message": f"there is no such field; write {right}"}
    }


async def test_the_right_parameter_is_named(sqlite_api: Api) -> None:
    answer = await sqlite_api.get("/api/jobs?job_type=mail")
    assert "write topic" in answer.json()["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"topic": "Mail"}, "topic: use lower-case letters, digits, _ and dots"),
        ({"topic": "mail", "payload": []}, "payload: Input should be an object"),
    ],
)
async def test_a_refused_field_is_explained_in_words(sqlite_api: Api, body: dict[str, Any], message: str) -> None:
    answer = await sqlite_api.post("/api/jobs/enqueue", body)
    assert failure(answer) == (400, "invalid_input")
    assert answer.json()["message"] == message


async def test_a_refused_parameter_is_explained_in_words(sqlite_api: Api) -> None:
    answer = await sqlite_api.get("/api/jobs?topic=Mail")
    assert answer.json()["message"] == "topic: use lower-case letters, digits, _ and dots"


async def test_pocketbase_clients_may_send_more(sqlite_api: Api) -> None:
    body = {"identity": "ann@example.com", "password": "correct horse", "mfaId": "", "identityField": "email"}
    path = "/api/collections/users/auth-with-password?expand=team&fields=token"
    assert (await sqlite_api.post(path, body, as_=None)).status_code == 200


# -- switches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("query", "body"), [("?dryRun=true", {}), ("", {"dryRun": True})])
async def test_a_dry_run_of_a_requeue_changes_nothing(api: Api, query: str, body: dict[str, Any]) -> None:
    job = await api.queue.enqueue("a")
    await api.hands.do(job)
    before = (await api.queue.get(job.id)).as_json()
    path = f"/api/jobs/{job.id}/requeue{query}"
    assert failure(await api.post(path, body)) == (409, "wrong_state")
    answer = await api.post(path, {**body, "force": True})
    assert (answer.status_code, answer.json()) == (200, {**before, "wouldRun": []})
    assert (await api.queue.get(job.id)).as_json() == before


async def test_a_switch_goes_in_the_query_or_in_the_body(api: Api) -> None:
    for query, body in (("?force=true", {}), ("", {"force": True}), ("?force=true", {"force": True})):
        job = await api.queue.enqueue("a")
        await api.hands.do(job)
        answer = await api.post(f"/api/jobs/{job.id}/requeue{query}", body)
        assert (answer.status_code, answer.json()["status"]) == (200, "pending"), (query, body)
        await api.hands.do(job)
        deleted = await api.request("DELETE", f"/api/jobs/{job.id}{query}", json=body)
        assert deleted.status_code == 204
    for dry in ("?dryRun=true", ""):
        delete = {"action": "delete", "filter": "topic = 'b'", **({} if dry else {"dryRun": True})}
        await api.enqueue("b")
        assert (await api.post(f"/api/jobs/bulk{dry}", delete)).json()["dryRun"] is True
    assert await api.queue.count(topic="b") == 2


@pytest.mark.parametrize(("path", "name"), [("{id}/requeue", "force"), ("{id}/requeue", "dryRun"), ("bulk", "dryRun")])
async def test_a_switch_that_says_two_things_is_refused(sqlite_api: Api, path: str, name: str) -> None:
    job = await sqlite_api.enqueue()
    body = {name: False, **({"action": "cancel", "filter": "topic = 'mail'"} if path == "bulk" else {})}
    answer = await sqlite_api.post(f"/api/jobs/{path.format(id=job['id'])}?{name}=true", body)
    assert failure(answer) == (400, "invalid_input")
    assert name in answer.json()["data"]
    assert (await sqlite_api.queue.get(job["id"])).status is Status.PENDING


@pytest.mark.parametrize(
    ("word", "right"), [("job_type", "topic"), ("max_retries", "maxRetries"), ("scope_id", "scopeId")]
)
async def test_the_right_word_is_named_for_each_of_many_jobs(sqlite_api: Api, word: str, right: str) -> None:
    jobs = [{"topic": "mail"}, {"topic": "mail", word: 1}]
    answer = await sqlite_api.post("/api/jobs/enqueue-many", {"jobs": jobs})
    assert failure(answer) == (400, "unknown_parameter")
    assert answer.json()["data"] == {
        f"jobs.1.{word}": {"code": "unknown_parameter", "message": f"there is no such field; write {right}"}
    }
    assert await sqlite_api.queue.count() == 0


async def test_the_names_that_exist_are_those_of_the_object_with_the_unknown_one(sqlite_api: Api) -> None:
    answer = await sqlite_api.request("PATCH", "/api/settings", json={"jobs": {"enqueue_rules": ""}})
    assert answer.json()["message"] == (
        "jobs.enqueue_rules: there is no such field "
        "(there are enqueue_rule, manage_rule, access_rule, http_enabled, allowed_topics)"
    )


# -- the words for a status ------------------------------------------------------------------------


@pytest.mark.parametrize("word", [*STATUS_WORDS, "stale"])
async def test_every_word_for_a_status_is_understood_where_jobs_are_read(sqlite_api: Api, word: str) -> None:
    for query in (f"status={word}", f"q=status:{word}", f"filter=status='{word}'", f"filter=status!='{word}'"):
        assert (await sqlite_api.get(f"/api/jobs?{query}")).status_code == 200, query


@pytest.mark.parametrize("query", ["status=done", "q=status:done", "filter=status='done'", "filter='done'!=status"])
async def test_a_text_that_is_no_status_is_refused(sqlite_api: Api, query: str) -> None:
    answer = await sqlite_api.get(f"/api/jobs?{query}")
    assert answer.status_code == 400, query
    assert "pending, processing" in answer.json()["message"]


async def test_words_that_mean_a_part_of_a_status(api: Api) -> None:
    fresh, retried, claimed, started = [(await api.enqueue(topic))["id"] for topic in ("a", "b", "c", "d")]
    await api.hands.fail(await api.hands.claim_one("b"), retry_in_ms=60_000)
    await api.hands.claim_one("c")
    worker = {"workerId": "w", "topics": ["d"]}
    assert len((await api.post("/api/workers/claim", worker)).json()["items"]) == 1
    for word, wanted in (
        ("queued", {fresh, retried}),
        ("retry", {retried}),
        ("claimed", {claimed}),
        ("running", {claimed, started}),
        ("active", {claimed, started}),
    ):
        for query in (f"status={word}", f"q=status:{word}", f"filter=status='{word}'"):
            items = (await api.get(f"/api/jobs?{query}")).json()["items"]
            assert {job["id"] for job in items} == wanted, query
        others = (await api.get(f"/api/jobs?filter=status!='{word}'")).json()["items"]
        assert {job["id"] for job in others} == {fresh, retried, claimed, started} - wanted, word


async def test_phase_is_another_word_for_step(sqlite_api: Api) -> None:
    await sqlite_api.enqueue()
    for query in ("filter=phase=''", "sort=-phase", "q=phase:upload"):
        assert (await sqlite_api.get(f"/api/jobs?{query}")).status_code == 200, query


# -- bounds ----------------------------------------------------------------------------------------

SIGN_IN = "/api/collections/users/auth-with-password"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", [SIGN_IN, "/api/setup"])
async def test_who_has_not_signed_in_sends_little(sqlite_api: Api, path: str) -> None:
    body = json.dumps({"identity": "ann@example.com", "password": "x" * 70_000}).encode()
    answer = await sqlite_api.request("POST", path, as_=None, content=body, headers=JSON)
    assert failure(answer) == (413, "body_too_large")
    zipped = {**JSON, "Content-Encoding": "gzip"}
    answer = await sqlite_api.request("POST", path, as_=None, content=gzip.compress(b"{}"), headers=zipped)
    assert failure(answer) == (415, "unsupported_encoding")


async def test_anonymous_callers_cannot_send_gzip(sqlite_api: Api) -> None:
    await sqlite_api.rules(enqueue_rule="true")
    body = gzip.compress(b'{"topic": "mail", "payload": {"x": [' + b"0," * 1_000_000 + b"0]}}")
    zipped = {**JSON, "Content-Encoding": "gzip"}
    answer = await sqlite_api.request("POST", "/api/jobs/enqueue", as_=None, content=body, headers=zipped)
    assert failure(answer) == (415, "unsupported_encoding")
    await sqlite_api.rules(enqueue_rule="@request.body.payload.secret = 'x'")
    large = {"topic": "mail", "payload": {"secret": "x", "more": "x" * 70_000}}
    answer = await sqlite_api.post("/api/jobs/enqueue", large, as_=None)
    assert failure(answer)[0] in (401, 413)
    assert (await sqlite_api.post("/api/jobs/enqueue", large, as_="ann")).status_code == 200


@pytest.mark.parametrize("rule", ["", "true", "@request.body.payload.secret = 'x'"])
async def test_no_route_reads_a_large_or_gzipped_body_of_an_anonymous_caller(
    sqlite_api: Api, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    job = await sqlite_api.enqueue()
    await sqlite_api.rules(enqueue_rule=rule, manage_rule=rule)
    parsed: list[int] = []

    def note(kind: str, body: bytes, bounds: bodies.Bounds) -> dict[str, Any]:
        parsed.append(len(body))
        return parse(kind, body, bounds)

    parse = bodies._parsed
    monkeypatch.setattr(bodies, "_parsed", note)
    large = json.dumps({"topic": "mail", "payload": {"secret": "x", "more": "x" * 70_000}}).encode()
    for method, path in routes():
        if method not in ("post", "patch", "delete"):
            continue
        address = filled(path, job["id"])
        zipped = {**JSON, "Content-Encoding": "gzip"}
        answer = await sqlite_api.request(
            method.upper(), address, as_=None, content=gzip.compress(large), headers=zipped
        )
        assert answer.status_code in (401, 403, 404, 415), (method, path, answer.text)
        if rule == "true":  # whom the operator lets in may send a payload of any size
            continue
        answer = await sqlite_api.request(method.upper(), address, as_=None, content=large, headers=JSON)
        assert answer.status_code in (401, 403, 404, 413), (method, path, answer.text)
    assert max(parsed, default=0) <= 64 * 1024


@pytest.mark.parametrize(
    "body",
    [
        {"topic": "mail", **{f"unknown{i}": 1 for i in range(100_000)}},
        {"jobs": [{"topic": "mail", f"unknown{i}": 1} for i in range(9_000)]},
        {"jobs": [{"topic": i, "priority": [], "delay": {}} for i in range(9_000)]},
    ],
)
async def test_an_error_tells_of_twenty_fields_at_most(sqlite_api: Api, body: dict[str, Any]) -> None:
    path = "/api/jobs/enqueue-many" if "jobs" in body else "/api/jobs/enqueue"
    answer = await sqlite_api.post(path, body)
    assert answer.status_code == 400
    assert 1 <= len(answer.json()["data"]) <= 20
    assert len(answer.content) < 10_000
