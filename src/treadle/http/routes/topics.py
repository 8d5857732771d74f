"""Topics: list, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.bodies import body_of
from treadle.http.instants import optional_instant
from treadle.http.openapi import spec
from treadle.http.server import Managed, Server, ServerDep, answer, needs
from treadle.insights import stats
from treadle.model.job import from_ms, rfc3339
from treadle.policy import rules
from treadle.store.views import FOREVER, Topic

router = APIRouter(tags=["topics"])
STEERED = [needs("topics", jobs_api=True)]


@router.get("/api/topics", **spec(doc.TopicList))
async def topics(request: Request, here: ServerDep, allowed: Managed) -> Response:
    """All topics with their pending and running counts."""
    found = await here.queue.topics()
    if allowed != rules.always:
        async with here.searching(request):
            found = await stats.topics_of(here.queue.store, allowed, found)
    return answer({"items": [_as_json(topic) for topic in found]})


@router.post(
    "/api/topics/{topic}/pause",
    **spec(doc.TopicDocument, body=req.PauseBody),
    dependencies=STEERED,
)
async def pause(
    request: Request,
    here: ServerDep,
    topic: req.TopicGroup,
    body: Annotated[req.PauseBody, Depends(body_of(req.PauseBody))],
) -> Response:
    """Stop starting jobs of this topic, indefinitely or until a given time. Jobs can still be enqueued."""
    await here.queue.pause(topic, optional_instant(body.until, "until"))
    await here.note(request, "pause", topic, filter=f"until {body.until}" if body.until else "until resumed")
    return await _one(here, topic)


@router.post("/api/topics/{topic}/resume", **spec(doc.TopicDocument, body=req.NoBody), dependencies=STEERED)
async def resume(
    request: Request,
    here: ServerDep,
    topic: req.TopicGroup,
    body: Annotated[req.NoBody, Depends(body_of(req.NoBody))],
) -> Response:
    """Start jobs of this topic again."""
    await here.queue.resume(topic)
    await here.note(request, "resume", topic)
    return await _one(here, topic)


async def _one(here: Server, name: str) -> Response:
    found = [topic for topic in await here.queue.topics() if topic.topic == name]
    return answer(_as_json(found[0] if found else Topic(name, None)))


def _as_json(topic: Topic) -> dict[str, Any]:
    until = topic.paused_until
    return {
        "topic": topic.topic,
        "paused": until is not None,
        "pausedUntil": None if until is None or until >= FOREVER else rfc3339(from_ms(until)),
        "pending": topic.pending,
        "processing": topic.processing,
    }
