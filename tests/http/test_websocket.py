"""`/api/jobs/ws`: the events of the streams over a WebSocket."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.http.live import LiveServer, reading
from tests.http.sockets import SOCKET, socket
from tests.http.test_streams import STREAM, calling, superuser_token, users
from tests.queue.hands import Hands
from tests.waiting import until
from treadle import Queue
from treadle.events.ring import Ring
from treadle.http.connections import Limits
from treadle.http.origin import COOKIE
from treadle.http.streams import following, websocket
from treadle.model.fields import JSON_NAMES


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
async def sqlite_queue(sqlite_url: str) -> AsyncIterator[Queue]:
    async with Queue(sqlite_url) as queue:
        yield queue


@pytest.fixture
async def live(queue: Queue) -> AsyncIterator[LiveServer]:
    async with LiveServer(queue.url) as server:
        yield server


@pytest.fixture
async def token(queue: Queue) -> str:
    return await superuser_token(queue)


async def refused(base_url: str, query: str = "", token: str | None = None, **options: Any) -> tuple[int, str]:
    """Status and code of a handshake that is refused."""
    with pytest.raises(InvalidStatus) as caught:
        async with socket(base_url, query, token, **options):
            pass
    answer = caught.value.response
    body = json.loads(answer.body)
    assert body["status"] == answer.status_code
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, body["code"]


# -- events ----------------------------------------------------------------------------------------


async def test_the_life_of_a_job(live: LiveServer, queue: Queue, token: str) -> None:
    async with socket(live.base_url, token=token) as reader:
        job = await queue.enqueue("mail", {"to": "ann"})
        (enqueued,) = await reader.take(1)
        assert enqueued.data.keys() == {"event", "at", "job"}
        assert enqueued.data["job"].keys() == JSON_NAMES
        assert isinstance(enqueued.id, int)
        await Hands(queue).do(job, {"sent": 1})
        started, completed = await reader.take(2)
        assert (started.name, started.data["job"]["status"]) == ("job:started", "processing")
        assert (completed.name, completed.data["job"]["result"]) == ("job:completed", {"sent": 1})
        await queue.delete(job.id, force=True)
        (deleted,) = await reader.take(1)
        assert deleted.data == {"event": "job:deleted", "at": deleted.data["at"], "deletedJobId": job.id}


async def test_the_events_and_ids_are_those_of_the_other_streams(live: LiveServer, queue: Queue, token: str) -> None:
    async with (
        calling(live.base_url, token) as client,
        reading(client, STREAM) as other,
        socket(live.base_url, token=token) as reader,
    ):
        job = await queue.enqueue("mail", {"text": "ü\n" + "x" * 100})
        await queue.cancel(job.id)
        assert await reader.take(2) == await other.take(2)


async def test_a_selection_and_a_snapshot(live: LiveServer, queue: Queue, token: str) -> None:
    one, other, two = [await queue.enqueue("mail") for _ in range(3)]
    query = f"?id={one.id}&id={two.id}&topic=mail&fields=status&snapshot=true"
    async with socket(live.base_url, query, token) as reader:
        (snapshot,) = await reader.take(1)
        assert snapshot.name == "snapshot"
        assert snapshot.id
        found = sorted(snapshot.data["jobs"], key=lambda job: str(job["id"]))
        assert found == [{"id": one.id, "status": "pending"}, {"id": two.id, "status": "pending"}]
        for job in (other, two):
            await queue.cancel(job.id)
        (cancelled,) = await reader.take(1)
        assert cancelled.data["job"] == {"id": two.id, "status": "cancelled"}


async def test_a_client_that_comes_back_misses_nothing(live: LiveServer, queue: Queue, token: str) -> None:
    async with socket(live.base_url, token=token) as reader:
        await queue.enqueue_many("mail", [{}] * 3)
        first, *_ = await reader.take(2)
    jobs = [(await queue.enqueue("mail")).id for _ in range(2)]
    async with socket(live.base_url, f"?after={first.id}", token) as reader:
        told = await reader.take(4)
    assert [event.job_id for event in told[2:]] == jobs
    async with (
        calling(live.base_url, token) as client,
        reading(client, STREAM, **{"Last-Event-ID": str(first.id)}) as sse,
    ):
        assert await sse.take(4) == told


@pytest.mark.parametrize("after", ["0", "abc", "99999999999999999999999", "-1"])
async def test_an_unknown_id_gets_a_resync_and_a_snapshot(
    live: LiveServer, queue: Queue, token: str, after: str
) -> None:
    job = await queue.enqueue("mail")
    async with socket(live.base_url, f"?after={after}", token) as reader:
        resync, snapshot = await reader.take(2)
        assert (resync.name, set(resync.data)) == ("resync", {"event", "at"})
        assert [one["id"] for one in snapshot.data["jobs"]] == [job.id]


async def test_pings_both_ways(live: LiveServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with socket(live.base_url, token=token) as reader:
        await reader.connection.send('{"event": "ping"}')
        pong = await reader.next()
        assert (pong.name, set(pong.data)) == ("pong", {"event", "at"})
        await (await reader.connection.ping())
    monkeypatch.setattr(websocket, "PING_S", 0.05)
    async with socket(live.base_url, token=token) as reader:
        for _ in range(2):
            ping = await reader.next()
            assert (ping.name, set(ping.data), ping.id) == ("ping", {"event", "at"}, None)


@pytest.mark.parametrize("said", ["", "x", "[]", "null", '{"event": "job:completed"}', '{"event": 5}'])
async def test_what_a_client_says_otherwise_is_ignored(live: LiveServer, queue: Queue, token: str, said: str) -> None:
    async with socket(live.base_url, token=token) as reader:
        await reader.connection.send(said)
        job = await queue.enqueue("mail")
        (enqueued,) = await reader.take(1)
        assert enqueued.job_id == job.id


@pytest.mark.parametrize("said", ["x" * 5000, b"bytes", "x" * 100_000], ids=["long", "bytes", "huge"])
async def test_a_client_that_says_too_much_is_disconnected(live: LiveServer, token: str, said: str | bytes) -> None:
    async with socket(live.base_url, token=token) as reader:
        with contextlib.suppress(Exception):
            await reader.connection.send(said)
        code, _ = await reader.closed()
        assert code in (1008, 1009)
    await until(lambda: not live.feed._listeners)


# -- who may ---------------------------------------------------------------------------------------


async def test_without_signing_in(live: LiveServer, queue: Queue, token: str) -> None:
    assert await refused(live.base_url) == (401, "unauthorized")
    assert await refused(live.base_url, token="bad") == (401, "invalid_token")
    async with calling(live.base_url, token) as client:
        await client.patch("/api/settings", json={"jobs": {"manage_rule": "createdBy = @request.auth.id"}})
        assert await refused(live.base_url) == (401, "unauthorized")
        await client.patch("/api/settings", json={"jobs": {"manage_rule": "true"}})
        async with socket(live.base_url, headers={"Origin": "http://elsewhere.example"}) as reader:
            await queue.enqueue("mail")
            assert len(await reader.take(1)) == 1
        await client.patch("/api/settings", json={"jobs": {"http_enabled": False}})
    assert await refused(live.base_url, token=token) == (403, "http_disabled")


async def test_a_token_is_proof_from_any_origin(live: LiveServer, queue: Queue, token: str) -> None:
    elsewhere = {"Origin": "http://elsewhere.example"}
    async with socket(live.base_url, token=f"Bearer {token}", headers=elsewhere) as reader:
        await queue.enqueue("mail")
        assert len(await reader.take(1)) == 1
    async with socket(live.base_url, headers=elsewhere, subprotocols=["treadle", f"bearer.{token}"]) as reader:
        assert reader.connection.subprotocol == "treadle"
        await queue.enqueue("mail")
        assert len(await reader.take(1)) == 1
    assert await refused(live.base_url, subprotocols=["treadle", "bearer.bad"]) == (401, "invalid_token")
    assert await refused(live.base_url, subprotocols=["treadle"]) == (401, "unauthorized")


async def test_a_cookie_counts_on_our_own_pages_only(live: LiveServer, queue: Queue, token: str) -> None:
    cookie = {"Cookie": f"{COOKIE}={token}"}
    async with socket(live.base_url, headers={**cookie, "Origin": live.base_url}) as reader:
        await queue.enqueue("mail")
        assert len(await reader.take(1)) == 1
    for origin in (
        "http://evil.example",
        "null",
        live.base_url.replace("http", "https"),
        f"{live.base_url}.evil.example",
    ):
        assert await refused(live.base_url, headers={**cookie, "Origin": origin}) == (403, "cross_origin")


async def test_everybody_hears_of_their_own_jobs_only(live: LiveServer, queue: Queue, token: str) -> None:
    async with calling(live.base_url, token) as client:
        _, tokens, ids = await users(queue, client, "createdBy = @request.auth.id")
    await queue.enqueue("mail", created_by=ids["bob"])
    old = await queue.enqueue("mail", created_by=ids["ann"])
    async with socket(live.base_url, "?snapshot=true", tokens["ann"]) as reader:
        (snapshot,) = await reader.take(1)
        assert [job["id"] for job in snapshot.data["jobs"]] == [old.id]
        theirs = await queue.enqueue("mail", created_by=ids["bob"])
        mine = await queue.enqueue("mail", created_by=ids["ann"])
        await queue.delete(theirs.id)
        await queue.cancel(mine.id)
        assert [event.job_id for event in await reader.take(2)] == [mine.id, mine.id]


@pytest.mark.parametrize("how", ["password", "key", "rule"])
async def test_who_loses_access_loses_the_stream(
    live: LiveServer, queue: Queue, token: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.1)
    async with calling(live.base_url, token) as client:
        accounts, tokens, ids = await users(queue, client, "@request.auth.id != ''")
        key, text = await accounts.api_keys.create("reader", ["manage"])
        mine = text if how == "key" else tokens["ann"]
        async with socket(live.base_url, token=mine) as reader:
            await queue.enqueue("mail")
            await reader.take(1)
            if how == "password":
                await accounts.update_user(ids["ann"], password="another horse")
            elif how == "key":
                await accounts.api_keys.revoke(key.id)
            else:
                await client.patch("/api/settings", json={"jobs": {"manage_rule": ""}})
            assert await reader.closed() == (1008, "access has ended")


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?" + "&".join(f"id=0190aaaa-0000-7000-8000-{n:012}" for n in range(500)), "invalid_input"),
        ("?fields=nothing", "invalid_input"),
        ("?topic=No", "invalid_input"),
        ("?snapshot=perhaps", "invalid_input"),
        ("?since=1", "unknown_parameter"),
        ("?after=1&after=2", "repeated_parameter"),
        (f"?id={'x' * 300}", "invalid_input"),
        (f"?topic={'x' * 30_000}", "invalid_input"),
    ],
)
async def test_a_bad_handshake(live: LiveServer, token: str, query: str, code: str) -> None:
    assert await refused(live.base_url, query, token) == (400, code)


@pytest.mark.parametrize(
    "headers", [{"X-Long": "x" * 20_000}, {f"X-{n}": "x" for n in range(150)}], ids=["long", "many"]
)
async def test_headers_that_the_parser_would_not_read(live: LiveServer, token: str, headers: dict[str, str]) -> None:
    status, code = await refused(live.base_url, token=token, headers=headers)
    assert (status, code) in ((400, "invalid_input"), (431, "headers_too_large"))


async def test_a_hundred_ids_fit(live: LiveServer, queue: Queue, token: str) -> None:
    jobs = await queue.enqueue_many("mail", [{}] * 100)
    query = "?snapshot=true&" + "&".join(f"id={job.id}" for job in jobs)
    async with socket(live.base_url, query, token) as reader:
        (snapshot,) = await reader.take(1)
        assert len(snapshot.data["jobs"]) == 100


async def test_another_path_has_no_websocket(live: LiveServer, token: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with socket(live.base_url, "x", token):
            pass
    assert caught.value.response.status_code in (403, 404)


# -- limits ----------------------------------------------------------------------------------------


async def test_they_count_among_the_streams_of_a_caller(sqlite_queue: Queue) -> None:
    token = await superuser_token(sqlite_queue)
    async with LiveServer(sqlite_queue.url, streams_per_caller=2) as live, calling(live.base_url, token) as client:
        async with socket(live.base_url, token=token), reading(client, STREAM):
            assert await refused(live.base_url, token=token) == (429, "too_many_streams")
        await until(lambda: not live.feed._listeners)
        async with socket(live.base_url, token=token):
            pass


async def test_they_count_among_the_connections_until_they_end(sqlite_queue: Queue) -> None:
    token = await superuser_token(sqlite_queue)
    limits = Limits(connections=3, per_address=3)
    async with LiveServer(sqlite_queue.url, limits) as live:
        for _ in range(4):
            async with contextlib.AsyncExitStack() as opened:
                for _ in range(3):
                    await opened.enter_async_context(socket(live.base_url, token=token))
                with pytest.raises(InvalidStatus, match="503"):
                    await opened.enter_async_context(socket(live.base_url, token=token))
            await until(lambda: not live.feed._listeners)

            async def free() -> bool:
                try:
                    async with httpx.AsyncClient(base_url=live.base_url) as client:
                        return (await client.get("/api/health")).status_code == 200
                except httpx.HTTPError:
                    return False

            await until(free)


async def test_a_slow_client_is_told_to_look_again(live: LiveServer, queue: Queue, token: str) -> None:
    live.feed._ring = Ring(most=50)
    text = "x" * 15_000  # about as much as an event can carry, so that many fill the buffers
    async with socket(live.base_url, token=token) as quick, socket(live.base_url, token=token, max_queue=1) as slow:
        ids: list[str] = []
        for _ in range(30):
            ids += [job.id for job in await queue.enqueue_many("mail", [{"text": text}] * 30)]
            await quick.take(30)
        heard = []
        while (event := (await slow.take(1))[0]).name != "resync":
            heard.append(event.job_id)
        assert heard == ids[: len(heard)]
        assert len(heard) < len(ids)
        (snapshot,) = await slow.take(1)
        assert snapshot.name == "snapshot"
        after = await queue.enqueue("mail")
        assert [one.job_id for one in await slow.take(1)] == [after.id]


async def test_a_client_that_vanishes_leaves_nothing_behind(live: LiveServer, queue: Queue, token: str) -> None:
    for _ in range(3):
        async with socket(live.base_url, token=token) as reader:
            await queue.enqueue("mail")
            await reader.take(1)
            reader.connection.transport.abort()
    await until(lambda: not live.feed._listeners)
    assert not live.in_loop(live.app.state.servers.get()).streams._total


async def test_a_server_that_stops_closes_them(live: LiveServer, queue: Queue, token: str) -> None:
    async with socket(live.base_url, token=token) as reader:
        await queue.enqueue("mail")
        await reader.take(1)
        await asyncio.to_thread(lambda: live.in_loop(live.feed.stop()))
        assert (await reader.closed())[0] == 1012


def test_the_path_is_the_documented_one() -> None:
    assert SOCKET == "/api/jobs/ws"
