"""A wire to PostgreSQL that can be cut: before a request arrives, after its answer left, or while it is under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from enum import Enum
from urllib.parse import urlsplit, urlunsplit


class Cut(Enum):
    REQUEST = "the request never arrived"
    ANSWER = "it was done, but the answer was lost"
    IMPATIENT = "the client is cut off while the server still works on it"


class Proxy:
    """Counts what clients send (a request each time they stop to wait) and cuts the wire at the n-th."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._wires: set[Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0
        self.cut_at = 0
        self.cut = Cut.REQUEST
        self.url = ""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        self.url = urlunsplit(self._server._replace(netloc=f"postgres@127.0.0.1:{port}"))
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for wire in self._wires:
                await wire.close()

    def cut_next(self, nth: int, cut: Cut) -> None:
        """Cut the wire of the n-th request from now on."""
        self.cut = cut
        self.cut_at = self.requests + nth

    def sever(self) -> None:
        """Cut off all clients together; the server goes on with its work and notices later."""
        for wire in list(self._wires):
            wire.sever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            there = await asyncio.open_connection(self._server.hostname, self._server.port)
            wire = Wire((reader, writer), there)
            self._wires.add(wire)
            await wire.carry(self)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)


class Wire:
    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._severed = False

    async def carry(self, proxy: Proxy) -> None:
        back = asyncio.create_task(self._carry_back())
        try:
            while data := await self._from_client.read(1 << 20):
                proxy.requests += 1
                if proxy.requests == proxy.cut_at:
                    if proxy.cut is Cut.REQUEST:
                        return
                    self._severed = True
                    self._to_server.write(data)
                    if proxy.cut is Cut.IMPATIENT:
                        self.sever()
                    break
                self._to_server.write(data)
        except ConnectionError:
            pass
        finally:
            if self._severed:
                # A server that is asked to go ends first what it is doing.
                self._to_server.write(b"X\x00\x00\x00\x04")
                await back
            back.cancel()
            self._to_client.close()
            self._to_server.close()

    async def close(self) -> None:
        for writer in (self._to_client, self._to_server):
            writer.transport.abort()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    def sever(self) -> None:
        self._severed = True
        self._to_client.transport.abort()

    async def _carry_back(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._from_server.read(1 << 20):
                if not self._severed:
                    self._to_client.write(data)
        self._to_client.close()
