"""A real server on loopback, in a thread or in a separate process, and readers of its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import uvicorn

from tests.waiting import until
from treadle import Queue
from treadle.events.feed import Feed
from treadle.http import create_app
from treadle.http.connections import Limits, limited_protocol, websocket_options

PATIENCE_S = 60


class LiveServer:
    """In a thread: the test can reach into it."""

    def __init__(self, url: str, limits: Limits | None = None, **settings: Any) -> None:
        self.queue = Queue(url, **settings)
        self.app = create_app(self.queue)
        config = uvicorn.Config(
            self.app,
            port=0,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=5,
            http=limited_protocol(limits or Limits()),
            **websocket_options(),
        )
        self.server = uvicorn.Server(config)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="live-server")

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.server.serve()
        await self.queue.close()

    async def __aenter__(self) -> LiveServer:
        self._thread.start()
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: self.server.started or not self._thread.is_alive())
        assert self.server.started, "the server did not start"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.in_loop(self.feed.stop())
        self.server.should_exit = True
        await asyncio.to_thread(self._thread.join)

    @property
    def base_url(self) -> str:
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    @property
    def port(self) -> int:
        return int(self.base_url.rpartition(":")[2])

    @property
    def feed(self) -> Feed:
        feed: Feed = self.in_loop(self.app.state.servers.get()).feed
        return feed

    def in_loop(self, work: Any) -> Any:
        assert self.loop
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)


class Event(NamedTuple):
    id: int | None
    name: str
    data: dict[str, Any]

    @property
    def job_id(self) -> str:
        found: str = self.data["job"]["id"] if "job" in self.data else self.data["deletedJobId"]
        return found


class Reader:
    """Reads a stream event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.first_id: int | None = None
        self._lines = response.aiter_lines()

    async def next(self) -> Event | None:
        """None: the stream has ended."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._next()

    async def _next(self) -> Event | None:
        fields: dict[str, str] = {}
        async for line in self._lines:
            if line:
                name, _, value = line.partition(": ")
                assert name not in fields, f"{name} twice in one event"
                fields[name] = value
            elif "data" in fields:
                id = int(fields["id"]) if "id" in fields else None
                return Event(id, fields["event"], json.loads(fields["data"]))
            else:
                if "id" in fields:
                    self.first_id = int(fields["id"])
                fields = {}
        return None

    async def take(self, count: int, name: str | None = None) -> list[Event]:
        """The next events up to this many (of this name), with all others in between; pings are skipped."""
        found: list[Event] = []
        while sum(name in (None, one.name) for one in found) < count:
            event = await self.next()
            assert event, f"the stream ended after {found}"
            if event.name != "ping":
                found.append(event)
        return found

    async def rest(self) -> list[Event]:
        found = []
        while event := await self.next():
            if event.name != "ping":
                found.append(event)
        return found


@contextlib.asynccontextmanager
async def reading(client: httpx.AsyncClient, path: str, **headers: str) -> AsyncIterator[Reader]:
    async with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        yield Reader(response)


@contextlib.asynccontextmanager
async def server_process(url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server in a separate process: (process, its address)."""
    command = [sys.executable, "-m", "tests.http.live", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        async with asyncio.timeout(PATIENCE_S):
            address = (await process.stdout.readline()).decode().strip()
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", flush=True)


def main(url: str) -> None:
    _Announcing(uvicorn.Config(create_app(Queue(url)), port=0, log_level="warning")).run()


if __name__ == "__main__":
    main(sys.argv[1])
