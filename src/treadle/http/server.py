"""What the routes share: the queue and what was built on it, opened at the first request if nobody opened it before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response

from treadle.accounts import Accounts
from treadle.external import ExternalWorkers
from treadle.http.access import Access, Permit
from treadle.http.gathering import Gathered
from treadle.http.site import Site
from treadle.rules import Condition
from treadle.telemetry import HttpMetrics

if TYPE_CHECKING:
    from treadle.queue import Queue

E = TypeVar("E", bound=Callable[..., Awaitable[Response]])


class Server:
    """One for each application and event loop."""

    def __init__(self, queue: Queue, metrics: HttpMetrics) -> None:
        store = queue.store
        self.queue = queue
        records = Gathered(store.records)
        self.accounts = Accounts(store, records=records)
        self.site = Site(store, records)
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
        await here.access.require(request, scope)
        if jobs_api:
            await here.access.enabled()

    return Depends(check)


class _Direct(APIRoute):
    """Described like any other route, but called with the request and the parts of its path as they are."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(self._call)

    async def _call(self, request: Request) -> Response:
        found: Response = await self.endpoint(request, **request.path_params)
        return found


def direct(router: APIRouter, method: str, path: str, **options: Any) -> Callable[[E], E]:
    """A decorator for the routes that are called more than all others together: no dependency, no checked parameter,
    and none of the time that the framework takes to look for them."""

    def add(endpoint: E) -> E:
        router.add_api_route(path, endpoint, methods=[method], route_class_override=_Direct, **options)
        return endpoint

    return add


def answer(body: Any, status: int = 200) -> Response:
    """JSON, written by pydantic: twice as fast as going through a response model, and nothing is dropped."""
    return Response(to_json(body), status, media_type="application/json")
