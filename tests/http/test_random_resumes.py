"""Clients that disconnect and come back at random, while jobs run: no gap, no double."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.fault.scale import scaled
from tests.http.live import Event, LiveServer, Reader, reading
from tests.http.sockets import SocketReader, socket
from tests.http.test_streams import STREAM, calling, rising, superuser_token
from tests.queue.hands import Hands
from treadle import Queue

TURNS = scaled(10, 1_000)
Reading = Callable[[str, int | None], AbstractAsyncContextManager[Reader | SocketReader]]


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


class Story:
    """What happens to the jobs, as those know who do it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._hands = Hands(queue)
        self.lines: list[tuple[str, str]] = []

    async def go_on(self, chance: random.Random) -> None:
        for job in await self._queue.enqueue_many("mail", [{}] * chance.randrange(1, 4)):
            self.lines.append((job.id, "enqueued"))
        for claimed in await self._hands.claim("mail", limit=chance.randrange(1, 4)):
            completes = chance.random() < 0.7
            await (self._hands.complete(claimed) if completes else self._hands.fail(claimed))
            self.lines += [(claimed.id, "started"), (claimed.id, "completed" if completes else "failed")]

    def by_job(self) -> dict[str, list[str]]:
        return _by_job(self.lines)


def _by_job(lines: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id, event in lines:
        found.setdefault(id, []).append(event)
    return found


async def heard_in_turns(story: Story, open_at: Reading, chance: random.Random) -> list[Event]:
    """The events of one client over many connections. The first begins with a snapshot of nothing, for its id."""
    heard: list[Event] = []
    last: int | None = None
    async with open_at("?snapshot=true", None) as reader:
        (snapshot,) = await reader.take(1)
        assert snapshot.data["jobs"] == []
        last = snapshot.id
    for _ in range(TURNS):
        await story.go_on(chance)
        async with open_at("", last) as reader:
            if chance.random() < 0.5:
                await story.go_on(chance)
            left = len(story.lines) - len(heard)
            heard += await reader.take(chance.randrange(1, left + 1))
            last = heard[-1].id
    async with open_at("", last) as reader:
        heard += await reader.take(len(story.lines) - len(heard))
    return heard


@pytest.mark.parametrize("by", ["sse", "websocket"])
async def test_a_client_that_comes_back_at_random_hears_each_event_once(queue: Queue, by: str) -> None:
    token = await superuser_token(queue)
    chance = random.Random(20261119)
    async with LiveServer(queue.url) as live, calling(live.base_url, token) as client:

        @contextlib.asynccontextmanager
        async def open_at(query: str, last: int | None) -> AsyncIterator[Any]:
            if by == "sse":
                headers = {} if last is None else {"Last-Event-ID": str(last)}
                async with reading(client, STREAM + query, **headers) as reader:
                    yield reader
            else:
                async with socket(live.base_url, query if last is None else f"?after={last}", token) as reader:
                    yield reader

        story = Story(queue)
        heard = await heard_in_turns(story, open_at, chance)
    assert rising(heard), "no event twice, none out of order"
    assert _by_job([(event.job_id, event.name.removeprefix("job:")) for event in heard]) == story.by_job()
