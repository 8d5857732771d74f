"""Every route, called by every kind of caller: none is open by mistake, and no caller reaches another's jobs."""

from typing import Any

import pytest

from tests.http.api import Api, failure, opened
from treadle import Queue
from treadle.http import create_app

OPEN = {
    ("get", "/api/health"),
    ("post", "/api/setup"),
    ("get", "/api/realtime"),
    ("post", "/api/collections/{collection}/auth-with-password"),
}
# A body that the route would take, so that nothing but the access decides.
BODIES: dict[str, Any] = {
    "/api/jobs/enqueue": {"topic": "mail"},
    "/api/jobs/enqueue-many": {"jobs": [{"topic": "mail"}]},
    "/api/jobs/bulk": {"action": "cancel", "filter": "topic = 'mail'"},
    "/api/jobs/{id}/signal": {"step": "approve", "result": 1},
    "/api/realtime": {"clientId": "x", "subscriptions": ["jobs/*"]},
    "/api/workers/claim": {"workerId": "w", "topics": ["mail"]},
    "/api/workers/jobs/{id}/progress": {"token": 1, "percent": 1},
    "/api/workers/jobs/{id}/fail": {"token": 1, "error": "x"},
}


def routes() -> list[tuple[str, str]]:
    document = create_app(Queue("sqlite:///nowhere.db")).openapi()
    return [(method, path) for path, methods in document["paths"].items() for method in methods]


def filled(path: str, job_id: str) -> str:
    for name, value in {
        "collection": "users",
        "topic": "mail",
        "id": job_id,
        "name": "w",
        "step": "prepare",
        "channel": "tokens",
        "delivery": "1",
    }.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path
    return path


async def call(api: Api, method: str, path: str, job_id: str, as_: str | None) -> Any:
    body = BODIES.get(path, {"token": 1} if "/workers/jobs/" in path else {})
    options = {"json": body} if method in ("post", "patch") else {}
    return await api.request(method.upper(), filled(path, job_id), as_=as_, **options)


