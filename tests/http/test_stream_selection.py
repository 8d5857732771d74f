"""Streams about some jobs only: by id, by topic, and with some of their fields."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.http.live import LiveServer, reading
from tests.http.test_streams import STREAM, calling, superuser_token
from tests.queue.hands import Hands
from treadle import Queue
from treadle.model.fields import JSON_NAMES


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
async def client(queue: Queue) -> AsyncIterator[httpx.AsyncClient]:
    async with LiveServer(queue.url) as server, calling(server.base_url, await superuser_token(queue)) as client:
        yield client


def of(*ids: str) -> str:
    return STREAM + "?" + "&".join(f"id={id}" for id in ids)


async def test_one_connection_tells_of_many_jobs(client: httpx.AsyncClient, queue: Queue) -> None:
    one, other, two = await queue.enqueue_many("mail", [{"n": n} for n in range(3)])
    async with reading(client, of(one.id, two.id)) as reader:
        for job in (one, other, two):
            await queue.cancel(job.id)
        told = await reader.take(2)
        assert [(event.name, event.job_id) for event in told] == [("job:cancelled", one.id), ("job:cancelled", two.id)]
        await queue.delete(other.id)
        await queue.delete(two.id)
        (deleted,) = await reader.take(1)
        assert deleted.data["deletedJobId"] == two.id


async def test_a_snapshot_holds_only_these_jobs(client: httpx.AsyncClient, queue: Queue) -> None:
    one, _, two = await queue.enqueue_many("mail", [{"n": n} for n in range(3)])
    async with reading(client, of(one.id, two.id, "nothing", one.id) + "&snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert sorted(job["id"] for job in snapshot.data["jobs"]) == sorted((one.id, two.id))
        assert "truncated" not in snapshot.data


async def test_a_topic(client: httpx.AsyncClient, queue: Queue) -> None:
    old = await queue.enqueue("mail.digest")
    await queue.enqueue("mail")
    async with reading(client, f"{STREAM}?topic=mail.digest&snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert [job["id"] for job in snapshot.data["jobs"]] == [old.id]
        await queue.enqueue("mail")
        new = await queue.enqueue("mail.digest")
        (enqueued,) = await reader.take(1)
        assert enqueued.job_id == new.id


async def test_id_and_topic_narrow_together(client: httpx.AsyncClient, queue: Queue) -> None:
    mail, digest = await queue.enqueue("mail"), await queue.enqueue("mail.digest")
    async with reading(client, of(mail.id, digest.id) + "&topic=mail&snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert [job["id"] for job in snapshot.data["jobs"]] == [mail.id]
        await queue.cancel(digest.id)
        await queue.cancel(mail.id)
        (cancelled,) = await reader.take(1)
        assert cancelled.job_id == mail.id


async def test_resuming_keeps_the_selection(client: httpx.AsyncClient, queue: Queue) -> None:
    one, other = await queue.enqueue("mail"), await queue.enqueue("mail")
    async with reading(client, of(one.id)) as reader:
        await queue.cancel(one.id)
        (last,) = await reader.take(1)
    await queue.cancel(other.id)
    await queue.requeue(one.id)
    async with reading(client, of(one.id), **{"Last-Event-ID": str(last.id)}) as reader:
        (requeued,) = await reader.take(1)
        assert (requeued.name, requeued.job_id) == ("job:requeued", one.id)


async def test_another_users_job_is_not_told_of(client: httpx.AsyncClient, queue: Queue) -> None:
    await client.patch("/api/settings", json={"jobs": {"manage_rule": "payload.owner = 'ann'"}})
    anns, bobs = await queue.enqueue_many("mail", [{"owner": "ann"}, {"owner": "bob"}])
    async with (
        calling(str(client.base_url)) as anybody,
        reading(anybody, of(anns.id, bobs.id) + "&snapshot=1") as reader,
    ):
        (snapshot,) = await reader.take(1)
        assert [job["id"] for job in snapshot.data["jobs"]] == [anns.id]
        await queue.cancel(bobs.id)
        await queue.cancel(anns.id)
        (cancelled,) = await reader.take(1)
        assert cancelled.job_id == anns.id


async def test_fields_leave_the_rest_out(client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail", {"text": "x" * 20_000})
    async with reading(client, f"{STREAM}?fields=status, progress&snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert snapshot.data["jobs"] == [{"id": job.id, "status": "pending", "progress": 0}]
        await Hands(queue).do(job, {"sent": 1})
        _, completed = await reader.take(2)
        assert completed.data["job"] == {"id": job.id, "status": "completed", "progress": 100}
        assert completed.data.keys() == {"event", "at", "job"}, "nothing that was asked for was left out"
    async with reading(client, f"{STREAM}?fields=payload") as reader:
        await queue.requeue(job.id, force=True)
        (requeued,) = await reader.take(1)
        assert requeued.data["truncated"] is True
        assert requeued.data["job"] == {"id": job.id, "payload": None, "truncated": True}


async def test_the_stream_of_one_job_takes_fields_too(client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    async with reading(client, f"/api/jobs/{job.id}/stream?fields=status&snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert snapshot.data["jobs"] == [{"id": job.id, "status": "pending"}]
        await queue.cancel(job.id)
        (cancelled,) = await reader.rest()
        assert cancelled.data["job"] == {"id": job.id, "status": "cancelled"}


async def test_a_hundred_ids_are_the_most(client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    others = [f"01890000-0000-7000-8000-{number:012}" for number in range(100)]
    async with reading(client, of(job.id, *others[:99]) + "&snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert [one["id"] for one in snapshot.data["jobs"]] == [job.id]
    refused = await client.get(of(job.id, *others))
    assert (refused.status_code, refused.json()["code"], list(refused.json()["data"])) == (400, "invalid_input", ["id"])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("fields=nothing", "invalid_input"),
        ("fields=id&fields=status", "repeated_parameter"),
        ("topic=a&topic=b", "repeated_parameter"),
        ("topic=No", "invalid_input"),
        (f"id={'x' * 300}", "invalid_input"),
    ],
)
async def test_what_is_no_selection(client: httpx.AsyncClient, query: str, code: str) -> None:
    refused = await client.get(f"{STREAM}?{query}")
    assert (refused.status_code, refused.json()["code"]) == (400, code)


async def test_without_fields_a_job_has_all_of_them(client: httpx.AsyncClient, queue: Queue) -> None:
    async with reading(client, f"{STREAM}?topic=mail") as reader:
        await queue.enqueue("mail")
        (enqueued,) = await reader.take(1)
        assert enqueued.data["job"].keys() == JSON_NAMES
