"""A TCP proxy in front of PostgreSQL that drops a connection at a chosen moment."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self
from urllib.parse import urlsplit


class Moment(NamedTuple):
    """When the connection is lost: when this is said, or when a statement with this text is told to run."""

    text: bytes
    prepared: bool = False


COMMITTING = Moment(b"Q\x00\x00\x00\x0cCOMMIT;\x00")
PARSE = re.compile(rb"P.{4}(__asyncpg_stmt_\w+__)\x00([^\x00]*)\x00", re.DOTALL)


def running(statement: str) -> Moment:
    return Moment(statement.encode(), prepared=True)


class Conversation:
    """What a client has said on one connection."""

    def __init__(self) -> None:
        self._statements: dict[bytes, bytes] = {}

    def reaches(self, moment: Moment, message: bytes) -> bool:
        self._statements.update(PARSE.findall(message))
        if not moment.prepared:
            return moment.text in message
        return message.startswith(b"B") and any(
            moment.text in text and name + b"\x00" in message for name, text in self._statements.items()
        )


NEVER = Moment(b"\x00never\x00")


class Proxy:
    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._moment = NEVER
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

    def silence(self) -> None:
        """Pass nothing on any more and close nothing, as a firewall does that has forgotten its connections."""
        self._silent |= self._writers

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
                if writer not in self._silent:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    async def _watch(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
        answers: "asyncio.Task[None]",
    ) -> None:
        conversation = Conversation()
        while data := await reader.read(65536):
            if conversation.reaches(self._moment, data):
                self._moment = NEVER
                self.cuts += 1
                if self._forward:
                    client.transport.abort()  # first: no answer may come through
                    await asyncio.sleep(self._delay)  # how late the server gets it
                    server.write(data)
                    await server.drain()
                    server.write_eof()
                    await answers  # until the server has done it and hung up
                return
            if server not in self._silent:
                server.write(data)
                await server.drain()
