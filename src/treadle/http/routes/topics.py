"""Topics: what there is, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from treadle import insights, rules
from treadle.http import documents as doc
from treadle.http.bodies import body_of
from treadle.http.instants import optional_instant
from treadle.http.openapi import spec
from treadle.http.server import Here, Managed, Server, answer, needs
from treadle.job import from_ms, rfc3339
from treadle.store.base import FOREVER, Topic

router = APIRouter(tags=["topics"])
STEERED = [needs("topics", jobs_api=True)]


@router.get("/api/topics", **spec(doc.TopicList))
async def topics(here: Here, allowed: Managed) -> Response:
    """The topics that there are, with what waits and runs."""
    found = await here.queue.topics()
    if allowed != rules.always:
        found = await insights.topics_of(here.queue.store, allowed, found)
    return answer({"items": [_as_json(topic) for topic in found]})


@router.post(
    "/api/topics/{topic}/pause",
    **spec(doc.TopicDocument, body=doc.PauseBody),
    dependencies=STEERED,
)
async def pause(
    here: Here, topic: doc.TopicName, body: Annotated[doc.PauseBody, Depends(body_of(doc.PauseBody))]
) -> Response:
    """Start no more jobs of this topic, for good or until then; they can still be enqueued."""
    await here.queue.pause(topic, optional_instant(body.until, "until"))
    return await _one(here, topic)


@router.post("/api/topics/{topic}/resume", **spec(doc.TopicDocument), dependencies=STEERED)
async def resume(here: Here, topic: doc.TopicName) -> Response:
    """Start its jobs again."""
    await here.queue.resume(topic)
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
