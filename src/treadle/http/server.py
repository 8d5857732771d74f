"""What the routes share: the queue and the objects built on it, opened at the first request if necessary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends
from pydantic_core import to_json
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from treadle.accounts import Accounts
from treadle.http.access import Access, Permit
from treadle.http.application_auth import Auth
from treadle.http.claim_tokens import ClaimTokens
from treadle.http.gathering import Gathered
from treadle.http.one_at_a_time import Turns
from treadle.http.origin import Origin
from treadle.http.streams.places import StreamPlaces
from treadle.model.errors import StoreUnavailable
from treadle.model.job import Job
from treadle.policy.rules import Condition
from treadle.queue.audit import Actor, AuditLog
from treadle.queue.external import ExternalWorkers
from treadle.queue.operations import Operations
from treadle.telemetry import HttpMetrics

if TYPE_CHECKING:
    from treadle.http.streams.realtime import RealtimeClient
    from treadle.queue import Queue

log = logging.getLogger("treadle.http")


class Server:
    """One for each application and event loop."""

    def __init__(self, queue: Queue, metrics: HttpMetrics, auth: Auth | None = None) -> None:
        store = queue.store
        self.queue = queue
        self.accounts = Accounts(
            store,
            records=Gathered(store.get_records),
            key_file=queue.key_file,
            secret_key=queue.settings.secret_key,
        )
        self.site = queue.site
        self.origin = Origin.of(queue.settings)
        self.access = Access(self.accounts, self.site, self.origin, read_only=queue.settings.read_only, auth=auth)
        self.claim_tokens = ClaimTokens(self.accounts)
        self.external = ExternalWorkers(queue, metrics.count_ended)
        self.feed = queue.feed
        self.streams = StreamPlaces(queue.settings.streams, queue.settings.streams_per_caller)
        self.realtime: dict[str, RealtimeClient] = {}
        """The open connections of PocketBase's realtime protocol, by their id."""
        self.jobs = Gathered(store.get)
        self._turns = Turns()
        self.audit = AuditLog(queue)
        self.operations = Operations(queue)
        self.on_close: list[Callable[[], Awaitable[None]]] = [self.operations.close, self.accounts.close]

    @contextlib.asynccontextmanager
    async def searching(self, request: Request, kind: str = "look") -> AsyncIterator[None]:
        """One search of a kind at a time per caller, so a caller with many searches only delays itself."""
        async with self._turns.turn(f"{kind} {await self.access.who(request)}"):
            yield

    async def note_job(self, request: Request, action: str, job: Job, **facts: Any) -> None:
        """`note`, but not of what users do to their own jobs: that is no operator's action, and may be said by the
        thousand."""
        caller = await self.access.caller(request)
        if caller.kind != "user" or job.created_by != caller.account_id:
            await self.note(request, action, job.id, **facts)

    async def note(self, request: Request, action: str, target: str = "", **facts: Any) -> None:
        """Write an operator's action that was just done into the audit log."""
        caller = await self.access.caller(request)
        try:
            await self.audit.add(Actor(caller.name, caller.kind), action, target, **facts)
        except StoreUnavailable as error:  # the action is done, and the caller must learn that
            log.error("could not write %s %s by %s to the audit log: %s", action, target, caller.name, error)


class Servers:
    """Opens the queue and creates one `Server` per event loop."""

    def __init__(self, queue: Queue, metrics: HttpMetrics, auth: Auth | None = None) -> None:
        self.queue = queue
        self._metrics = metrics
        self._auth = auth
        self._made: dict[asyncio.AbstractEventLoop, Server] = {}
        self.on_made: list[Callable[[Server], None]] = []

    async def get(self) -> Server:
        loop = asyncio.get_running_loop()
        server = self._made.get(loop)
        if server is None:
            await self.queue.open()
            if loop not in self._made:  # another request may have been faster
                server = self._made[loop] = Server(self.queue, self._metrics, self._auth)
                for begin in self.on_made:
                    begin(server)
            server = self._made[loop]
        return server

    async def close(self) -> None:
        server = self._made.pop(asyncio.get_running_loop(), None)
        if server is not None:
            for close in server.on_close:
                await close()
            await server.feed.stop()


async def the_server(connection: HTTPConnection) -> Server:
    """Of a request or a WebSocket."""
    return await cast(Servers, connection.app.state.servers).get()


ServerDep = Annotated[Server, Depends(the_server)]


async def _managing(request: Request, here: ServerDep) -> Condition:
    return await here.access.manage(request)


async def _enqueuing(request: Request, here: ServerDep) -> Permit:
    return await here.access.enqueue(request)


# Before the body in a route's signature, so that callers without access get no validation errors.
Managed = Annotated[Condition, Depends(_managing)]
Enqueuing = Annotated[Permit, Depends(_enqueuing)]


def needs(scope: str, *, jobs_api: bool = False) -> Any:
    """A dependency that admits superusers and API keys with this scope; `jobs_api`: only while the API is on."""

    async def check(request: Request, here: ServerDep) -> None:
        await here.access.caller(request)  # report an invalid token first
        if jobs_api:
            await here.access.enabled()
        await here.access.require(request, scope)
        await here.access.check_query(request)

    return Depends(check)


async def _known_query(request: Request, here: ServerDep) -> None:
    await here.access.check_query(request)


# For routes that use none of the above.
KNOWN_QUERY = Depends(_known_query)


def answer(body: Any, status: int = 200) -> Response:
    """JSON written by pydantic: twice as fast as a response model, and no field is dropped."""
    return Response(to_json(body), status, media_type="application/json")
