"""A real receiver of webhooks that behaves as a test wants it to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

from treadle.policy.webhook_signing import secret_of

SECRET = secret_of(bytes(range(32)))


class Received(NamedTuple):
    target: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


Answer = Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    """An ordinary answer. `Retry_After="3"` is the header Retry-After."""

    async def send(request: Received, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return send


RECEIVED = answer(204)


class Receiver:
    """Listens on 127.0.0.1. `answer` may be replaced at any time; an answer that closes the connection ends it."""

    def __init__(self, answer: Answer = RECEIVED, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.received: list[Received] = []
        self.connections = 0
        self.under_way = 0
        self.most_under_way = 0
        self.addresses: list[str] = []
        """Of this machine, by which each request came."""
        self._tls = tls
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._servers = [await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)]
        self.port: int = self._servers[0].sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/hook"
        return self

    async def also_on(self, address: str) -> None:
        """Listen on the same port of another address of this machine."""
        self._servers.append(await asyncio.start_server(self._serve, address, self.port, ssl=self._tls))

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for writer in self._open:
            writer.close()
        for server in self._servers:
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                while not writer.is_closing():
                    await self._take(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        body = await reader.readexactly(int(headers["content-length"]))
        request = Received(lines[0].split()[1], headers, body, time.monotonic())
        self.received.append(request)
        self.addresses.append(writer.get_extra_info("sockname")[0])
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.answer(request, writer)
            await writer.drain()
        finally:
            self.under_way -= 1
