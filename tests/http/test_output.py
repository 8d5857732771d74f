"""The output of jobs over HTTP: streamed, resumed, read by pages, and written by external workers."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.http.api import Api, failure
from tests.http.live import LiveServer, reading
from tests.http.test_streams import calling, superuser_token
from treadle import Queue
from treadle.policy.output import Chunk
from treadle.store.values import OutputWrite

CLAIM = {"workerId": "rust-1", "topics": ["mail"]}


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


class Writer:
    """An external worker that has claimed a job of the topic "mail"."""

    def __init__(self, client: httpx.AsyncClient, job: dict[str, Any]) -> None:
        self._client = client
        self.id: str = job["id"]
        self._token = job["token"]

    @classmethod
    async def of(cls, client: httpx.AsyncClient, queue: Queue) -> "Writer":
        await queue.enqueue("mail")
        return await cls.claimed(client)

    @classmethod
    async def claimed(cls, client: httpx.AsyncClient) -> "Writer":
        claimed = await client.post("/api/workers/claim", json=CLAIM)
        return cls(client, claimed.json()["items"][0])

    async def say(self, verb: str, **body: Any) -> httpx.Response:
        return await self._client.post(f"/api/workers/jobs/{self.id}/{verb}", json={"token": self._token, **body})

    async def write(self, *values: Any, channel: str = "tokens") -> None:
        answer = await self.say("output", channel=channel, values=values)
        assert answer.status_code == 200, answer.text
        assert answer.json()["cancelRequested"] is False

    def path(self, channel: str = "tokens") -> str:
        return f"/api/jobs/{self.id}/output/{channel}"


def told(events: list[Any]) -> list[tuple[str, Any]]:
    return [(event.name, event.data) for event in events if event.name != "ping"]


async def test_values_come_while_the_job_runs_and_the_end_comes_last(client: httpx.AsyncClient, queue: Queue) -> None:
    writer = await Writer.of(client, queue)
    async with reading(client, writer.path()) as reader:
        await writer.write("Hello", {"a": [1]})
        first = await reader.take(2)
        assert [(event.name, event.id, event.data) for event in first] == [
            ("value", 1, "Hello"),
            ("value", 2, {"a": [1]}),
        ]
        await writer.write(None)
        (third,) = await reader.take(1)
        assert third.id == 3
        assert third.data is None
        await writer.say("complete", result=1)
        assert told(await reader.rest()) == [("end", {"status": "completed"})]


async def test_a_reader_resumes_after_its_last_value(client: httpx.AsyncClient, queue: Queue) -> None:
    writer = await Writer.of(client, queue)
    await writer.write(*range(1, 6))
    await writer.say("complete")
    async with reading(client, writer.path(), **{"Last-Event-ID": "3"}) as reader:
        assert told(await reader.rest()) == [("value", 4), ("value", 5), ("end", {"status": "completed"})]
    async with reading(client, writer.path() + "?after=4") as reader:
        assert told(await reader.rest()) == [("value", 5), ("end", {"status": "completed"})]
    async with reading(client, writer.path(), **{"Last-Event-ID": "no id of ours"}) as reader:
        assert len(told(await reader.rest())) == 6


async def test_a_new_attempt_resets(client: httpx.AsyncClient, queue: Queue) -> None:
    writer = await Writer.of(client, queue)
    await writer.write("a")
    await writer.say("release")
    again = await Writer.claimed(client)
    await again.write("b")
    await again.say("fail", error="no", fatal=True)
    await queue.requeue(writer.id)
    third = await Writer.claimed(client)
    await third.write("c")
    await third.say("complete")
    async with reading(client, writer.path()) as reader:
        assert told(await reader.rest()) == [
            ("value", "a"),
            ("value", "b"),  # the release gave the attempt back
            ("reset", {"attempt": 1}),
            ("value", "c"),
            ("end", {"status": "completed"}),
        ]


async def test_latest_brings_only_what_comes_next(client: httpx.AsyncClient, queue: Queue) -> None:
    writer = await Writer.of(client, queue)
    await writer.write("old")
    async with reading(client, writer.path() + "?from=latest") as reader:
        await writer.write("new")
        assert told(await reader.take(1)) == [("value", "new")]


async def test_pages_of_json(client: httpx.AsyncClient, queue: Queue) -> None:
    writer = await Writer.of(client, queue)
    json = {"Accept": "application/json"}
    assert (await client.get(writer.path(), headers=json)).json() == {
        "items": [],
        "next": 0,
        "more": False,
        "ended": False,
    }
    large = "x" * 200_000
    await writer.write("a", large)
    await writer.write(large, "b")
    await writer.write("c")
    await writer.say("complete")
    page = (await client.get(writer.path(), headers=json)).json()
    assert [(one["id"], one["attempt"], one["reset"]) for one in page["items"]] == [
        (number, 1, False) for number in (1, 2, 3, 4)
    ]
    assert (page["next"], page["more"], page["ended"]) == (4, True, True)
    page = (await client.get(f"{writer.path()}?after=4", headers=json)).json()
    assert [one["value"] for one in page["items"]] == ["c"]
    assert (page["next"], page["more"]) == (5, False)
    listed = (await client.get(f"/api/jobs/{writer.id}/output")).json()
    assert listed == {"items": [{"channel": "tokens", "values": 5, "bytes": 400_021}]}


async def test_a_closed_reader_cancels_nothing(client: httpx.AsyncClient, queue: Queue) -> None:
    writer = await Writer.of(client, queue)
    async with reading(client, writer.path()) as reader:
        await writer.write("a")
        await reader.take(1)
    await writer.write("b")
    assert (await writer.say("complete")).json()["status"] == "completed"


async def test_a_deleted_job_ends_its_stream(client: httpx.AsyncClient, queue: Queue) -> None:
    writer = await Writer.of(client, queue)
    await writer.write("a")
    async with reading(client, writer.path()) as reader:
        await reader.take(1)
        await writer.say("fail", error="no", fatal=True)
        assert (await reader.take(1))[0].data == {"status": "failed"}
    await queue.delete(writer.id)
    assert (await client.get(writer.path())).status_code == 404


async def test_bad_input(api: Api) -> None:
    await api.enqueue()
    (job,) = (await api.post("/api/workers/claim", CLAIM)).json()["items"]
    path = f"/api/workers/jobs/{job['id']}/output"
    token = job["token"]
    assert failure(await api.post(path, {"token": token, "channel": "../x", "values": [1]})) == (400, "invalid_input")
    assert failure(await api.post(path, {"token": token, "channel": "t", "values": []})) == (400, "invalid_input")
    assert failure(await api.post(path, {"token": token, "channel": "t", "values": ["\x00"]}))[0] == 400
    large = ["x" * 1_048_576]
    assert failure(await api.post(path, {"token": token, "channel": "t", "values": large}))[0] == 400
    assert (await api.get(f"/api/jobs/{job['id']}/output")).json() == {"items": []}
    assert failure(await api.get(f"/api/jobs/{job['id']}/output/t?after=-1"))[0] == 400
    assert failure(await api.get(f"/api/jobs/{job['id']}/output/t?after=x"))[0] == 400
    assert failure(await api.get(f"/api/jobs/{job['id']}/output/t?afer=1")) == (400, "unknown_parameter")
    assert failure(await api.get(f"/api/jobs/{job['id'][:-1]}0/output/t"))[0] == 404


async def test_a_channel_is_full(api: Api) -> None:
    """16 MiB."""
    await api.enqueue()
    (job,) = (await api.post("/api/workers/claim", CLAIM)).json()["items"]
    store = api.queue.store
    (held,) = await store.held_by([job["id"]])
    assert held
    for _ in range(16):
        chunk = Chunk("t", f'["{"x" * 1_048_000}"]', 1, 1)
        assert not await store.write_output(held.job.lease, [OutputWrite(held.job.n, held.job.token, 1, (chunk,))])
    body = {"token": job["token"], "channel": "t", "values": ["x" * 100_000]}
    refused = await api.post(f"/api/workers/jobs/{job['id']}/output", body)
    assert failure(refused) == (400, "invalid_input")
    assert "channel t is full" in refused.json()["message"]


async def test_only_who_may_see_the_job_reads_its_output(api: Api) -> None:
    await api.rules(enqueue_rule="true", manage_rule='createdBy = @request.auth.id && @request.auth.id != ""')
    mine = await api.enqueue(as_="ann")
    path = f"/api/jobs/{mine['id']}/output/tokens"
    json = {"Accept": "application/json"}
    assert (await api.get(path, as_="ann", headers=json)).status_code == 200
    foreign, unknown = (
        await api.get(path, as_="bob", headers=json),
        await api.get(f"/api/jobs/{'0' * 8}-0000-7000-8000-{'0' * 12}/output/tokens", as_="bob", headers=json),
    )
    assert (foreign.status_code, foreign.content) == (404, unknown.content)
    assert failure(await api.get(path, as_=None, headers=json))[0] in (401, 404)
