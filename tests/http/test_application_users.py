"""`queue.asgi(auth=…)`: an application's own users call the API and see the dashboard."""

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

from tests.http.api import Api, failure, join
from treadle import Caller, InvalidInput, Queue
from treadle.accounts import Accounts

BODY = {"topic": "mail", "payload": {}}
SIGNED_IN = {"enqueue_rule": "@request.auth.id != ''", "manage_rule": "createdBy = @request.auth.id"}
SITE = "http://shop.test"


async def by_session(request: Request) -> Caller | None:
    """As an application with a cookie, or a token of its own, would do it."""
    name = request.cookies.get("session") or request.headers.get("authorization", "").removeprefix("Shop ")
    match name:
        case "ann" | "bob":
            return Caller(id=name, email=f"{name}@shop.test", data={"team": "red" if name == "ann" else "blue"})
        case "boss":
            return Caller(id="boss", email="boss@shop.test", superuser=True)
        case "gone":
            raise HTTPException(401, "your session is over", headers={"WWW-Authenticate": "Shop"})
        case "broken":
            raise RuntimeError("secret of the application")
        case "wrong":
            return {"id": "ann"}  # type: ignore[return-value]
        case "reserved":
            return Caller(id="x", data={"id": "y"})
    return None


@contextlib.asynccontextmanager
async def shop(url: str, auth: Any = by_session, **options: Any) -> AsyncIterator[Api]:
    queue = Queue(url, **options)
    application = FastAPI(lifespan=queue.lifespan())
    application.mount("/queue", queue.asgi(auth=auth))
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(application, client=("127.0.0.1", 5000))
        async with httpx.AsyncClient(transport=transport, base_url=SITE) as client:
            api = Api(queue, client, Accounts(queue.store))
            if not await api.accounts.superuser_exists():
                await join(api.accounts)
            await api.meet()
            yield api


async def call(api: Api, method: str, path: str, user: str | None, body: Any = None, **headers: str) -> httpx.Response:
    """As a program with the application's token."""
    sent = {"Authorization": f"Shop {user}"} if user else {}
    return await api.client.request(method, f"/queue{path}", json=body, headers=sent | headers)


async def rules(api: Api, jobs: Mapping[str, Any]) -> None:
    assert (await call(api, "PATCH", "/api/settings", "boss", {"jobs": jobs})).status_code == 200


@pytest.mark.every_store
async def test_the_applications_users_have_their_own_jobs(url: str) -> None:
    async with shop(url) as api:
        await rules(api, SIGNED_IN)
        job = (await call(api, "POST", "/api/jobs/enqueue", "ann", BODY)).json()
        assert job["createdBy"] == "ann"
        assert (await call(api, "GET", f"/api/jobs/{job['id']}", "ann")).status_code == 200
        assert failure(await call(api, "GET", f"/api/jobs/{job['id']}", "bob")) == (404, "not_found")
        assert (await call(api, "GET", "/api/jobs", "bob")).json()["items"] == []
        assert failure(await call(api, "POST", "/api/jobs/enqueue", None, BODY)) == (401, "unauthorized")


async def test_rules_see_the_data_of_a_user(sqlite_url: str) -> None:
    async with shop(sqlite_url) as api:
        await rules(api, {"enqueue_rule": "@request.auth.team = 'red' && @request.auth.email = 'ann@shop.test'"})
        assert (await call(api, "POST", "/api/jobs/enqueue", "ann", BODY)).status_code == 200
        assert failure(await call(api, "POST", "/api/jobs/enqueue", "bob", BODY)) == (403, "forbidden")


async def test_idempotency_keys_are_separate_by_user(sqlite_url: str) -> None:
    async with shop(sqlite_url) as api:
        await rules(api, SIGNED_IN)
        body = {**BODY, "idempotencyKey": "k"}
        ids = [(await call(api, "POST", "/api/jobs/enqueue", who, body)).json()["id"] for who in ("ann", "bob", "ann")]
        assert ids[0] == ids[2] != ids[1]


