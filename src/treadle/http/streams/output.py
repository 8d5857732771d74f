"""What a job emits: as server-sent events while it runs, or a page of it as JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from treadle.events.frames import frame
from treadle.events.output import END, RESET, VALUE, OutputEvent, OutputReader
from treadle.http import documents as doc
from treadle.http.access import of_job
from treadle.http.errors import ApiError, not_found
from treadle.http.openapi import spec
from treadle.http.routes.jobs import JobId, visible
from treadle.http.server import Server, ServerDep, answer
from treadle.http.streams.following import CHECK_S
from treadle.http.streams.sse import RETRY_MS, StreamResponse, headers_only, nothing
from treadle.http.tracking import Followed, Readable, reading
from treadle.model.errors import InvalidInput, JobNotFound, StoreUnavailable
from treadle.model.output import checked_channel
from treadle.policy.rules import Condition

router = APIRouter(tags=["streams"])

# An EventSource that is not closed at the end would connect again and again, only to be told of it.
RETRY_AFTER_THE_END_MS = 86_400_000

Channel = Annotated[str, Path(description="the channel that the handler names, such as tokens")]
From = Annotated[Literal["start", "latest"], Query(alias="from", description="latest: only what comes next")]
After = Annotated[
    int | None, Query(ge=0, description="begin after the value with this number, for clients without Last-Event-ID")
]


@router.get("/api/jobs/{id}/output", **spec(doc.ChannelList, errors=(404,)))
async def output_channels(here: ServerDep, allowed: Readable, id: JobId) -> Response:
    """The channels that the job has written to."""
    await visible(here, allowed, id)
    state = (await here.queue.store.output_states([id])).get(id)
    items = [
        {"channel": name, "values": one.last, "bytes": one.bytes}
        for name, one in sorted((state.channels if state else {}).items())
    ]
    return answer({"items": items})


@router.get("/api/jobs/{id}/output/{channel}", **spec(doc.OutputPageDocument, errors=(404,), or_stream=True))
async def job_output(
    request: Request,
    here: ServerDep,
    allowed: Followed,
    id: JobId,
    channel: Channel,
    after: After = None,
    begin: Annotated[
        Literal["start", "latest"], Query(alias="from", description="latest: only what comes next")
    ] = "start",
) -> Response:
    """What the job emits to a channel, in order, from its start or your place until the job has ended.

    Events: `value` (the value as data, its number as id), `reset` {attempt} when a new attempt writes to the channel,
    `end` {status}, after which there is nothing more. With `Accept: application/json` the values so far, a page at a
    time.
    """
    await visible(here, allowed, id)
    checked_channel(channel)
    if _wants_json(request):
        return await _page(here, id, channel, after or 0)
    if headers_only(request):
        return nothing(200)
    place = _resume_from(request)
    stream = OutputStream(request, here, id, channel, after if place is None else place)
    await stream.open(latest=begin == "latest" and place is None)
    return StreamResponse(stream)


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def _resume_from(request: Request) -> int | None:
    """After which value; a text that is none of our ids starts over."""
    text = request.headers.get("last-event-id")
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


async def _page(here: Server, id: str, channel: str, after: int) -> Response:
    page = await here.queue.store.output(id, channel, after)
    if page is None:
        raise not_found()
    items = [
        {"id": number, "attempt": piece.attempt, "reset": piece.resets and number == piece.first, "value": value}
        for piece in page.pieces
        for number, value in enumerate(piece.values, piece.first)
    ]
    following = items[-1]["id"] if items else min(after, page.last)
    return answer({"items": items, "next": following, "more": following < page.last, "ended": page.status is not None})


class OutputStream:
    """The stream of one reader. It reads a page when it has sent the one before, so a slow reader costs no memory."""

    def __init__(self, request: Request, here: Server, id: str, channel: str, after: int | None) -> None:
        self._request = request
        self._here = here
        self._id = id
        self._reader = OutputReader(here.queue.output_watch, here.queue.store, id, channel, after or 0)
        self._check_at = time.monotonic() + CHECK_S

    async def open(self, *, latest: bool) -> None:
        try:
            await self._reader.begin(latest=latest)
        except JobNotFound:
            raise not_found() from None

    async def close(self) -> None:
        self._reader.close()

    async def frames(self) -> AsyncIterator[bytes]:
        """Ends when the job has ended, the reader loses access, or the server stops."""
        yield b"retry: %d\r\n\r\n" % RETRY_MS
        try:
            while await self._may_go_on():
                events = await self._reader.next(max(self._check_at - time.monotonic(), 0.0))
                if events:
                    yield b"".join(map(_frame, events))
                    if events[-1].kind == END:
                        return
        except (StoreUnavailable, InvalidInput):
            return  # a client that reconnects goes on where it was

    async def _may_go_on(self) -> bool:
        """Repeats the access check at intervals: passwords change, keys are revoked, rules are edited."""
        if time.monotonic() < self._check_at:
            return True
        self._check_at = time.monotonic() + CHECK_S
        try:
            allowed: Condition = await reading(self._request, self._here, self._id, anew=True)
            (job,) = await self._here.jobs([self._id])
            if job is not None:
                of_job(allowed, job)
        except ApiError:
            return False
        except StoreUnavailable:
            pass  # without the store there is no output either
        return True


def _frame(event: OutputEvent) -> bytes:
    if event.kind == VALUE:
        return frame(VALUE, to_json(event.value), event.id)
    if event.kind == RESET:
        return frame(RESET, to_json({"attempt": event.attempt}))
    return b"retry: %d\r\n%s" % (RETRY_AFTER_THE_END_MS, frame(END, to_json({"status": event.status})))
