"""Track tokens: whoever has one follows one job, without an account."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.http.live import LiveServer, reading
from tests.http.sockets import socket
from tests.http.test_output import Writer, told
from tests.http.test_streams import calling, superuser_token
from tests.waiting import until
from treadle import InvalidInput, JobRequest, Queue
from treadle.http.streams import following
from treadle.model import tracking

UNKNOWN = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
async def live(queue: Queue) -> AsyncIterator[LiveServer]:
    async with LiveServer(queue.url) as server:
        yield server


@pytest.fixture
async def owner(live: LiveServer, queue: Queue) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(live.base_url, await superuser_token(queue)) as client:
        yield client


@pytest.fixture
async def visitor(live: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    """Without an account."""
    async with calling(live.base_url) as client:
        yield client


async def tracked(owner: httpx.AsyncClient, **body: Any) -> tuple[str, str]:
    """The id and the track token of a new job."""
    answer = await owner.post("/api/jobs/enqueue", json={"topic": "mail", "track": True, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"], answer.json()["trackToken"]


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# -- what it is ------------------------------------------------------------------------------------


async def test_an_enqueue_answers_it_once_and_the_hash_is_stored(owner: httpx.AsyncClient, queue: Queue) -> None:
    id, token = await tracked(owner)
    assert tracking.is_token(token)
    assert len(token) == len("trk_") + 32, "192 bits"
    (job,) = await queue.store.get([id])
    assert job
    assert job.track_hash == tracking.hash_of(token)
    read = await owner.get(f"/api/jobs/{id}")
    assert token not in read.text
    assert job.track_hash not in read.text
    plain = await owner.post("/api/jobs/enqueue", json={"topic": "mail", "track": False})
    assert "trackToken" not in plain.json()


async def test_each_job_of_many_has_its_own(owner: httpx.AsyncClient) -> None:
    jobs = [{"topic": "mail", "track": True}, {"topic": "mail"}, {"topic": "mail", "track": True}]
    items = (await owner.post("/api/jobs/enqueue-many", json={"jobs": jobs})).json()["items"]
    assert [("trackToken" in item) for item in items] == [True, False, True]
    assert items[0]["trackToken"] != items[2]["trackToken"]
    answer = await owner.post("/api/jobs/mail/dispatch", json={"args": {}, "track": True})
    assert tracking.is_token(answer.json()["trackToken"])


async def test_an_existing_job_has_no_new_token(owner: httpx.AsyncClient) -> None:
    id, token = await tracked(owner, idempotencyKey="k")
    again = (await owner.post("/api/jobs/enqueue", json={"topic": "mail", "track": True, "idempotencyKey": "k"})).json()
    assert (again["id"], again["deduplicated"], again["trackToken"]) == (id, True, None)
    assert tracking.is_token(token)


@pytest.mark.parametrize("track", ["yes", 1, {}])
async def test_what_is_neither_true_nor_false(owner: httpx.AsyncClient, queue: Queue, track: Any) -> None:
    answer = await owner.post("/api/jobs/enqueue", json={"topic": "mail", "track": track})
    assert (answer.status_code, list(answer.json()["data"])) == (400, ["track"])
    with pytest.raises(InvalidInput, match="track"):
        await queue.enqueue("mail", track=track)


async def test_in_python(queue: Queue, visitor: httpx.AsyncClient) -> None:
    job = await queue.enqueue("mail", track=True)
    assert job.track_token
    assert (await visitor.get(f"/api/jobs/{job.id}", headers=bearing(job.track_token))).status_code == 200
    (other,) = await queue.enqueue_many("mail", [{}], track=True)
    assert other.track_token not in (None, job.track_token)
    (third,) = await queue.enqueue_many([JobRequest("mail", {}, {"track": True})])
    assert third.track_token
    assert (await queue.enqueue("mail")).track_token is None
    token = job.track_token
    assert (await job.refresh()).track_token is None
    assert job.track_token == token, "this object still knows it"
    assert token not in repr(job)


# -- what it opens ---------------------------------------------------------------------------------


async def test_it_reads_its_job(owner: httpx.AsyncClient, visitor: httpx.AsyncClient) -> None:
    id, token = await tracked(owner, payload={"to": "ann"})
    for sent in (f"Bearer {token}", token):
        answer = await visitor.get(f"/api/jobs/{id}", headers={"Authorization": sent})
        assert (answer.status_code, answer.json()["payload"]) == (200, {"to": "ann"})
    assert (await visitor.get(f"/api/jobs/{id}")).status_code == 401


async def test_it_follows_its_job(
    live: LiveServer, owner: httpx.AsyncClient, visitor: httpx.AsyncClient, queue: Queue
) -> None:
    id, token = await tracked(owner)
    other = await queue.enqueue("other")
    async with (
        reading(visitor, f"/api/jobs/{id}/stream?track={token}&snapshot=true") as one,
        reading(visitor, f"/api/jobs/{id}/stream", **bearing(token)) as two,
        reading(visitor, f"/api/jobs/stream?id={id}&track={token}") as three,
        socket(live.base_url, f"?id={id}&track={token}") as four,
        socket(live.base_url, f"?id={id}", subprotocols=["treadle", f"bearer.{token}"]) as five,
    ):
        await queue.cancel(other.id)
        assert [job["id"] for job in (await one.take(1))[0].data["jobs"]] == [id]
        await queue.cancel(id)
        for reader in (one, two, three, four, five):
            (cancelled,) = await reader.take(1)
            assert (cancelled.name, cancelled.job_id) == ("job:cancelled", id)


async def test_it_reads_what_its_job_emits(owner: httpx.AsyncClient, visitor: httpx.AsyncClient, queue: Queue) -> None:
    id, token = await tracked(owner)
    await (await Writer.claimed(owner)).write("a")
    for headers, query in ((bearing(token), ""), ({}, f"?track={token}")):
        accept = {"Accept": "application/json", **headers}
        page = await visitor.get(f"/api/jobs/{id}/output/tokens{query}", headers=accept)
        assert [item["value"] for item in page.json()["items"]] == ["a"]
        async with reading(visitor, f"/api/jobs/{id}/output/tokens{query}", **headers) as reader:
            (value,) = await reader.take(1)
            assert told([value]) == [("value", "a")]
    channels = await visitor.get(f"/api/jobs/{id}/output", headers=bearing(token))
    assert [one["channel"] for one in channels.json()["items"]] == ["tokens"]


async def test_another_job_looks_like_an_unknown_one(
    live: LiveServer, owner: httpx.AsyncClient, visitor: httpx.AsyncClient, queue: Queue
) -> None:
    _, token = await tracked(owner)
    others = [(await tracked(owner))[0], (await queue.enqueue("mail")).id]
    unknown = await visitor.get(f"/api/jobs/{UNKNOWN}", headers=bearing(token))
    assert unknown.status_code == 404
    for id in (*others, "nonsense"):
        for path in ("", "/stream", "/output", "/output/tokens"):
            answer = await visitor.get(f"/api/jobs/{id}{path}", headers=bearing(token))
            assert (answer.status_code, answer.content) == (404, unknown.content)
        for path in (f"/api/jobs/{id}/stream?track={token}", f"/api/jobs/stream?id={id}&track={token}"):
            answer = await visitor.get(path)
            assert (answer.status_code, answer.content) == (404, unknown.content)
        with pytest.raises(InvalidStatus) as caught:
            async with socket(live.base_url, f"?id={id}&track={token}"):
                pass
        assert (caught.value.response.status_code, caught.value.response.body) == (404, unknown.content)


async def test_it_opens_nothing_else(owner: httpx.AsyncClient, visitor: httpx.AsyncClient) -> None:
    id, token = await tracked(owner)
    one = f"/api/jobs/{id}"
    calls = [
        ("POST", f"{one}/cancel"),
        ("POST", f"{one}/requeue"),
        ("POST", f"{one}/release"),
        ("DELETE", one),
        ("PATCH", one),
        ("GET", f"{one}/events"),
        ("GET", f"{one}/why"),
        ("GET", "/api/jobs"),
        ("GET", "/api/jobs/stats"),
        ("GET", "/api/topics"),
        ("GET", "/api/settings"),
        ("POST", "/api/jobs/enqueue"),
        ("POST", "/api/workers/claim"),
    ]
    for method, path in calls:
        answer = await visitor.request(method, path, headers=bearing(token), json={} if method != "GET" else None)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token"), (method, path)
    streams = await visitor.get("/api/jobs/stream", headers=bearing(token))
    assert (streams.status_code, list(streams.json()["data"])) == (400, ["track"])
    asked = await visitor.get(f"{one}/why?track={token}")
    assert asked.status_code == 401


@pytest.mark.parametrize("token", ["trk_", "trk_short", "trk_" + "x" * 31 + "!", "trk_" + "x" * 33, "trk_" + "é" * 32])
async def test_what_is_no_token(owner: httpx.AsyncClient, visitor: httpx.AsyncClient, token: str) -> None:
    id, _ = await tracked(owner)
    answer = await visitor.get(f"/api/jobs/{id}/stream", params={"track": token})
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")
    answer = await visitor.get(f"/api/jobs/{id}", headers=[(b"Authorization", f"Bearer {token}".encode())])
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")
    guessed = await visitor.get(f"/api/jobs/{id}", headers=bearing("trk_" + "x" * 32))
    assert guessed.status_code == 404


async def test_it_ends_with_its_job(
    live: LiveServer,
    owner: httpx.AsyncClient,
    visitor: httpx.AsyncClient,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.1)
    id, token = await tracked(owner)
    async with (
        reading(visitor, f"/api/jobs/{id}/stream?track={token}") as reader,
        socket(live.base_url, f"?id={id}&track={token}") as other,
    ):
        await queue.delete(id)
        assert [event.name for event in await reader.rest()] == ["job:deleted"]
        assert [event.name for event in await other.take(1)] == ["job:deleted"]
        assert (await other.closed())[0] == 1008
    assert (await visitor.get(f"/api/jobs/{id}", headers=bearing(token))).status_code == 404


async def test_it_is_switched_off_with_the_api(
    owner: httpx.AsyncClient, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.1)
    id, token = await tracked(owner)
    async with reading(visitor, f"/api/jobs/{id}/stream?track={token}") as reader:
        await owner.patch("/api/settings", json={"jobs": {"http_enabled": False}})
        assert await reader.rest() == []

    async def off() -> bool:
        answer = await visitor.get(f"/api/jobs/{id}", headers=bearing(token))
        return (answer.status_code, answer.json()["code"]) == (403, "http_disabled")

    await until(off)


async def test_an_account_counts_more_than_a_track_token(
    owner: httpx.AsyncClient, visitor: httpx.AsyncClient, queue: Queue
) -> None:
    _, token = await tracked(owner)
    other = await queue.enqueue("mail")
    async with reading(owner, f"/api/jobs/{other.id}/stream?track={token}&snapshot=true") as reader:
        assert len(await reader.take(1)) == 1
