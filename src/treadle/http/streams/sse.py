"""Server-sent events about all jobs that the caller may see, or about one job."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Query
from pydantic import Field
from pydantic_core import to_json
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle.events.feed import RESYNC, FeedStopped, Listener
from treadle.events.frames import PING_S, SNAPSHOT, frame, ping, snapshot_of
from treadle.events.ring import FeedEvent
from treadle.http.access import of_job
from treadle.http.errors import ApiError
from treadle.http.openapi import spec
from treadle.http.request_models import TopicName
from treadle.http.security_headers import HEADERS_ONLY
from treadle.http.server import Managed, Server, ServerDep
from treadle.http.streams.wanted import MOST_IDS, Wanted
from treadle.model.errors import QueryTooSlow, StoreUnavailable
from treadle.model.job import Job
from treadle.policy import rules
from treadle.policy.rules import Condition

log = logging.getLogger("treadle.http")
router = APIRouter(tags=["streams"])

# How often a stream checks again what its reader may see.
CHECK_S = 3.0
RETRY_MS = 2000
# A reader that accepts no data for this long is disconnected.
SEND_S = 60.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
ENDINGS = frozenset(f"job:{name}" for name in "completed failed cancelled expired deleted".split())

WithSnapshot = Annotated[bool, Query(description="first send the jobs in their current state")]
After = Annotated[
    str | None,
    Query(alias="lastEventId", max_length=100, description="for clients that can't send the header Last-Event-ID"),
]
JobIds = Annotated[
    list[Annotated[str, Field(max_length=255)]] | None,
    Query(max_length=MOST_IDS, description="only these jobs; may be repeated"),
]
Fields = Annotated[
    str | None,
    Query(max_length=2000, description="what jobs carry besides their id, as names with commas between them"),
]


@router.get("/api/jobs/stream", **spec(kind="text/event-stream", errors=(429,)))
async def stream_jobs(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    id: JobIds = None,
    topic: Annotated[TopicName | None, Query(description="only jobs of this topic")] = None,
    snapshot: WithSnapshot = False,
    fields: Fields = None,
    last_event_id: After = None,
) -> Response:
    """Every event of every job that you may see, or of some of them, until you disconnect."""
    wanted = Wanted.of(id, topic, fields)
    if headers_only(request):
        return nothing(200)
    stream = Stream(request, here, allowed, wanted)
    await stream.open(_resume_from(request, last_event_id), snapshot)
    return StreamResponse(stream)


@router.get("/api/jobs/{id}/stream", **spec(kind="text/event-stream", errors=(404, 429), or_nothing=True))
async def stream_job(
    request: Request,
    here: ServerDep,
    allowed: Managed,
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
    stream = Stream(request, here, allowed, wanted, id)
    if await stream.open(_resume_from(request, last_event_id), snapshot):
        return StreamResponse(stream)
    await stream.close()
    return nothing(204)


def nothing(status: int) -> Response:
    return Response(status_code=status, headers=HEADERS, media_type="text/event-stream")


def headers_only(request: Request) -> bool:
    """Whether this is a HEAD request. A stream without a body would never end."""
    return HEADERS_ONLY in request.scope


def _resume_from(request: Request, parameter: str | None) -> int | None:
    """None starts from now. Anything that is not one of our ids becomes -1, which is never in the ring."""
    text = request.headers.get("last-event-id") or parameter
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


class Stream:
    """The stream of one reader."""

    def __init__(
        self, request: Request, here: Server, allowed: Condition, wanted: Wanted, job_id: str | None = None
    ) -> None:
        """A stream with a `job_id` ends with that job."""
        self._request = request
        self._here = here
        self._allowed = allowed
        self._wanted = wanted
        self._job_id = job_id
        self._listener: Listener | None = None
        self._caller: str | None = None
        """Who has the place of this stream; None: it has none."""
        self._ready: list[bytes] = []
        self._over = False
        self._first_id = 0
        self._check_at = time.monotonic() + CHECK_S

    async def open(self, after: int | None, snapshot: bool) -> bool:
        """Join the feed before the response starts, so that no later event is missed.

        False if the stream is for one job that has ended and the reader has received all its events.
        """
        caller = await self._here.access.who(self._request)
        self._here.streams.take(caller)
        self._caller = caller
        try:
            self._listener = listener = await self._here.feed.listener(after, self._sees)
            self._first_id = listener.behind
            if listener.missed:
                await self._resync()
            elif after is None and (snapshot or self._job_id):
                frame_ = await self._snapshot()
                self._ready += [frame_] if snapshot else []
            elif after is not None and self._job_id:
                ended = _have_ended(await listener.catch_up([self._job_id]))
                return listener.waiting() or not ended
        except BaseException:
            await self.close()
            raise
        return True

    async def close(self) -> None:
        if self._caller is not None:
            self._here.streams.give_back(self._caller)
            self._caller = None
        if self._listener:
            await self._listener.close()

    def _sees(self, job: Mapping[str, Any]) -> bool:
        if not self._wanted.includes(job):
            return False
        return self._allowed is True or rules.matches(self._allowed, job)

    async def frames(self) -> AsyncIterator[bytes]:
        """Ends when the stream's job has ended, the reader loses access, or the feed stops."""
        assert self._listener
        yield b"id: %d\r\nretry: %d\r\n\r\n" % (self._first_id, RETRY_MS)
        try:
            while True:
                for frame_ in self._ready:
                    yield frame_
                self._ready = []
                if self._over or not await self._may_go_on():
                    return
                await self._next(self._listener)
        except (FeedStopped, StoreUnavailable, QueryTooSlow):
            return  # a client that reconnects gets the error for a slow snapshot

    async def _next(self, listener: Listener) -> None:
        told = await listener.next(self._check_at - time.monotonic())
        if told is None:
            return
        if told.event == RESYNC:
            await self._resync(told)
        else:
            self._ready.append(frame(told.event, self._wanted.data(told), told.id))
            self._over = self._job_id is not None and told.event in ENDINGS

    async def _resync(self, told: FeedEvent | None = None) -> None:
        """Some events were lost: tell the reader and send the current state."""
        assert self._listener
        told = told or await self._listener.next()
        assert told
        self._ready += [frame(told.event, told.data), await self._snapshot()]

    async def _snapshot(self) -> bytes:
        assert self._listener
        condition = None if self._allowed is True else self._allowed
        async with self._here.searching(self._request, "snapshot"):
            last, found = await self._listener.snapshot(self._wanted.listing(condition))
        self._over = self._job_id is not None and _have_ended(found)
        # A truncated job is one that the listing's condition let through.
        seen = (document for job in found if self._sees(document := job.as_json()) or job.truncated)
        jobs = (self._wanted.narrowed(document) for document in seen)
        return frame(SNAPSHOT, to_json(snapshot_of(jobs)), last)

    async def _may_go_on(self) -> bool:
        """Repeats the access check at intervals: passwords change, keys are revoked, rules are edited."""
        if time.monotonic() < self._check_at:
            return True
        self._check_at = time.monotonic() + CHECK_S
        try:
            await self._here.access.caller(self._request, anew=True)
            self._allowed = await self._here.access.manage(self._request)
        except ApiError:
            return False
        except StoreUnavailable:
            pass  # without the store there are no events either
        return True


def _have_ended(jobs: Sequence[Job]) -> bool:
    """Ended, or deleted since."""
    return all(job.ended for job in jobs)


def _ping() -> Any:
    return ping()  # typed as a ServerSentEvent, which is turned into bytes only if it is none


class Frames(Protocol):
    """The frames of a stream of server-sent events."""

    def frames(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


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


__all__ = ["Stream", "StreamResponse", "router"]
