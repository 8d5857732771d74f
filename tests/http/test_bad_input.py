"""What clients send by mistake or on purpose is refused plainly, and nothing is stored in part."""

import asyncio
import gzip
import http.client
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from tests.faulty import faulty
from tests.http.api import Api, failure
from tests.http.live import LiveServer
from treadle.http import bodies
from treadle.model.errors import StoreUnavailable

ENQUEUE = "/api/jobs/enqueue"
JSON = {"Content-Type": "application/json"}
MIB = 1_048_576


async def send(api: Api, content: Any, path: str = ENQUEUE, **headers: str) -> tuple[int, str]:
    answer = await api.request("POST", path, content=content, headers={**JSON, **headers})
    return failure(answer)


VALUES = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "9" * 5000,
    str(2**63),
    str(-(2**63) - 1),
    r'"\ud800"',
    r'"\u0000"',
    r'{"\u0000": 1}',
    "[" * 500 + "]" * 500,
]


async def test_values_that_no_store_can_keep(api: Api) -> None:
    for value in VALUES:
        status, _ = await send(api, f'{{"topic": "mail", "payload": {{"x": {value}}}}}'.encode())
        assert status == 400, value[:20]
    assert await api.queue.count() == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b"1",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"topic": "mail",}',
        b"{'topic': 'mail'}",
    ],
)
async def test_bodies_that_are_no_json_object(sqlite_api: Api, body: bytes) -> None:
    status, _ = await send(sqlite_api, body)
    assert status == 400


async def test_a_body_over_the_limit(sqlite_api: Api) -> None:
    assert await send(sqlite_api, b" " * (4 * MIB + 1)) == (413, "body_too_large")


async def test_a_client_that_sends_everything_first_reads_the_refusal_of_a_large_body(sqlite_url: str) -> None:
    def post(port: int) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/api/collections/users/auth-with-password", b" " * (5 * MIB), JSON)
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())["code"]
        connection.close()
        return found

    async with LiveServer(sqlite_url) as server:
        port = int(server.base_url.rpartition(":")[2])
        assert await asyncio.to_thread(post, port) == (413, "body_too_large")


async def test_a_body_far_over_the_limit_is_not_read_to_its_end(sqlite_api: Api) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * MIB

    length = {"Content-Length": str(1000 * MIB)}
    assert await send(sqlite_api, chunks(), **length) == (413, "body_too_large")
    assert sent <= 1  # the test's transport has one chunk ready


async def test_endless_chunks(sqlite_api: Api) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 65_536

    assert await send(sqlite_api, chunks()) == (413, "body_too_large")
    assert sent < 200


async def test_a_gzip_bomb(sqlite_api: Api) -> None:
    bomb = gzip.compress(b" " * (64 * MIB))
    assert len(bomb) < MIB
    assert await send(sqlite_api, bomb, **{"Content-Encoding": "gzip"}) == (413, "body_too_large")


async def test_a_million_jobs_in_four_kilobytes_are_counted_and_not_looked_at(
    sqlite_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Any] = []
    monkeypatch.setattr(bodies, "check_plain", lambda *found: looked_at.append(found))
    body = b'{"jobs": [' + b",".join([b"{}"] * 1_300_000) + b"]}"
    for content, headers in ((body, {}), (gzip.compress(body), {"Content-Encoding": "gzip"})):
        answer = await sqlite_api.request(
            "POST", "/api/jobs/enqueue-many", content=content, headers={**JSON, **headers}
        )
        assert answer.status_code == 400
        assert answer.json()["message"] == "jobs: at most 10,000 items are allowed, not 1,300,000"
    assert not looked_at


async def test_gzip_is_understood(sqlite_api: Api) -> None:
    body = gzip.compress(b'{"topic": "mail", "payload": {"a": 1}}')
    headers = {**JSON, "Content-Encoding": "gzip"}
    answer = await sqlite_api.request("POST", ENQUEUE, content=body, headers=headers)
    assert answer.json()["payload"] == {"a": 1}
    assert (await send(sqlite_api, body[:-5], **{"Content-Encoding": "gzip"}))[0] == 400
    assert (await send(sqlite_api, b"nonsense", **{"Content-Encoding": "gzip"}))[0] == 400
    assert (await send(sqlite_api, b"x", **{"Content-Encoding": "br"}))[0] == 415


