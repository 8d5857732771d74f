"""Signing in over HTTP, as PocketBase's clients do it."""

import pytest

from tests.http.api import PASSWORD, Api, failure
from treadle.accounts import SUPERUSERS, Accounts

USERS = "/api/collections/users/auth-with-password"
ROOTS = "/api/collections/_superusers/auth-with-password"


async def test_sign_in_and_use_the_token(api: Api) -> None:
    answer = await api.post(USERS, {"identity": "ann@example.com", "password": PASSWORD}, as_=None)
    assert answer.status_code == 200
    body = answer.json()
    assert body["record"]["email"] == "ann@example.com"
    assert body["record"]["team"] == "red"
    assert (body["record"]["collectionName"], body["record"]["id"]) == ("users", api.people["ann"].id)
    assert "hash" not in answer.text.lower()
    await api.rules(manage_rule="@request.auth.email = 'ann@example.com'")
    for header in (body["token"], f"Bearer {body['token']}", f"bearer {body['token']}"):
        listed = await api.get("/api/jobs", as_=None, headers={"Authorization": header})
        assert listed.status_code == 200
    assert "set-cookie" not in answer.headers


async def test_superusers_sign_in_at_their_own_door(api: Api) -> None:
    answer = await api.post(ROOTS, {"identity": "ROOT@example.com", "password": PASSWORD}, as_=None)
    assert (answer.status_code, answer.json()["record"]["collectionName"]) == (200, "_superusers")
    wrong_door = await api.post(USERS, {"identity": "root@example.com", "password": PASSWORD}, as_=None)
    assert failure(wrong_door) == (400, "sign_in_failed")


async def test_a_wrong_password_and_an_unknown_user_read_the_same(api: Api) -> None:
    wrong = await api.post(USERS, {"identity": "ann@example.com", "password": "wrong password"}, as_=None)
    unknown = await api.post(USERS, {"identity": "eve@example.com", "password": "wrong password"}, as_=None)
    assert failure(wrong) == (400, "sign_in_failed")
    assert wrong.content == unknown.content


@pytest.mark.every_store
async def test_an_old_token_does_not_prevent_signing_in(api: Api) -> None:
    headers = {"Authorization": "expired.or.broken"}
    answer = await api.post(USERS, {"identity": "ann@example.com", "password": PASSWORD}, as_=None, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "body", [{}, {"identity": "a"}, {"identity": "a", "password": 5}, {"identity": "", "password": ""}]
)
async def test_what_is_missing_is_named(sqlite_api: Api, body: dict[str, object]) -> None:
    answer = await sqlite_api.post(USERS, body, as_=None)
    assert failure(answer)[0] == 400
    assert "password" in answer.json()["data"]
    if not body.get("password"):
        blank = {"code": "validation_required", "message": "Cannot be blank."}
        assert answer.json()["data"]["password"] == blank
        assert answer.json()["message"] == "An error occurred while validating the submitted data."
    else:
        assert answer.json()["message"] == "An error occurred while loading the submitted data."


@pytest.mark.parametrize("body", ["{", "[]", "5", '{"identity": 1e999}'])
async def test_a_body_that_is_no_form_reads_as_in_pocketbase(sqlite_api: Api, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await sqlite_api.request("POST", USERS, as_=None, content=body, headers=headers)
    assert failure(answer)[0] == 400
    assert answer.json()["message"] == "An error occurred while loading the submitted data."


async def test_a_collection_that_is_not_there(sqlite_api: Api) -> None:
    for path in ("auth-with-password", "auth-refresh"):
        for body in ({"identity": "ann@example.com", "password": PASSWORD}, {}):
            answer = await sqlite_api.post(f"/api/collections/nope/{path}", body)
            assert failure(answer) == (404, "not_found")
            assert answer.json()["message"] == "Missing or invalid auth collection context."
        assert answer.json()["message"] == "Missing or invalid auth collection context."


@pytest.mark.every_store
async def test_refresh(api: Api) -> None:
    answer = await api.post("/api/collections/users/auth-refresh", as_="ann")
    assert answer.status_code == 200
    assert answer.json()["record"]["id"] == api.people["ann"].id
    fresh = answer.json()["token"]
    again = await api.post("/api/collections/users/auth-refresh", as_=None, headers={"Authorization": fresh})
    assert again.status_code == 200
    assert failure(await api.post("/api/collections/users/auth-refresh", as_=None)) == (401, "unauthorized")
    assert failure(await api.post("/api/collections/_superusers/auth-refresh", as_="ann")) == (403, "forbidden")


async def test_a_flood_of_sign_ins_is_429_with_retry_after(sqlite_api: Api) -> None:
    for _ in range(20):
        answer = await sqlite_api.post(USERS, {"identity": "ann@example.com", "password": "wrong password"}, as_=None)
        if answer.status_code == 429:
            break
    assert failure(answer) == (429, "too_many_attempts")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.every_store
async def test_set_up_makes_the_first_superuser_once(url: str) -> None:
    import httpx

    from treadle import Queue
    from treadle.http import create_app

    async with Queue(url) as queue:
        for account in await Accounts(queue.store).list(SUPERUSERS):
            await queue.store.delete_records([(SUPERUSERS, account.id)])  # as on the first day
        token = await Accounts(queue.store).setup_token()
        app = create_app(queue)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://queue.test") as client:
            body = {"token": token, "email": "first@example.com", "password": PASSWORD}
            wrong = await client.post("/api/setup", json={**body, "token": "guess"})
            assert failure(wrong) == (403, "setup_refused")
            short = await client.post("/api/setup", json={**body, "password": "short"})
            assert short.status_code == 400
            made = await client.post("/api/setup", json=body)
            assert (made.status_code, made.json()["record"]["email"]) == (200, "first@example.com")
            assert "httponly" in made.headers["set-cookie"].lower()
            assert (await client.get("/api/settings")).status_code == 200
            client.cookies.clear()
            again = await client.post("/api/setup", json={**body, "email": "second@example.com"})
            assert failure(again) == (403, "setup_refused")
        await app.state.servers.close()
        assert await Accounts(queue.store).setup_token() is None