async def test_treadles_own_accounts_and_keys_still_work(sqlite_url: str) -> None:
    async with shop(sqlite_url) as api:
        key = await api.key("enqueue")
        assert (await api.post("/queue/api/jobs/enqueue", BODY, as_=key)).status_code == 200
        assert (await api.get("/queue/api/jobs")).status_code == 200  # root
        assert failure(await call(api, "GET", "/api/jobs", "nobody")) == (401, "invalid_token")


async def test_a_superuser_of_the_application_sees_the_dashboard_and_is_named_in_the_audit_log(sqlite_url: str) -> None:
    async with shop(sqlite_url) as api:
        api.client.cookies.set("session", "boss")
        page = await api.client.get("/queue/_/")
        assert page.status_code == 200
        assert "boss@shop.test" in page.text
        paused = await api.client.post("/queue/_/topics/mail/pause", headers={"Origin": SITE})
        assert paused.status_code == 303, paused.text
        assert "boss@shop.test" in (await api.client.get("/queue/_/system")).text
        invited = await api.client.post("/queue/_/system/invite", headers={"Origin": SITE})
        assert invited.status_code == 403
        assert "account here" in invited.text
        api.client.cookies.set("session", "ann")
        assert (await api.client.get("/queue/_/")).status_code == 303


async def test_a_page_elsewhere_cannot_use_the_applications_session(sqlite_url: str) -> None:
    async with shop(sqlite_url) as api:
        api.client.cookies.set("session", "boss")
        for headers in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = await api.client.post("/queue/api/jobs/enqueue", json=BODY, headers=headers)
            assert failure(answer) == (403, "cross_origin")
        same = await api.client.post("/queue/api/jobs/enqueue", json=BODY, headers={"Origin": SITE})
        assert same.status_code == 200
        api.client.cookies.clear()
        with_token = await call(api, "POST", "/api/jobs/enqueue", "boss", BODY, Origin="http://evil.test")
        assert with_token.status_code == 200  # no browser adds this header by itself


async def test_a_read_only_dashboard_is_read_only_for_the_applications_sessions(sqlite_url: str) -> None:
    async with shop(sqlite_url, read_only=True) as api:
        api.client.cookies.set("session", "boss")
        answer = await api.client.post("/queue/api/jobs/enqueue", json=BODY)
        assert failure(answer) == (403, "read_only")


async def test_the_applications_refusal_is_the_answer(sqlite_url: str) -> None:
    async with shop(sqlite_url) as api:
        answer = await call(api, "GET", "/api/jobs", "gone")
        assert failure(answer) == (401, "unauthorized")
        assert answer.json()["message"] == "your session is over"
        assert answer.headers["www-authenticate"] == "Shop"


@pytest.mark.parametrize("user", ["broken", "wrong", "reserved"])
async def test_an_error_of_the_application_is_told_in_the_log_only(
    sqlite_url: str, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(sqlite_url) as api:
        answer = await call(api, "GET", "/api/jobs", user)
        assert failure(answer) == (500, "auth_failed")
        assert "secret" not in answer.text
        assert ["auth=" in one.message for one in caplog.records if one.levelno >= logging.ERROR] == [True]
        assert (await call(api, "GET", "/api/jobs", "boss")).status_code == 200


async def test_a_users_token_of_treadle_cannot_be_had_for_the_applications_user(sqlite_url: str) -> None:
    async with shop(sqlite_url) as api:
        answer = await call(api, "POST", "/api/collections/users/auth-refresh", "ann")
        assert failure(answer) == (403, "forbidden")


@pytest.mark.parametrize(
    "options",
    [{"id": 7}, {"id": ""}, {"id": "x" * 256}, {"id": "a\n"}, {"id": "a", "superuser": "yes"}, {"id": "a", "email": 3}],
)
def test_a_caller_says_what_is_wrong_with_it(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Caller(**options)