async def test_a_wrong_content_type(sqlite_api: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"):
        assert (await send(sqlite_api, b'{"topic": "mail"}', **{"Content-Type": kind}))[0] == 415, kind


FIELDS: list[tuple[str, Any]] = [
    ("topic", "../x"),
    ("topic", "Mail"),
    ("topic", "a b"),
    ("topic", "<b>x</b>"),
    ("topic", "x" * 10_240),
    ("topic", ""),
    ("topic", 1),
    ("topic", None),
    ("payload", []),
    ("payload", "text"),
    ("payload", None),
    ("delay", "-1s"),
    ("delay", -1),
    ("delay", "soon"),
    ("delay", "1e999s"),
    ("delay", {}),
    ("runAt", "9999-01-01T00:00:00Z"),
    ("runAt", "2026-01-01T00:00:00"),
    ("runAt", "tomorrow"),
    ("runAt", 1),
    ("runAt", "1969-01-01T00:00:00Z"),
    ("expiresAt", "2026-13-01T00:00:00Z"),
    ("maxRetries", 0),
    ("maxRetries", 10**9),
    ("maxRetries", "3"),
    ("maxRetries", True),
    ("maxAttempts", -1),
    ("priority", "urgent"),
    ("priority", 10**12),
    ("priority", 1.5),
    ("idempotencyKey", "k" * 256),
    ("idempotencyKey", "a\nb"),
    ("idempotencyKey", ""),
    ("scope", "x" * 256),
    ("scopeId", "\u0007"),
    ("capability", "\t"),
    ("webhookUrl", "http://example.com"),
    ("colour", "red"),
]


async def test_a_field_that_is_wrong_is_named(api: Api) -> None:
    for field, value in FIELDS:
        answer = await api.post(ENQUEUE, {"topic": "mail", "payload": {}, field: value})
        assert answer.status_code == 400, (field, value, answer.text)
        assert list(answer.json()["data"]) == [field], answer.text
    assert await api.queue.count() == 0


async def test_what_is_wrong_inside_a_field_has_its_path(sqlite_api: Api) -> None:
    for body, path in (
        ({"topic": "mail", "payload": {"a": [1, {"b": 10**20}]}}, "payload.a[1].b"),
        ({"topic": "mail", "payload": {"a": "\x00"}}, "payload.a"),
        ({"topic": "mail", "priority": 2**63}, "priority"),
        ({"jobs": [{"topic": "mail"}, {"topic": "mail", "priority": 1.5}]}, "jobs.1.priority"),
        ({"jobs": [{"topic": "mail"}, {}]}, "jobs.1.topic"),
        ({"jobs": [5]}, "jobs.0: Input should be an object"),
    ):
        answer = await sqlite_api.post("/api/jobs/enqueue-many" if "jobs" in body else ENQUEUE, body)
        assert answer.status_code == 400, answer.text
        assert list(answer.json()["data"]) == [path.partition(":")[0]], answer.text
        assert answer.json()["message"].startswith(path)


async def test_messages_speak_of_the_fields_that_were_sent(sqlite_api: Api) -> None:
    for fields in (
        {"runAt": "2030-01-01T00:00:00Z", "delay": "1m"},
        {"maxRetries": 1, "maxAttempts": 1},
        {"runAt": "2030-01-01T00:00:00"},
    ):
        answer = await sqlite_api.post(ENQUEUE, {"topic": "mail", **fields})
        assert answer.status_code == 400
        assert "_" not in answer.json()["message"], answer.text
        assert "datetime" not in answer.json()["message"], answer.text


async def test_names_in_a_payload_are_the_clients_own(sqlite_api: Api) -> None:
    class Visit(BaseModel):
        run_at: int

    @sqlite_api.queue.job
    async def visit(job: Visit) -> None: ...

    answer = await sqlite_api.post(ENQUEUE, {"topic": "visit", "payload": {}})
    assert "payload.run_at" in answer.json()["message"]


async def test_a_time_may_be_written_in_lower_case(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue(runAt="2030-01-01t00:00:00.5z")
    assert job["runAt"] == "2030-01-01T00:00:00.500Z"


async def test_a_payload_over_one_mebibyte(api: Api) -> None:
    exact = {"x": "a" * (MIB - len('{"x":""}'))}
    assert (await api.post(ENQUEUE, {"topic": "mail", "payload": exact})).status_code == 200
    over = {"x": exact["x"] + "a"}
    assert failure(await api.post(ENQUEUE, {"topic": "mail", "payload": over})) == (400, "payload_too_large")


FILTERS = [
    "topic = 'a' || " * 300 + "topic = 'a'",
    "(" * 900 + "topic = 'a'" + ")" * 900,
    "topic=1||" * 1100 + "topic=1",
    "' OR 1=1--",
    "topic = 'unclosed",
    "topic = ",
    "passwordHash = 'x'",
    "@request.auth.id = 'x'",
    "@collection.users.id != ''",
    "n > 0",
    "topic = 'a' AND status = 'b'",
    "topic == 'a'",
    "x" * 3501,
    "topic = 'a\x00b'",
]


async def test_a_filter_that_is_refused(api: Api) -> None:
    for filter in FILTERS:
        answer = await api.get("/api/jobs", params={"filter": filter})
        assert failure(answer)[0] == 400, filter[:40]
        assert "filter" in answer.json()["data"], filter[:40]


QUERIES = [
    "limit=x",
    "limit=1.5",
    "page=x",
    "perPage=",
    "offset=abc",
    "status=unknown",
    "topic=../x",
    "sort=nope",
    "sort=-payload",
    "skipTotal=perhaps",
    "sort=" + ",".join(["id"] * 100),
    "scopeId=" + "x" * 300,
    "q=" + "x" * 600,
]


async def test_a_list_that_makes_no_sense(sqlite_api: Api) -> None:
    for query in QUERIES:
        answer = await sqlite_api.get(f"/api/jobs?{query}")
        assert failure(answer)[0] == 400, query[:40]
        assert query.partition("=")[0] in answer.json()["data"], query[:40]


async def test_percent_and_underscore_in_a_contains(api: Api) -> None:
    for text in ("100%", "100x", "a_b", "axb"):
        await api.enqueue(payload={"text": text})

    async def found(filter: str) -> set[str]:
        answer = await api.get("/api/jobs", params={"filter": filter})
        return {job["payload"]["text"] for job in answer.json()["items"]}

    assert await found("payload.text ~ 'a_b'") == {"a_b"}
    assert await found("payload.text ~ '100%'") == {"100%", "100x"}
    assert await found(r"payload.text ~ '%100\%'") == {"100%"}


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/api/jobs", {"GET", "HEAD"}),
        ("PUT", "/api/jobs/enqueue", {"POST"}),
        ("POST", "/api/health", {"GET", "HEAD"}),
        ("PUT", "/api/jobs/abc", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("GET", "/api/workers/claim", {"POST"}),
    ],
)
async def test_a_wrong_method(sqlite_api: Api, method: str, path: str, allow: set[str]) -> None:
    answer = await sqlite_api.request(method, path)
    assert failure(answer) == (405, "method_not_allowed")
    assert {one.strip() for one in answer.headers["allow"].split(",")} >= allow
    asked = await sqlite_api.request("OPTIONS", path, as_=None)
    assert (asked.status_code, asked.content, asked.headers["allow"]) == (204, b"", answer.headers["allow"])


async def test_nothing_is_possible_on_an_unknown_path(sqlite_api: Api) -> None:
    assert failure(await sqlite_api.request("OPTIONS", "/api/nope")) == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["/", "/nope", "/api", "/api/", "/api/jobs/", "/api/jobs/a/b/c", "/api/collections/x/auth-refresh"]
)
async def test_an_unknown_path(sqlite_api: Api, path: str) -> None:
    answer = await sqlite_api.get(path)
    assert failure(answer)[0] in (404, 405)


