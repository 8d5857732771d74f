"""A TCP proxy before PostgreSQL that loses a connection at a chosen moment."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self
from urllib.parse import urlsplit

COMMIT = b"Q\x00\x00\x00\x0cCOMMIT;\x00"

# Is this the message at which the connection is lost?
Moment = Callable[[bytes], bool]


def commit(message: bytes) -> bool:
    return COMMIT in message


def running(statement: str) -> Moment:
    """A statement is sent for the first time on its connection (later its name is sent, not its text)."""
    return lambda message: statement.encode() in message


class Proxy:
    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._moment: Moment | None = None
        self._forward = True
        self._delay = 0.0
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{self._target.username}@127.0.0.1:{port}{self._target.path}"

    @contextmanager
    def lose(self, moment: Moment, *, forward: bool = True, delay: float = 0.0) -> Iterator[None]:
        """Cut the next connection at which the moment comes. `forward`: the server still gets the message and does
        what it says (after `delay`), only its answer is lost; otherwise it never hears of it."""
        cuts = self.cuts
        self._moment, self._forward, self._delay = moment, forward, delay
        yield
        assert self.cuts == cuts + 1, "the moment did not come"

    def cut_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            upstream = await asyncio.open_connection(self._target.hostname, self._target.port)
            self._writers |= {writer, upstream[1]}
            answers = asyncio.create_task(self._pass_on(upstream[0], writer))
            await self._watch(reader, writer, upstream[1], answers)
            for one in (writer, upstream[1]):
                self._writers.discard(one)
                one.close()
            await answers

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def _watch(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
        answers: "asyncio.Task[None]",
    ) -> None:
        while data := await reader.read(65536):
            if self._moment and self._moment(data):
                self._moment = None
                self.cuts += 1
                if self._forward:
                    client.transport.abort()  # first: no answer may come through
                    await asyncio.sleep(self._delay)
                    server.write(data)
                    await server.drain()
                    server.write_eof()
                    await answers  # until the server has done it and hung up
                return
            server.write(data)
            await server.drain()
