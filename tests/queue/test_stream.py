"""`queue.stream()`: the events of every job, in process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.queue.hands import Hands, eventually
from treadle import Queue


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


class Collected:
    """What a stream has told so far; ends when the queue is closed."""

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
