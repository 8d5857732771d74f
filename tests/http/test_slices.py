"""No request occupies the event loop: between two of its turns runs at most 50 ms of our Python."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.http.api import Api, failure
from tests.http.slices import Caller, loop_turns
from tests.http.test_routes import filled, routes
from treadle.http import bodies

MOST_S = 0.050
TRIES = 5
MIB = 1024 * 1024
RULE = " && ".join(f"(@request.body.topic != 'x{i}' || payload.n != {i})" for i in range(10))


def many(count: int, **job: Any) -> bytes:
    return json.dumps({"jobs": [{"topic": "mail", "payload": {"n": i}, **job} for i in range(count)]}).encode()


NUMBERS = {"n": [[i] for i in range(150_000)]}
TEXT = {"n": "x" * (MIB - 100)}
OPTIONS = {"scope": "team", "scopeId": "red", "priority": 3, "maxRetries": 4, "delay": "1h"}
KEYED = json.dumps(
    {"jobs": [{"topic": "mail", "payload": {"n": i}, "idempotencyKey": f"k{i}"} for i in range(10_000)]}
).encode()
BODIES: dict[str, list[bytes]] = {
    "/api/jobs/enqueue": [json.dumps({"topic": "mail", "payload": one}).encode() for one in (NUMBERS, TEXT)],
    "/api/jobs/enqueue-many": [
        many(10_000),
        many(10_000, **OPTIONS),
        KEYED,
        KEYED,  # answered with the jobs of the first
        b'{"jobs": [' + b"{}," * 9_990 + b"{}]}",
    ],
    "/api/jobs/{topic}/dispatch": [json.dumps({"args": one}).encode() for one in (NUMBERS, TEXT)],
    "/api/jobs/bulk": [b'{"action": "patch", "filter": "id != \'\'", "priority": 7}'],
    "/api/jobs/{id}/signal": [json.dumps({"step": "approve", "result": one}).encode() for one in (NUMBERS, TEXT)],
    "/api/jobs/{id}/requeue": [json.dumps({"payload": one}).encode() for one in (NUMBERS, TEXT)],
    "/api/workers/claim": [
        json.dumps({"workerId": "w", "topics": [f"t{i}" for i in range(1000)], "limit": 100}).encode()
    ],
    "/api/workers/jobs/{id}/complete": [json.dumps({"token": 1, "result": one}).encode() for one in (NUMBERS, TEXT)],
    "/api/workers/jobs/{id}/fail": [json.dumps({"token": 1, "error": "x" * 32_000}).encode()],
    "/api/workers/jobs/{id}/progress": [b'{"token": 1, "percent": 1}'],
    "/api/schedules": [
        json.dumps({"topic": "mail", "cron": "@daily", "payload": one}).encode() for one in (NUMBERS, TEXT)
    ],
    "/api/settings": [json.dumps({"jobs": {"allowed_topics": [f"t{i}" for i in range(1000)]}}).encode()],
}
QUERIES = {"/api/jobs": ["limit=1000", "limit=1000&filter=payload.n>5", "limit=1000&sort=-priority"]}
ENDLESS = ("/api/realtime", "/api/jobs/stream", "/api/jobs/{id}/stream", "/api/jobs/{id}/output/{channel}")


async def test_no_request_runs_more_than_50_ms_between_two_turns_of_the_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.rules(enqueue_rule=f"@request.auth.id != '' && {RULE}", manage_rule="createdBy = @request.auth.id")
    jobs = [{"topic": "mail", "payload": {"n": i}} for i in range(1000)]
    made = await api.post("/api/jobs/enqueue-many", {"jobs": jobs}, as_="ann")
    id = made.json()["items"][0]["id"]
    too_long: list[Any] = []
    with loop_turns(monkeypatch) as turns:
        for method, path, who, body, query in requests():
            token = None if who is None else api.tokens[who]
            call = Caller(api.client._transport.app)  # type: ignore[attr-defined]
            tries: list[float] = []
            # Other programs on the machine only ever add to CPU time (caches, stolen time), so the least counts.
            while len(tries) < TRIES and min(tries, default=1) > MOST_S:
                (status, _), longest = await turns.of(call(method, filled(path, id), body, token, query))
                assert status < 500, (method, path, who, query)
                tries.append(longest)
            if min(tries) > MOST_S:
                too_long.append(f"{method} {path}?{query} {who} {len(body)} {status}: {min(tries) * 1000:.0f} ms")
    assert too_long == []


def requests() -> Iterator[tuple[str, str, str | None, bytes, str]]:
    for method, path in routes():
        bodies = BODIES.get(path, [b"{}"]) if method != "get" else [b""]
        callers = [] if path in ENDLESS else ["root", "ann", None]
        for who, body, query in product(callers, bodies, QUERIES.get(path, [""])):
            yield method, path, who, body, query


async def test_a_caller_whom_no_body_helps_is_refused_before_the_body_is_read(
    sqlite_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "@request.auth.id != '' && @request.body.topic = 'mail'"
    await sqlite_api.rules(enqueue_rule=rule, manage_rule=rule)
    read: list[int] = []
    parse = bodies._parsed
    monkeypatch.setattr(bodies, "_parsed", lambda *given: read.append(len(given[1])) or parse(*given))  # type: ignore[func-returns-value]
    for path in ("/api/jobs/enqueue", "/api/jobs/enqueue-many", "/api/jobs/mail/dispatch", "/api/jobs/bulk"):
        answer = await sqlite_api.post(path, {"jobs": [{}] * 9_990}, as_=None)
        assert failure(answer) == (401, "unauthorized")
    assert read == []
    assert (await sqlite_api.post("/api/jobs/enqueue", {"topic": "mail"}, as_="ann")).status_code == 200
    assert read


@pytest.mark.parametrize("rule", ["true", "@request.body.jobs:isset = false"])
async def test_callers_without_an_account_may_send_100_jobs_at_once(sqlite_api: Api, rule: str) -> None:
    await sqlite_api.rules(enqueue_rule=rule)
    for count, status in ((100, 200), (101, 400)):
        answer = await sqlite_api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "mail"}] * count}, as_=None)
        assert answer.status_code == status, answer.text
    assert "sign in to send more" in answer.text
    assert (await sqlite_api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "mail"}] * 101})).status_code == 200
