"""Events as they happen, as server-sent events: of every job that the caller may see, or of one."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic_core import to_json
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle import rules
from treadle.errors import StoreUnavailable
from treadle.feed import RESYNC, FeedStopped, Listener, Told
from treadle.http.access import of_job
from treadle.http.errors import ApiError
from treadle.http.openapi import spec
from treadle.http.server import Here, Managed, Server
from treadle.http.shell import HEADERS_ONLY
from treadle.job import Job, rfc3339
from treadle.rules import Condition
from treadle.store.base import Listing

log = logging.getLogger("treadle.http")
router = APIRouter(tags=["streams"])

SNAPSHOT = "snapshot"
SNAPSHOT_JOBS = 1000
PING_S = 15.0
# How often a stream asks again whether its reader may still see what it tells.
CHECK_S = 3.0
RETRY_MS = 2000
# A reader that takes nothing for so long is gone.
SEND_S = 60.0
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
ENDINGS = frozenset(f"job:{name}" for name in "completed failed cancelled expired deleted".split())

WithSnapshot = Annotated[bool, Query(description="send the jobs as they are now first")]
After = Annotated[
    str | None,
    Query(alias="lastEventId", max_length=100, description="for clients that can't send the header Last-Event-ID"),
]


@router.get("/api/jobs/stream", **spec(kind="text/event-stream"))
async def stream_jobs(
    request: Request, here: Here, allowed: Managed, snapshot: WithSnapshot = False, last_event_id: After = None
) -> Response:
    """Every event of every job that you may see, until you hang up."""
    if _headers_only(request):
        return _nothing(200)
    stream = Stream(request, here, allowed)
    await stream.open(_resume_from(request, last_event_id), snapshot)
    return StreamResponse(stream)


@router.get("/api/jobs/{id}/stream", **spec(kind="text/event-stream", errors=(404,), or_nothing=True))
async def stream_job(
    request: Request,
    here: Here,
    allowed: Managed,
    id: Annotated[str, Path(description="the job's id")],
    snapshot: WithSnapshot = False,
    last_event_id: After = None,
) -> Response:
    """Every event of one job, until it has ended. 204: you were told all of it, there is no need to come back."""
    of_job(allowed, await here.queue.get(id))
    if _headers_only(request):
        return _nothing(200)
    stream = Stream(request, here, allowed, id)
    if await stream.open(_resume_from(request, last_event_id), snapshot):
        return StreamResponse(stream)
    await stream.close()
    return _nothing(204)


def _nothing(status: int) -> Response:
    return Response(status_code=status, headers=HEADERS, media_type="text/event-stream")


def _headers_only(request: Request) -> bool:
    """A stream without a body would never end."""
    return HEADERS_ONLY in request.scope


def _resume_from(request: Request, parameter: str | None) -> int | None:
    """None: from now on. What is no id of ours is one that no ring knows."""
    text = request.headers.get("last-event-id") or parameter
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


class Stream:
    """What one reader is told."""

    def __init__(self, request: Request, here: Server, allowed: Condition, job_id: str | None = None) -> None:
        self._request = request
        self._here = here
        self._allowed = allowed
        self._job_id = job_id
        self._listener: Listener | None = None
        self._ready: list[bytes] = []
        self._over = False
        self._first_id = 0
        self._check_at = time.monotonic() + CHECK_S

    async def open(self, after: int | None, snapshot: bool) -> bool:
        """Take a place in the feed, before the answer begins: nothing that happens from then on is missed.

        False: the one job had ended, and its reader has been told all of it.
        """
        self._listener = listener = await self._here.feed.listener(after, self._sees)
        self._first_id = listener.behind
        try:
            if listener.missed:
                await self._resync()
            elif after is None and (snapshot or self._job_id):
                frame_ = await self._snapshot()
                self._ready += [frame_] if snapshot else []
            elif after is not None and self._job_id:
                ended = _have_ended(await listener.catch_up(self._job_id))
                return listener.waiting() or not ended
        except BaseException:
            await self.close()
            raise
        return True

    async def close(self) -> None:
        if self._listener:
            await self._listener.close()

    def _sees(self, job: Mapping[str, Any]) -> bool:
        if self._job_id is not None and job["id"] != self._job_id:
            return False
        return self._allowed is True or rules.matches(self._allowed, job)

    async def frames(self) -> AsyncIterator[bytes]:
        """Ends when the one job has ended, the reader may not see it any more, or the feed is stopped."""
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
        except (FeedStopped, StoreUnavailable):
            return

    async def _next(self, listener: Listener) -> None:
        told = await listener.next(self._check_at - time.monotonic())
        if told is None:
            return
        if told.event == RESYNC:
            await self._resync(told)
        else:
            self._ready.append(frame(told.event, told.data, told.id))
            self._over = self._job_id is not None and told.event in ENDINGS

    async def _resync(self, told: Told | None = None) -> None:
        """Some events are gone: the reader is told so, and how everything is now."""
        assert self._listener
        told = told or await self._listener.next()
        assert told
        self._ready += [frame(told.event, told.data), await self._snapshot()]

    async def _snapshot(self) -> bytes:
        assert self._listener
        condition = None if self._allowed is True else self._allowed
        wanted = self._job_id or Listing(limit=SNAPSHOT_JOBS, condition=condition)
        last, found = await self._listener.snapshot(wanted)
        self._over = self._job_id is not None and _have_ended(found)
        jobs = [document for document in (job.as_json() for job in found) if self._sees(document)]
        return frame(SNAPSHOT, to_json({"jobs": jobs}), last)

    async def _may_go_on(self) -> bool:
        """Asks again now and then: passwords change, keys are revoked, rules are edited."""
        if time.monotonic() < self._check_at:
            return True
        self._check_at = time.monotonic() + CHECK_S
        try:
            await self._here.access.caller(self._request, anew=True)
            self._allowed = await self._here.access.manage(self._request)
        except ApiError:
            return False
        except StoreUnavailable:
            pass  # while it is away there is nothing to tell either
        return True


def _have_ended(jobs: Sequence[Job]) -> bool:
    """Ended, or deleted meanwhile."""
    return all(job.ended for job in jobs)


def frame(event: str, data: bytes, id: int | None = None) -> bytes:
    """One server-sent event; `data` is JSON, which has no line breaks of its own."""
    head = b"" if id is None else b"id: %d\r\n" % id
    return b"%sevent: %s\r\ndata: %s\r\n\r\n" % (head, event.encode(), data)


def _ping() -> Any:
    return frame("ping", to_json({"at": rfc3339(datetime.now(UTC))}))


class StreamResponse(EventSourceResponse):
    """Closes its stream however it ends."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        super().__init__(stream.frames(), headers=HEADERS, ping=PING_S, ping_message_factory=_ping, send_timeout=SEND_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("a reader of a stream took nothing for %d s: hung up", SEND_S)
        finally:
            await self._stream.close()


__all__ = ["Stream", "StreamResponse", "frame", "router"]
