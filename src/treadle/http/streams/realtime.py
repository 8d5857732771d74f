"""PocketBase's realtime protocol, so that its client's `pb.realtime.subscribe("jobs/*", …)` works.

A connection is opened first (GET, `PB_CONNECT`), and subscriptions are sent for it afterwards (POST), with the token.
Nothing that was missed is sent later: a client that is too slow is disconnected, and connects and reads anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response

from treadle.events.feed import RESYNC, FeedStopped, Listener
from treadle.events.ring import FeedEvent
from treadle.http import request_models as req
from treadle.http.bodies import ANYBODY, body_of
from treadle.http.errors import ApiError, bad_field
from treadle.http.openapi import spec
from treadle.http.server import Server, ServerDep
from treadle.http.streams import following
from treadle.http.streams.sse import StreamResponse, headers_only, nothing
from treadle.http.streams.wanted import Wanted
from treadle.http.streams.websocket import require_sight
from treadle.model.errors import StoreUnavailable
from treadle.model.events import DELETED, ENQUEUED
from treadle.policy import rules
from treadle.policy.rules import Condition

router = APIRouter(tags=["streams"])

COLLECTION = "jobs"
EVERY = f"{COLLECTION}/*"
MOST_CHARACTERS = 2500
# A connection without subscriptions is closed after this long.
SUBSCRIBE_WITHIN_S = 60.0
ACTIONS = {ENQUEUED: "create", DELETED: "delete"}


@router.get("/api/realtime", **spec(kind="text/event-stream", errors=(429,), open_to_all=True))
async def connect(request: Request, here: ServerDep) -> Response:
    """Open a connection of PocketBase's realtime protocol: `PB_CONNECT` tells its id, for the subscriptions."""
    await here.access.enabled()
    if headers_only(request):
        return nothing(200)
    caller = await here.access.who(request)
    here.streams.take(caller)
    client = RealtimeClient(here, caller)
    here.realtime[client.id] = client
    return StreamResponse(client)


@router.post("/api/realtime", **spec(body=req.RealtimeBody, errors=(404,), status=204))
async def subscribe(
    request: Request,
    here: ServerDep,
    body: Annotated[req.RealtimeBody, Depends(body_of(req.RealtimeBody, ANYBODY))],
) -> Response:
    """Replace the subscriptions of a connection: `jobs/*` for all jobs that you may see, `jobs/ID` for one."""
    wanted = [Subscription.of(one) for one in dict.fromkeys(body.subscriptions)]
    watching = _as_reader(request)
    allowed = rules.never
    if wanted:
        allowed = await here.access.manage(watching, strict=False)
        await require_sight(here, watching, allowed)
    client = here.realtime.get(body.clientId)
    if client is None:
        raise ApiError(404, "not_found", "Missing or invalid client id.")
    account = (await here.access.caller(watching)).account_id
    if client.account not in (None, account):
        message = "The current and the previous request authorization don't match."
        raise ApiError(403, "forbidden", message)
    client.account = account
    await client.subscribe(watching, allowed, wanted)
    return Response(status_code=204)


def _as_reader(request: Request) -> Request:
    """Subscriptions read jobs, so rules see a GET without a body, now and when they are checked again."""
    return Request({**request.scope, "method": "GET"})


@dataclass(frozen=True, slots=True)
class Subscription:
    name: str
    """As the client writes it, which is also the name of its events."""
    job_id: str | None
    condition: Condition
    wanted: Wanted

    @classmethod
    def of(cls, name: str) -> Subscription:
        topic, _, options = name.partition("?")
        if not name.isascii() or not name.isprintable() or len(name) > MOST_CHARACTERS:
            raise bad_field("subscriptions", f"use printable characters, at most {MOST_CHARACTERS:,}")
        collection, _, id = topic.partition("/")
        if collection != COLLECTION or not id:
            raise bad_field("subscriptions", f"there is no {topic[:60]!r}; use {EVERY} or {COLLECTION}/ID")
        query = _query_of(options)
        return cls(name, None if topic == EVERY else id, _filter_of(query), Wanted.of(None, None, query.get("fields")))

    def includes(self, job: Mapping[str, Any]) -> bool:
        return self.job_id in (None, job["id"]) and rules.matches(self.condition, job)

    def frame(self, client_id: str, told: FeedEvent) -> bytes:
        job = told.payload.get("job")
        record = self.wanted.narrowed(job) if job is not None else {"id": told.payload["deletedJobId"]}
        record = {**record, "collectionId": COLLECTION, "collectionName": COLLECTION}
        data = to_json({"action": ACTIONS.get(told.event, "update"), "record": record})
        return _frame(client_id, self.name, data)


