"""The events of `/api/jobs/stream` over a WebSocket: one JSON text a message.

A handshake is a GET request, so the same checks apply to it. Browsers send the cookie with a handshake from any page,
which is why its Origin must be ours; a token proves enough by itself. Browsers can't set headers here, so a token may
also come as a subprotocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from treadle.events.frames import PING_S
from treadle.http.access import refusal
from treadle.http.server import Server, ServerDep
from treadle.http.streams.following import JobStream, Message, resume_from
from treadle.http.streams.sse import SEND_S, After, Fields, JobIds, OneTopic, WithSnapshot
from treadle.http.streams.wanted import Wanted
from treadle.http.tracking import TrackToken, reading
from treadle.model.job import rfc3339
from treadle.policy import rules
from treadle.policy.rules import Condition
from treadle.queue.background import end

log = logging.getLogger("treadle.http")
router = APIRouter(tags=["streams"])

PROTOCOL = "treadle"
BEARER = "bearer."
# Clients have nothing to say but pings.
MOST_MESSAGE_BYTES = 4096
NORMAL, POLICY, RESTART = 1000, 1008, 1012


class Handshake:
    """The request that asks for a WebSocket, and what its caller may see."""

    def __init__(self, websocket: WebSocket) -> None:
        self.request = request_of(websocket)
        self.allowed: Condition = False


async def _checked(websocket: WebSocket, here: ServerDep, track: TrackToken = None) -> Handshake:
    handshake = Handshake(websocket)
    handshake.allowed = await reading(handshake.request, here, *websocket.query_params.getlist("id"))
    await require_sight(here, handshake.request, handshake.allowed)
    return handshake


async def require_sight(here: Server, request: Request, allowed: Condition) -> None:
    """Under a rule that needs an account, callers without one would wait for events that can't come."""
    if allowed == rules.never and (caller := await here.access.caller(request)).kind == "anonymous":
        raise refusal(caller)


@router.websocket("/api/jobs/ws")
async def follow_jobs(
    websocket: WebSocket,
    here: ServerDep,
    handshake: Annotated[Handshake, Depends(_checked)],
    id: JobIds = None,
    topic: OneTopic = None,
    snapshot: WithSnapshot = False,
    fields: Fields = None,
    after: Annotated[str | None, Query(max_length=100, description="resume after the message with this id")] = None,
    last_event_id: After = None,
) -> None:
    """Every event of every job that you may see, or of some of them."""
    stream = JobStream(handshake.request, here, handshake.allowed, Wanted.of(id, topic, fields))
    await stream.open(resume_from(after or last_event_id), snapshot)
    await SocketStream(websocket, stream).run()


def request_of(websocket: WebSocket) -> Request:
    """The handshake as the GET request that it is, with its token where requests have theirs."""
    scope = dict(websocket.scope)
    scope |= {"type": "http", "method": "GET", "scheme": "https" if scope.get("scheme") == "wss" else "http"}
    tokens = [one.removeprefix(BEARER) for one in websocket.scope["subprotocols"] if one.startswith(BEARER)]
    if tokens and not any(name == b"authorization" for name, _ in scope["headers"]):
        scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {tokens[0]}".encode("latin-1"))]
    return Request(scope)


class SocketStream:
    """One connection."""

    def __init__(self, websocket: WebSocket, stream: JobStream) -> None:
        self._websocket = websocket
        self._stream = stream

    async def run(self) -> None:
        try:
            offered = self._websocket.scope["subprotocols"]
            await self._websocket.accept(PROTOCOL if PROTOCOL in offered else None)
            await self._talk()
        finally:
            await self._stream.close()

    async def _talk(self) -> None:
        sending = asyncio.create_task(self._send_messages())
        hearing = asyncio.create_task(self._hear())
        try:
            await asyncio.wait((sending, hearing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([sending, hearing])
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(SEND_S):
                await self._websocket.close(self._code(hearing), "access has ended" if self._stream.refused else None)

    def _code(self, hearing: asyncio.Task[int]) -> int:
        if hearing.done() and not hearing.cancelled() and hearing.exception() is None:
            return hearing.result()
        return POLICY if self._stream.refused else RESTART

    async def _send_messages(self) -> None:
        try:
            async for messages in self._stream.messages():
                for message in messages:
                    await self._send(text_of(message))
        except TimeoutError:
            log.info("a WebSocket was closed: its reader took nothing for %d s", SEND_S)
        except WebSocketDisconnect:
            pass

    async def _hear(self) -> int:
        """Until the client leaves; the code to close with."""
        while True:
            try:
                async with asyncio.timeout(PING_S):
                    message = await self._websocket.receive()
            except TimeoutError:
                await self._say("ping")
                continue
            if message["type"] == "websocket.disconnect":
                return NORMAL
            text = message.get("text") or ""
            if len(text) > MOST_MESSAGE_BYTES or message.get("bytes"):
                return POLICY
            if _is_ping(text):
                await self._say("pong")

    async def _say(self, event: str) -> None:
        await self._send(to_json({"event": event, "at": rfc3339(datetime.now(UTC))}).decode())

    async def _send(self, text: str) -> None:
        """Waits while the client takes nothing, so a slow one has at most a message and the socket's buffer here."""
        async with asyncio.timeout(SEND_S):
            await self._websocket.send_text(text)


def text_of(message: Message) -> str:
    """`{id, event, at, job}`, without serializing it again."""
    head = b'{"id":%d' % message.id if message.id is not None else b"{"
    comma = b"," if message.id is not None else b""
    named = b"" if message.data.startswith(b'{"event"') else to_json({"event": message.event})[1:-1] + b","
    return (head + comma + named + message.data[1:]).decode()


def _is_ping(text: str) -> bool:
    try:
        said: Any = from_json(text)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("event") == "ping"
