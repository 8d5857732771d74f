"""A client of `/api/jobs/ws`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.http.live import PATIENCE_S, Event

SOCKET = "/api/jobs/ws"


class SocketReader:
    """Reads messages as `tests.http.live.Reader` reads events."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def next(self) -> Event:
        async with asyncio.timeout(PATIENCE_S):
            message: dict[str, Any] = json.loads(await self.connection.recv())
        id = message.pop("id", None)
        return Event(id, message["event"], message)

    async def take(self, count: int) -> list[Event]:
        """The next ones up to this many; pings are skipped."""
        found: list[Event] = []
        while len(found) < count:
            event = await self.next()
            if event.name != "ping":
                found.append(event)
        return found

    async def closed(self) -> tuple[int, str]:
        """Code and reason, once the server has closed it."""
        async with asyncio.timeout(PATIENCE_S):
            await self.connection.wait_closed()
        assert self.connection.close_code is not None
        return self.connection.close_code, self.connection.close_reason or ""


@contextlib.asynccontextmanager
async def socket(
    base_url: str, query: str = "", token: str | None = None, **options: Any
) -> AsyncIterator[SocketReader]:
    headers = {} if token is None else {"Authorization": token}
    headers |= options.pop("headers", {})
    url = f"{base_url.replace('http', 'ws', 1)}{SOCKET}{query}"
    async with connect(url, additional_headers=headers, proxy=None, max_size=None, **options) as connection:
        yield SocketReader(connection)