def _query_of(options: str) -> dict[str, str]:
    """PocketBase's client appends the options of a subscription as JSON: `?options={"query": {"filter": …}}`."""
    found = parse_qs(options).get("options")
    if not found:
        return {}
    try:
        query = from_json(found[0]).get("query") or {}
        return {name: value for name, value in query.items() if isinstance(value, str)}
    except (ValueError, AttributeError):
        raise bad_field("subscriptions", "the options are not a JSON object") from None


def _filter_of(query: Mapping[str, str]) -> Condition:
    text = query.get("filter")
    if not text:
        return rules.always
    try:
        return rules.parse_filter(text)
    except rules.InvalidRule as error:
        raise bad_field("subscriptions", f"filter: {error.message}", "invalid_filter") from None


class RealtimeClient:
    """One connection and what it is subscribed to."""

    def __init__(self, here: Server, caller: str) -> None:
        self.id = secrets.token_urlsafe(30)
        self.account: str | None = None
        """Who has subscribed; nobody else may from then on."""
        self._here = here
        self._caller = caller
        self._request: Request | None = None
        self._allowed: Condition = rules.never
        self._subscriptions: Sequence[Subscription] = ()
        self._listener: Listener | None = None
        self._listening = asyncio.Event()
        self._check_at = float("inf")

    async def subscribe(self, request: Request, allowed: Condition, wanted: Sequence[Subscription]) -> None:
        """Everything that happens after this is told."""
        self._request, self._allowed, self._subscriptions = request, allowed, wanted
        self._check_at = time.monotonic() + following.CHECK_S
        if self._listener is None and wanted:
            self._listener = await self._here.feed.listener(match=self._sees)
            self._listening.set()

    async def close(self) -> None:
        if self._here.realtime.pop(self.id, None) is not None:
            self._here.streams.give_back(self._caller)
        if self._listener is not None:
            await self._listener.close()

    def _sees(self, job: Mapping[str, Any]) -> bool:
        allowed = self._allowed is True or rules.matches(self._allowed, job)
        return allowed and any(one.includes(job) for one in self._subscriptions)

    async def frames(self) -> AsyncIterator[bytes]:
        """Ends when the reader loses access, misses events or subscribes to nothing, or when the feed stops."""
        yield _frame(self.id, "PB_CONNECT", to_json({"clientId": self.id}))
        with contextlib.suppress(TimeoutError, FeedStopped, StoreUnavailable):
            async with asyncio.timeout(SUBSCRIBE_WITHIN_S):
                await self._listening.wait()
            assert self._listener
            while await self._may_go_on():
                told = await self._listener.next(max(self._check_at - time.monotonic(), 0.0))
                if told is not None and told.event == RESYNC:
                    return
                if told is not None:
                    yield b"".join(one.frame(self.id, told) for one in self._subscriptions if one.includes(told.facts))

    async def _may_go_on(self) -> bool:
        """Repeats the access check at intervals: passwords change, keys are revoked, rules are edited."""
        if time.monotonic() < self._check_at:
            return True
        self._check_at = time.monotonic() + following.CHECK_S
        assert self._request
        try:
            await self._here.access.caller(self._request, anew=True)
            self._allowed = await self._here.access.manage(self._request, strict=False)
        except ApiError:
            return not self._subscriptions
        except StoreUnavailable:
            pass  # without the store there are no events either
        return True


def _frame(client_id: str, event: str, data: bytes) -> bytes:
    return b"id: %s\r\nevent: %s\r\ndata: %s\r\n\r\n" % (client_id.encode(), event.encode(), data)
