"""What the routes share: the queue and what was built on it, opened at the first request if nobody opened it before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from treadle.accounts import Accounts
from treadle.external import ExternalWorkers
from treadle.http.access import Access, Permit
from treadle.http.gathering import Gathered
from treadle.rules import Condition
from treadle.telemetry import HttpMetrics

if TYPE_CHECKING:
    from treadle.queue import Queue


class Server:
    """One for each application and event loop."""

    def __init__(self, queue: Queue, metrics: HttpMetrics) -> None:
        store = queue.store
        self.queue = queue
        self.accounts = Accounts(store, records=Gathered(store.records))
        self.site = queue.site
        self.access = Access(self.accounts, self.site)
        self.external = ExternalWorkers(queue, metrics.count_ended)
        self.feed = queue.feed
        self.jobs = Gathered(store.get)


class Servers:
    """Opens the queue and makes the `Server`, once."""

    def __init__(self, queue: Queue, metrics: HttpMetrics) -> None:
        self.queue = queue
        self._metrics = metrics
        self._made: dict[asyncio.AbstractEventLoop, Server] = {}

    async def get(self) -> Server:
        loop = asyncio.get_running_loop()
        server = self._made.get(loop)
        if server is None:
            await self.queue.open()
            server = self._made.setdefault(loop, Server(self.queue, self._metrics))
        return server

    async def close(self) -> None:
        server = self._made.pop(asyncio.get_running_loop(), None)
        if server is not None:
            await server.feed.stop()


async def the_server(request: Request) -> Server:
    return await cast(Servers, request.app.state.servers).get()


Here = Annotated[Server, Depends(the_server)]


async def _managing(request: Request, here: Here) -> Condition:
    return await here.access.manage(request)


async def _enqueuing(request: Request, here: Here) -> Permit:
    return await here.access.enqueue(request)


# Before the body in a route's signature: who may not ask is not told what is wrong with their question.
Managed = Annotated[Condition, Depends(_managing)]
Enqueuing = Annotated[Permit, Depends(_enqueuing)]


def needs(scope: str, *, jobs_api: bool = False) -> Any:
    """A dependency of routes for superusers and API keys with this scope; `jobs_api`: closed when the API is off."""

    async def check(request: Request, here: Here) -> None:
        await here.access.caller(request)  # a bad token is told first
        if jobs_api:
            await here.access.enabled()
        await here.access.require(request, scope)

    return Depends(check)


def answer(body: Any, status: int = 200) -> Response:
    """JSON, written by pydantic: twice as fast as going through a response model, and nothing is dropped."""
    return Response(to_json(body), status, media_type="application/json")
