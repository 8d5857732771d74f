"""PocketBase's realtime protocol, as its client speaks it. With that client itself: tests/sdk."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest

from tests.http.live import PATIENCE_S, LiveServer
from tests.http.test_streams import calling, superuser_token, users
from tests.waiting import until
from treadle import Queue
from treadle.events.ring import Ring
from treadle.http.streams import following, realtime

REALTIME = "/api/realtime"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
async def live(queue: Queue) -> AsyncIterator[LiveServer]:
    async with LiveServer(queue.url) as server:
        yield server


@pytest.fixture
async def client(live: LiveServer, queue: Queue) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(live.base_url, await superuser_token(queue)) as client:
        yield client


class Told(NamedTuple):
    id: str
    event: str
    data: dict[str, Any]


class Connection:
    """An open connection; whoever has opened it need not have signed in."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.id = ""
        self._lines = response.aiter_lines()

    async def next(self) -> Told | None:
        """None: the server has ended it."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_S):
            async for line in self._lines:
                if line:
                    name, _, value = line.partition(":")
                    fields[name] = value.strip()
                elif fields.get("event") == "ping":
                    fields = {}
                elif fields:
                    return Told(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
        return None

    async def take(self, count: int) -> list[tuple[str, str, str]]:
        """The next ones: (subscription, action, job)."""
        found = []
        for _ in range(count):
            told = await self.next()
            assert told
            assert told.id == self.id
            assert told.data.keys() == {"action", "record"}
            assert told.data["record"]["collectionName"] == "jobs"
            found.append((told.event, told.data["action"], told.data["record"]["id"]))
        return found


@contextlib.asynccontextmanager
async def connected(client: httpx.AsyncClient) -> AsyncIterator[Connection]:
    async with client.stream("GET", REALTIME) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-accel-buffering"] == "no"
        connection = Connection(response)
        told = await connection.next()
        assert told
        assert (told.event, told.data) == ("PB_CONNECT", {"clientId": told.id})
        assert len(told.id) == 40
        connection.id = told.id
        yield connection


async def subscribe(client: httpx.AsyncClient, connection: Connection, *subscriptions: str) -> httpx.Response:
    return await client.post(REALTIME, json={"clientId": connection.id, "subscriptions": list(subscriptions)})


async def test_a_job_is_told_to_each_matching_subscription(client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    async with calling(str(client.base_url)) as nobody, connected(nobody) as connection:
        answer = await subscribe(client, connection, "jobs/*", f"jobs/{job.id}")
        assert (answer.status_code, answer.content) == (204, b"")
        other = await queue.enqueue("mail")
        await queue.cancel(job.id)
        assert await connection.take(3) == [
            ("jobs/*", "create", other.id),
            ("jobs/*", "update", job.id),
            (f"jobs/{job.id}", "update", job.id),
        ]
        await queue.delete(job.id)
        assert [action for _, action, _ in await connection.take(2)] == ["delete", "delete"]


async def test_subscriptions_replace_the_ones_before(client: httpx.AsyncClient, queue: Queue) -> None:
    one, two = await queue.enqueue("mail"), await queue.enqueue("mail")
    async with connected(client) as connection:
        await subscribe(client, connection, f"jobs/{one.id}")
        await subscribe(client, connection, f"jobs/{two.id}")
        await queue.cancel(one.id)
        await queue.cancel(two.id)
        assert await connection.take(1) == [(f"jobs/{two.id}", "update", two.id)]
        await subscribe(client, connection)
        await queue.requeue(two.id)
        await subscribe(client, connection, "jobs/*")
        new = await queue.enqueue("mail")
        assert (await connection.take(1))[-1] in [("jobs/*", "create", new.id), ("jobs/*", "update", two.id)]


async def test_options_of_a_subscription(client: httpx.AsyncClient, queue: Queue) -> None:
    options = quote(
        json.dumps({"query": {"filter": "payload.n > 1", "fields": "status", "expand": "x"}, "headers": {}})
    )
    name = f"jobs/*?options={options}"
    async with connected(client) as connection:
        assert (await subscribe(client, connection, name)).status_code == 204
        jobs = await queue.enqueue_many("mail", [{"n": n} for n in range(3)])
        told = await connection.next()
        assert told
        assert told.event == name
        record = {"id": jobs[2].id, "status": "pending", "collectionId": "jobs", "collectionName": "jobs"}
        assert told.data == {"action": "create", "record": record}


# -- who may ---------------------------------------------------------------------------------------


async def test_each_hears_of_what_it_may_see(client: httpx.AsyncClient, queue: Queue) -> None:
    _, tokens, ids = await users(queue, client, "createdBy = @request.auth.id")
    theirs = await queue.enqueue("mail", created_by=ids["bob"])
    async with calling(str(client.base_url), tokens["ann"]) as ann, connected(ann) as connection:
        assert (await subscribe(ann, connection, "jobs/*", f"jobs/{theirs.id}")).status_code == 204
        await queue.cancel(theirs.id)
        await queue.delete(theirs.id)
        mine = await queue.enqueue("mail", created_by=ids["ann"])
        assert await connection.take(1) == [("jobs/*", "create", mine.id)]


async def test_who_may_see_nothing_is_refused(client: httpx.AsyncClient, queue: Queue) -> None:
    _, tokens, _ = await users(queue, client, "")
    async with calling(str(client.base_url)) as nobody, connected(nobody) as connection:
        answer = await subscribe(nobody, connection, "jobs/*")
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        async with calling(str(client.base_url), tokens["ann"]) as ann:
            answer = await subscribe(ann, connection, "jobs/*")
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        async with calling(str(client.base_url), "bad") as bad:
            assert (await subscribe(bad, connection, "jobs/*")).status_code == 401
        await client.patch("/api/settings", json={"jobs": {"manage_rule": "true"}})
        assert (await subscribe(nobody, connection, "jobs/*")).status_code == 204


async def test_nobody_else_takes_over_a_connection(client: httpx.AsyncClient, queue: Queue) -> None:
    _, tokens, _ = await users(queue, client, "@request.auth.id != ''")
    async with (
        calling(str(client.base_url), tokens["ann"]) as ann,
        calling(str(client.base_url), tokens["bob"]) as bob,
        calling(str(client.base_url)) as nobody,
        connected(nobody) as connection,
    ):
        assert (await subscribe(ann, connection, "jobs/*")).status_code == 204
        assert (await subscribe(ann, connection, "jobs/x")).status_code == 204
        for other in (bob, nobody):
            assert (await subscribe(other, connection, "jobs/*")).status_code in (401, 403)
        assert (await subscribe(nobody, connection)).status_code == 403


async def test_who_loses_access_loses_the_connection(
    client: httpx.AsyncClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.1)
    accounts, tokens, ids = await users(queue, client, "@request.auth.id != ''")
    async with calling(str(client.base_url), tokens["ann"]) as ann, connected(ann) as connection:
        await subscribe(ann, connection, "jobs/*")
        await accounts.update_user(ids["ann"], password="another horse")
        assert await connection.next() is None


async def test_while_the_api_is_switched_off(client: httpx.AsyncClient) -> None:
    async with connected(client) as connection:
        await client.patch("/api/settings", json={"jobs": {"http_enabled": False}})
        refused = [await client.get(REALTIME), await subscribe(client, connection, "jobs/*")]
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(403, "http_disabled")}


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscription", "field"),
    [
        ("users/*", "subscriptions"),
        ("jobs", "subscriptions"),
        ("jobs/", "subscriptions"),
        ("", "subscriptions"),
        ("jobs/a\nevent: x", "subscriptions"),
        ("jobs/é", "subscriptions"),
        ("jobs/" + "x" * 3000, "subscriptions"),
        ("jobs/*?options=x", "subscriptions"),
        ("jobs/*?options=[]", "subscriptions"),
        ('jobs/*?options={"query": {"filter": "status ="}}', "subscriptions"),
        ('jobs/*?options={"query": {"fields": "nothing"}}', "fields"),
    ],
)
async def test_what_is_no_subscription(client: httpx.AsyncClient, subscription: str, field: str) -> None:
    async with connected(client) as connection:
        answer = await subscribe(client, connection, subscription)
        assert (answer.status_code, list(answer.json()["data"])) == (400, [field])


async def test_a_bad_request(client: httpx.AsyncClient) -> None:
    missing = await client.post(REALTIME, json={"subscriptions": ["jobs/*"]})
    assert (missing.status_code, missing.json()["data"]["clientId"]["code"]) == (400, "validation_required")
    unknown = await client.post(REALTIME, json={"clientId": "x" * 40, "subscriptions": ["jobs/*"], "more": 1})
    assert (unknown.status_code, unknown.json()["message"]) == (404, "Missing or invalid client id.")
    wrongs: list[Any] = ["jobs/*", [1], {}]
    for wrong in wrongs:
        answer = await client.post(REALTIME, json={"clientId": "x", "subscriptions": wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
    many = await client.post(REALTIME, json={"clientId": "x", "subscriptions": [f"jobs/{n}" for n in range(500)]})
    assert many.status_code == 400


# -- limits ----------------------------------------------------------------------------------------


async def test_they_count_among_the_streams_of_a_caller(sqlite_url: str) -> None:
    async with Queue(sqlite_url) as queue:
        token = await superuser_token(queue)
    async with (
        LiveServer(sqlite_url, streams_per_caller=1) as live,
        calling(live.base_url, token) as client,
        connected(client),
    ):
        refused = await client.get(REALTIME)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        assert (await client.get("/api/jobs/stream")).status_code == 429


async def test_a_connection_without_subscriptions_is_closed(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, "SUBSCRIBE_WITHIN_S", 0.1)
    async with connected(client) as connection:
        assert await connection.next() is None


async def test_a_client_that_missed_events_is_disconnected(
    live: LiveServer, client: httpx.AsyncClient, queue: Queue
) -> None:
    async with connected(client) as connection:
        await subscribe(client, connection, "jobs/*")

        feed = live.feed

        async def forget() -> None:
            feed._forget()

        await asyncio.to_thread(lambda: live.in_loop(forget()))
        assert await connection.next() is None
    await until(lambda: not live.in_loop(live.app.state.servers.get()).realtime)


async def test_a_client_that_is_gone_leaves_nothing_behind(
    live: LiveServer, client: httpx.AsyncClient, queue: Queue
) -> None:
    live.feed._ring = Ring(most=50)
    for _ in range(3):
        async with connected(client) as connection:
            await subscribe(client, connection, "jobs/*")
            await queue.enqueue("mail")
            await connection.take(1)
    server = live.in_loop(live.app.state.servers.get())
    await until(lambda: not (server.realtime or server.streams._total or live.feed._listeners))
