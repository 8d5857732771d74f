"""`ctx.db` and `ctx.http` for plain functions: the methods of asyncpg and aiohttp, blocking.

The event loop that owns the pool and the client does the work, and the function's thread waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

Ask = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Start what it is given on the loop, and return the result."""


def on_loop(loop: asyncio.AbstractEventLoop) -> Ask:
    def ask(begin: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await begin()

        return asyncio.run_coroutine_threadsafe(run(), loop).result()

    return ask


def found(ask: Ask, find: Callable[[], Any]) -> Any:
    """The result of a plain function that has to be called on the loop."""

    async def call() -> Any:
        return find()

    return ask(call)


class _Statements:
    """What asyncpg's pools and connections have in common."""

    def __init__(self, source: Any, ask: Ask) -> None:
        self.source = source
        """asyncpg's own object."""
        self._ask = ask

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        result: str = self._ask(lambda: self.source.execute(query, *args, timeout=timeout))
        return result

    def executemany(self, query: str, args: Any, *, timeout: float | None = None) -> None:
        self._ask(lambda: self.source.executemany(query, args, timeout=timeout))

    def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]:
        rows: list[Any] = self._ask(lambda: self.source.fetch(query, *args, timeout=timeout))
        return rows

    def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return self._ask(lambda: self.source.fetchrow(query, *args, timeout=timeout))

    def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        return self._ask(lambda: self.source.fetchval(query, *args, column=column, timeout=timeout))


class BlockingConnection(_Statements):
    """One connection of the pool."""

    @contextlib.contextmanager
    def transaction(self, **options: Any) -> Iterator[None]:
        transaction = self.source.transaction(**options)
        self._ask(transaction.start)
        try:
            yield
        except BaseException:
            self._ask(transaction.rollback)
            raise
        self._ask(transaction.commit)


class BlockingPool(_Statements):
    """asyncpg's pool."""

    @contextlib.contextmanager
    def acquire(self, *, timeout: float | None = None) -> Iterator[BlockingConnection]:
        async def take() -> Any:
            return await self.source.acquire(timeout=timeout)

        connection = self._ask(take)
        try:
            yield BlockingConnection(connection, self._ask)
        finally:
            self._ask(lambda: self.source.release(connection))


class HttpResponse:
    """An answer that was read completely, with the names that aiohttp's has."""

    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self._response = response
        self._body = body
        self.status = response.status
        self.reason = response.reason
        self.ok = response.ok
        self.headers = response.headers
        self.url = response.url

    def read(self) -> bytes:
        return self._body

    def text(self) -> str:
        return self._body.decode(self._response.get_encoding())

    def json(self) -> Any:
        return json.loads(self._body)

    def raise_for_status(self) -> None:
        """aiohttp.ClientResponseError for a status of 400 or more."""
        self._response.raise_for_status()

    def __repr__(self) -> str:
        return f"<HttpResponse {self.status} of {self.url}>"


class BlockingHttp:
    """aiohttp's client session; the options of each method are aiohttp's."""

    def __init__(self, session: aiohttp.ClientSession, ask: Ask) -> None:
        self.source = session
        """aiohttp's own object."""
        self._ask = ask

    def request(self, method: str, url: str, **options: Any) -> HttpResponse:
        async def request() -> HttpResponse:
            async with self.source.request(method, url, **options) as response:
                return HttpResponse(response, await response.read())

        answer: HttpResponse = self._ask(request)
        return answer

    def get(self, url: str, **options: Any) -> HttpResponse:
        return self.request("GET", url, **options)

    def head(self, url: str, **options: Any) -> HttpResponse:
        return self.request("HEAD", url, **options)

    def post(self, url: str, **options: Any) -> HttpResponse:
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> HttpResponse:
        return self.request("PUT", url, **options)

    def patch(self, url: str, **options: Any) -> HttpResponse:
        return self.request("PATCH", url, **options)

    def delete(self, url: str, **options: Any) -> HttpResponse:
        return self.request("DELETE", url, **options)