@pytest.mark.parametrize("host", ["a b", "evil.test/", "a@b", "<script>", ""])
async def test_a_malformed_host(sqlite_api: Api, host: str) -> None:
    assert failure(await sqlite_api.get("/api/health", headers={"Host": host})) == (400, "invalid_host")


async def test_head_is_get_without_a_body(sqlite_api: Api) -> None:
    await sqlite_api.enqueue()
    answer = await sqlite_api.request("HEAD", "/api/jobs")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_every_answer_has_the_headers_that_browsers_obey(sqlite_api: Api) -> None:
    for path in ("/api/health", "/api/jobs/nope", "/nope", "/_/setup"):
        headers = (await sqlite_api.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert "unsafe-inline" not in headers["content-security-policy"]
        assert headers["x-request-id"]


async def test_a_request_id_of_the_clients_own_is_kept_if_it_is_one(sqlite_api: Api) -> None:
    answer = await sqlite_api.get("/api/health", headers={"X-Request-ID": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    answer = await sqlite_api.get("/api/health", headers={"X-Request-ID": "a b" * 100})
    assert answer.headers["x-request-id"] != "a b" * 100


async def test_a_store_that_is_away_is_503(sqlite_api: Api) -> None:
    faulty(sqlite_api.queue).fail("insert", error=StoreUnavailable("disk I/O error at /secret/place"))
    answer = await sqlite_api.post(ENQUEUE, {"topic": "mail"})
    assert failure(answer) == (503, "store_unavailable")
    assert "secret" not in answer.text
    assert answer.headers["retry-after"] == "1"


async def test_a_bug_is_500_without_a_trace(sqlite_api: Api) -> None:
    faulty(sqlite_api.queue).fail("get", error=RuntimeError("SELECT secret FROM place"))
    answer = await sqlite_api.get("/api/jobs/01890000-0000-7000-8000-000000000000")
    assert failure(answer) == (500, "internal_error")
    assert "secret" not in answer.text


async def test_a_payload_that_its_handlers_type_refuses(sqlite_api: Api) -> None:
    from pydantic import BaseModel

    class Mail(BaseModel):
        to: str

    async def send_mail(mail: Mail) -> None: ...

    sqlite_api.queue.register("mail", send_mail)
    answer = await sqlite_api.post(ENQUEUE, {"topic": "mail", "payload": {"to": 5}})
    assert failure(answer) == (400, "invalid_payload")
    assert "payload.to" in answer.json()["message"]


def test_the_tables_hold_what_json_can_write() -> None:
    assert all(json.dumps(value) for _, value in FIELDS)
