"""`queue.stream()`: the events of every job, in process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.queue.hands import Hands, eventually
from treadle import InvalidInput, JobNotFound, Queue


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


class Collected:
    """What a stream has sent so far; ends when the queue is closed."""

    def __init__(self, queue: Queue, **wanted: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.task = asyncio.create_task(self._collect(queue.stream(**wanted)))

    async def _collect(self, stream: AsyncIterator[dict[str, Any]]) -> None:
        async for event in stream:
            self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event["event"].removeprefix("job:") for event in self.events]

    async def told(self, *names: str) -> None:
        await eventually(lambda: self.names == list(names))


async def listening(queue: Queue, **wanted: Any) -> Collected:
    before = queue.feed._listeners
    collected = Collected(queue, **wanted)
    await eventually(lambda: queue.feed._listeners > before and queue.feed._follower is not None)
    return collected


async def test_every_event_until_the_queue_is_closed(queue: Queue) -> None:
    collected = await listening(queue)
    job = await queue.enqueue("mail", {"to": "ann"})
    await Hands(queue).do(job, 1)
    await collected.told("enqueued", "started", "completed")
    last = collected.events[-1]
    assert last.keys() == {"event", "at", "job"}
    assert (last["job"]["id"], last["job"]["result"]) == (job.id, 1)
    await queue.close()
    await collected.task


async def test_of_a_topic_and_of_a_job(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    of_topic, of_job = await listening(queue, topic="mail"), await listening(queue, job_id=job.id)
    await queue.enqueue("other")
    await queue.cancel(job.id)
    await of_job.told("cancelled")
    await of_topic.told("cancelled")
    await queue.enqueue("mail")
    await of_topic.told("cancelled", "enqueued")
    assert of_job.names == ["cancelled"]


async def test_who_stops_listening_leaves(queue: Queue) -> None:
    async with contextlib.aclosing(queue.stream()) as events:
        first = asyncio.create_task(anext(events))
        await eventually(lambda: queue.feed._follower is not None)
        job = await queue.enqueue("mail")
        event = await first
        event["job"]["payload"]["mine"] = True
    assert event["job"]["id"] == job.id
    assert queue.feed._listeners == 0
    assert (await queue.get(job.id)).payload == {}


# -- snapshots -----------------------------------------------------------------------------------------------------


async def test_a_snapshot_comes_first_and_nothing_after_it_is_missed(queue: Queue) -> None:
    """While others enqueue as fast as they can: each job is in the snapshot or told after it, none twice."""
    made: list[str] = []

    async def enqueue() -> None:
        for n in range(60):
            made.append((await queue.enqueue("mail", {"n": n})).id)

    await queue.enqueue("other")
    enqueuing = asyncio.create_task(enqueue())
    await eventually(lambda: len(made) > 5)
    seen: list[str] = []
    async with contextlib.aclosing(queue.stream(topic="mail", snapshot=True)) as events:
        first = await anext(events)
        assert first["event"] == "snapshot"
        seen += [job["id"] for job in first["jobs"]]
        while len(seen) < 60:
            event = await anext(events)
            assert event["event"] == "job:enqueued"
            seen.append(event["job"]["id"])
    await enqueuing
    assert sorted(seen) == sorted(made)


async def test_after_a_resync_there_is_a_snapshot(queue: Queue) -> None:
    async with contextlib.aclosing(queue.stream(snapshot=True)) as events:
        assert await anext(events) == {"event": "snapshot", "jobs": []}
        queue.feed._forget()
        job = await queue.enqueue("mail")
        assert (await anext(events))["event"] == "resync"
        assert [one["id"] for one in (await anext(events))["jobs"]] == [job.id]


async def test_a_job_is_watched_from_now_until_it_has_ended(queue: Queue) -> None:
    job = await queue.enqueue("mail", {"n": 1})
    statuses: list[str] = []

    async def watch() -> None:
        async for one in job.watch():
            assert (one.id, one.payload, one.queue) == (job.id, {"n": 1}, queue)
            statuses.append(one.status)

    watching = asyncio.create_task(watch())
    await eventually(lambda: statuses == ["pending"])
    await Hands(queue).do(job, 5)
    await watching
    assert statuses == ["pending", "processing", "completed"]
    assert [one.result_value async for one in job.watch()] == [5]
    assert queue.feed._listeners == 0


@pytest.mark.every_store
async def test_a_stream_leaves_out_large_payloads_and_a_watch_does_not(queue: Queue) -> None:
    large = {"text": "x" * 20_000}
    async with contextlib.aclosing(queue.stream()) as events:
        first = asyncio.ensure_future(anext(events))
        await eventually(lambda: queue.feed._listeners == 1)
        job = await queue.enqueue("mail", large)
        event = await first
        assert (event["job"]["payload"], event["truncated"]) == (None, True)
    states = job.watch()
    assert (await anext(states)).payload == large
    await Hands(queue).do(job, large)
    rest = [one async for one in states]
    assert [(one.status, one.payload) for one in rest] == [("processing", large), ("completed", large)]
    assert rest[-1].result_value == large


async def test_a_watch_ends_with_a_deleted_job(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    states = job.watch()
    assert (await anext(states)).status == "pending"
    await job.delete()
    with pytest.raises(StopAsyncIteration):
        await anext(states)
    with pytest.raises(JobNotFound):
        await anext(job.watch())


# -- as bytes --------------------------------------------------------------------------------------------------------


def parsed(text: bytes) -> tuple[str, Any, bool]:
    """The event's name, its data, and whether it has an id."""
    fields = dict(line.split(": ", 1) for line in text.decode().removesuffix("\r\n\r\n").split("\r\n"))
    return fields["event"], json.loads(fields["data"]), "id" in fields


async def test_the_bytes_of_server_sent_events(queue: Queue) -> None:
    job = await queue.enqueue("mail", {"text": "a\nb"})
    stream = queue.stream(format="sse", snapshot=True)
    name, data, has_id = parsed(await anext(stream))
    assert (name, [one["id"] for one in data["jobs"]], has_id) == ("snapshot", [job.id], True)
    await queue.cancel(job.id)
    name, data, has_id = parsed(await anext(stream))
    assert (name, data["event"], data["job"]["payload"], has_id) == (
        "job:cancelled",
        "job:cancelled",
        {"text": "a\nb"},
        True,
    )
    await stream.aclose()


async def test_silence_is_filled_with_pings(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.events.streams.PING_S", 0.01)
    stream = queue.stream(format="sse")
    name, data, has_id = parsed(await anext(stream))
    assert (name, list(data), has_id) == ("ping", ["at"], False)
    await stream.aclose()


async def test_a_reader_of_bytes_that_missed_events_gets_a_resync_and_a_snapshot(queue: Queue) -> None:
    stream = queue.stream(format="sse", snapshot=True)
    assert parsed(await anext(stream))[0] == "snapshot"
    queue.feed._forget()
    await queue.enqueue("mail")
    assert [parsed(await anext(stream))[0] for _ in range(2)] == ["resync", "snapshot"]
    await stream.aclose()


async def test_another_format_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="format: 'xml' is not sse"):
        await anext(queue.stream(format=cast(Any, "xml")))
