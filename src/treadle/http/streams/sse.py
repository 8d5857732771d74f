"""Server-sent events about all jobs that the caller may see, or about one job."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle.events.frames import PING_S, frame, ping
from treadle.http.access import of_job
from treadle.http.openapi import spec
from treadle.http.request_models import TopicName
from treadle.http.security_headers import HEADERS_ONLY
from treadle.http.server import ServerDep
from treadle.http.streams.following import JobStream, resume_from
from treadle.http.streams.wanted import MOST_IDS, Wanted
from treadle.http.tracking import Followed, TrackToken, reading
from treadle.policy.rules import Condition

log = logging.getLogger("treadle.http")
router = APIRouter(tags=["streams"])

RETRY_MS = 2000
# A reader that accepts no data for this long is disconnected.
SEND_S = 60.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

WithSnapshot = Annotated[bool, Query(description="first send the jobs in their current state")]
After = Annotated[
    str | None,
    Query(alias="lastEventId", max_length=100, description="for clients that can't send the header Last-Event-ID"),
]
JobIds = Annotated[
    list[Annotated[str, Field(max_length=255)]] | None,
    Query(max_length=MOST_IDS, description="only these jobs; may be repeated"),
]
OneTopic = Annotated[TopicName | None, Query(description="only jobs of this topic")]


async def _selected(request: Request, here: ServerDep, track: TrackToken = None) -> Condition:
    return await reading(request, here, *request.query_params.getlist("id"))


Selected = Annotated[Condition, Depends(_selected)]
Fields = Annotated[
    str | None,
    Query(max_length=2000, description="what jobs carry besides their id, as names with commas between them"),
]


@router.get("/api/jobs/stream", **spec(kind="text/event-stream", errors=(429,)))
async def stream_jobs(
    request: Request,
    here: ServerDep,
    allowed: Selected,
    id: JobIds = None,
    topic: OneTopic = None,
    snapshot: WithSnapshot = False,
    fields: Fields = None,
    last_event_id: After = None,
) -> Response:
    """Every event of every job that you may see, or of some of them, until you disconnect."""
    wanted = Wanted.of(id, topic, fields)
    if headers_only(request):
        return nothing(200)
    stream = JobStream(request, here, allowed, wanted)
    await stream.open(_after(request, last_event_id), snapshot)
    return StreamResponse(SseStream(stream))


@router.get("/api/jobs/{id}/stream", **spec(kind="text/event-stream", errors=(404, 429), or_nothing=True))
async def stream_job(
    request: Request,
    here: ServerDep,
    allowed: Followed,
    id: Annotated[str, Path(description="the job's id")],
    snapshot: WithSnapshot = False,
    fields: Fields = None,
    last_event_id: After = None,
) -> Response:
    """Every event of one job until it has ended. 204 means that you have received all of them: don't reconnect."""
    wanted = Wanted.of([id], None, fields)
    of_job(allowed, await here.queue.get(id))
    if headers_only(request):
        return nothing(200)
    stream = JobStream(request, here, allowed, wanted, id)
    if await stream.open(_after(request, last_event_id), snapshot):
        return StreamResponse(SseStream(stream))
    await stream.close()
    return nothing(204)


def nothing(status: int) -> Response:
    return Response(status_code=status, headers=HEADERS, media_type="text/event-stream")


def headers_only(request: Request) -> bool:
    """Whether this is a HEAD request. A stream without a body would never end."""
    return HEADERS_ONLY in request.scope


def _after(request: Request, parameter: str | None) -> int | None:
    return resume_from(request.headers.get("last-event-id") or parameter)


class Frames(Protocol):
    """The frames of a stream of server-sent events."""

    def frames(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


class SseStream:
    """The messages of a stream as frames."""

    def __init__(self, stream: JobStream) -> None:
        self._stream = stream
        self.close = stream.close

    async def frames(self) -> AsyncIterator[bytes]:
        yield b"id: %d\r\nretry: %d\r\n\r\n" % (self._stream.first_id, RETRY_MS)
        async for messages in self._stream.messages():
            yield b"".join(frame(*message) for message in messages)


def _ping() -> Any:
    return ping()  # typed as a ServerSentEvent, which is turned into bytes only if it is none


class StreamResponse(EventSourceResponse):
    """Closes its stream when the response ends, even after an error."""

    def __init__(self, stream: Frames) -> None:
        self._stream = stream
        super().__init__(stream.frames(), headers=HEADERS, ping=PING_S, ping_message_factory=_ping, send_timeout=SEND_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("a stream was closed: its reader took nothing for %d s", SEND_S)
        finally:
            await self._stream.close()


__all__ = ["StreamResponse", "router"]