async def test_every_route_but_the_open_ones_needs_a_token(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue()
    for method, path in routes():
        if (method, path) not in OPEN:
            answer = await call(sqlite_api, method, path, job["id"], None)
            assert failure(answer)[0] == 401, (method, path, answer.text)


async def test_a_user_whom_no_rule_lets_in(sqlite_api: Api) -> None:
    job = await sqlite_api.enqueue()
    key = await sqlite_api.key("metrics")
    for method, path in routes():
        if (method, path) not in OPEN and not path.endswith("/auth-refresh"):
            for who in ("ann", key):
                if who == key and path == "/metrics":
                    continue  # is for any service that has a key
                answer = await call(sqlite_api, method, path, job["id"], who)
                assert failure(answer)[0] == 403, (who, method, path, answer.text)


async def test_another_users_job_is_404(sqlite_api: Api) -> None:
    await sqlite_api.rules(enqueue_rule="@request.auth.id != ''", manage_rule="createdBy = @request.auth.id")
    hers = await sqlite_api.enqueue(as_="ann")
    before = (await sqlite_api.queue.get(hers["id"])).as_json()
    of_one_job = [(method, path) for method, path in routes() if path.startswith("/api/jobs/{id}")]
    assert len(of_one_job) >= 8
    for method, path in of_one_job:
        foreign = await call(sqlite_api, method, path, hers["id"], "bob")
        nothing = await call(sqlite_api, method, path, "01890000-0000-7000-8000-000000000000", "bob")
        assert failure(foreign) == (404, "not_found"), (method, path)
        assert foreign.content == nothing.content
    assert (await sqlite_api.queue.get(hers["id"])).as_json() == before


async def test_a_superuser_is_never_refused(sqlite_api: Api) -> None:
    for method, path in routes():
        if "stream" in path or path.endswith(("/auth-refresh", "/output/{channel}", "/realtime")):
            continue  # a stream does not end, and a token is refreshed where it came from: they have tests of their own
        job = await sqlite_api.enqueue()
        answer = await call(sqlite_api, method, path, job["id"], "root")
        assert answer.status_code not in (401, 403, 405, 500), (method, path, answer.text)


async def test_mounted_in_another_application(sqlite_url: str) -> None:
    import httpx
    from fastapi import FastAPI

    async with opened(sqlite_url) as api:
        outer = FastAPI()
        outer.mount("/queue", api.queue.asgi())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://queue.test") as client:
            headers = {"Authorization": api.tokens["root"]}
            made = await client.post("/queue/api/jobs/enqueue", json={"topic": "mail"}, headers=headers)
            assert made.status_code == 200
            assert (await client.get(f"/queue/api/jobs/{made.json()['id']}", headers=headers)).status_code == 200
            assert (await client.get("/queue/api/health")).status_code == 200
            assert (await client.get("/api/health")).status_code == 404


async def test_pages_of_other_origins_can_read_what_is_wrong(sqlite_api: Api) -> None:
    """Also on the routes that go past the framework."""
    page = {"Origin": "https://page.example"}
    job = await sqlite_api.enqueue()
    answers = [
        await sqlite_api.get(f"/api/jobs/{job['id']}", headers=page),
        await sqlite_api.get("/api/jobs/nothing", headers=page),
        await sqlite_api.post("/api/jobs/enqueue", {"topic": ""}, headers=page),
        await sqlite_api.post("/api/jobs/enqueue", {"topic": "mail", "maxRetries": 1, "maxAttempts": 2}, headers=page),
        await sqlite_api.get("/api/jobs", headers=page),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 400, 400, 200]
    assert all(answer.headers["access-control-allow-origin"] == "*" for answer in answers)
    assert all("Retry-After" in answer.headers["access-control-expose-headers"] for answer in answers)


async def test_the_origins_that_may_call_are_a_setting(sqlite_url: str) -> None:
    async with opened(sqlite_url, cors_origins="https://app.example") as api:
        for origin, allowed in (("https://app.example", True), ("https://page.example", False)):
            for method in ("GET", "OPTIONS"):
                headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
                answer = await api.request(method, "/api/health", headers=headers, as_=None)
                found = answer.headers.get("access-control-allow-origin")
                assert found == (origin if allowed else None), (origin, method)
    async with opened(sqlite_url, cors_origins="none") as api:
        answer = await api.get("/api/health", headers={"Origin": "https://app.example"})
        assert "access-control-allow-origin" not in answer.headers


async def test_an_unexpected_error(sqlite_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(sqlite_api.queue, "enqueue", broken)
    monkeypatch.setattr(sqlite_api.queue, "why", broken)
    job = await sqlite_api.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "mail"}, {"topic": "mail"}]})
    for answer in (
        await sqlite_api.post("/api/jobs/enqueue", {"topic": "mail"}),
        await sqlite_api.get(f"/api/jobs/{job.json()['items'][0]['id']}/why"),
    ):
        assert failure(answer) == (500, "internal_error")
        assert "secret" not in answer.text


async def test_a_fixed_path_is_no_id(sqlite_api: Api) -> None:
    """`/api/jobs/{id}` goes past the framework, `/api/jobs/stats` does not."""
    assert "successRate" in (await sqlite_api.get("/api/jobs/stats")).json()
    wrong = await sqlite_api.get("/api/jobs/enqueue")
    assert (failure(wrong), wrong.headers["allow"]) == ((405, "method_not_allowed"), "POST")
    assert failure(await sqlite_api.delete("/api/jobs/bulk")) == (405, "method_not_allowed")
    told = (await sqlite_api.get("/metrics")).text
    assert 'method="DELETE",route="/api/jobs/bulk",status="405"' in told
    assert failure(await sqlite_api.post("/api/jobs/stats")) == (405, "method_not_allowed")
    assert failure(await sqlite_api.request("PUT", "/api/jobs/enqueue")) == (405, "method_not_allowed")
    assert (await sqlite_api.request("HEAD", "/api/jobs/stats")).content == b""
