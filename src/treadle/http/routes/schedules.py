"""Schedules: read, create, change, run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.bodies import body_of
from treadle.http.errors import ApiError, not_found
from treadle.http.instants import optional_instant
from treadle.http.openapi import spec
from treadle.http.server import Managed, Server, ServerDep, answer, needs
from treadle.model.job import from_ms, rfc3339
from treadle.policy import rules
from treadle.policy.rules import Condition
from treadle.policy.schedule import Schedule

router = APIRouter(tags=["schedules"])
WRITING = [needs("schedules", jobs_api=True)]
# Fields that null clears.
_REMOVABLE = ("cron", "every", "startAt", "endAt", "scope", "scopeId")
# Fields with a different name in Python.
_NAMES = {"startAt": "start_at", "endAt": "end_at", "scopeId": "scope_id", "jitterSeconds": "jitter"}


@router.get("/api/schedules", **spec(doc.ScheduleList))
async def schedules(here: ServerDep, allowed: Managed, topic: req.TopicName | None = None) -> Response:
    """All schedules, or a topic's, oldest first."""
    found = [one for one in await here.queue.schedules.list(topic) if _is_allowed(allowed, one)]
    now = await here.queue.schedules.now()
    return answer({"items": [one.as_json(now) for one in found]})


@router.post("/api/schedules", **spec(doc.ScheduleDocument, body=req.ScheduleBody, errors=(409,)), dependencies=WRITING)
async def create_schedule(
    request: Request,
    here: ServerDep,
    body: Annotated[req.ScheduleBody, Depends(body_of(req.ScheduleBody))],
) -> Response:
    """Create a schedule. Its first run is the next one from now."""
    caller = await here.access.caller(request)
    await _require_topic(request, here, body.topic)
    options = _options(body.model_dump(exclude_unset=True))
    topic = options.pop("topic")
    made = await here.queue.schedules.create(topic, created_by=caller.account_id, **options)
    await here.note(request, "create_schedule", made.id)
    return await _shown(here, made)


@router.get("/api/schedules/{id}", **spec(doc.ScheduleDocument, errors=(404,)))
async def schedule(here: ServerDep, allowed: Managed, id: str) -> Response:
    """One schedule, with its next five runs."""
    return await _shown(here, await _one(here, allowed, id))


@router.get("/api/schedules/{id}/events", **spec(doc.ScheduleEventList, errors=(404,)))
async def schedule_events(here: ServerDep, allowed: Managed, id: str) -> Response:
    """The most recent slots that made no job, and why."""
    found = (await _one(here, allowed, id)).events
    items = [{"type": one.type, "message": one.message, "createdAt": rfc3339(from_ms(one.at_ms))} for one in found]
    return answer({"items": items})


@router.patch(
    "/api/schedules/{id}",
    **spec(doc.ScheduleDocument, body=req.SchedulePatch, errors=(404, 409)),
    dependencies=WRITING,
)
async def change_schedule(
    request: Request,
    here: ServerDep,
    id: str,
    body: Annotated[req.SchedulePatch, Depends(body_of(req.SchedulePatch))],
) -> Response:
    """Change the given fields. This makes no catch-up run."""
    options = _options(body.model_dump(exclude_unset=True))
    if "topic" in options:
        await _require_topic(request, here, options["topic"])
    changed = await here.queue.schedules.update(id, **options)
    switched = "enable_schedule" if options.get("enabled") else "disable_schedule"
    await here.note(request, switched if options.keys() == {"enabled"} else "edit_schedule", changed.id)
    return await _shown(here, changed)


@router.delete("/api/schedules/{id}", **spec(status=204, errors=(404, 409)), dependencies=WRITING)
async def delete_schedule(request: Request, here: ServerDep, id: str) -> Response:
    """Delete a schedule. 409 if the code still defines it, because it would come back; disable it instead."""
    await here.queue.schedules.delete(id)
    await here.note(request, "delete_schedule", id)
    return Response(status_code=204)


@router.post(
    "/api/schedules/{id}/run",
    **spec(doc.JobDocument, body=req.NoBody, errors=(404, 409, 422)),
    dependencies=WRITING,
)
async def run_schedule(
    request: Request, here: ServerDep, id: str, body: Annotated[req.NoBody, Depends(body_of(req.NoBody))]
) -> Response:
    """Make a job now, ignoring `overlap`. The next run does not change."""
    made = await here.queue.schedules.run(id)
    await here.note(request, "run_schedule", id, reason=f"job {made.id}")
    return answer(made.as_json())


async def _one(here: Server, allowed: Condition, id: str) -> Schedule:
    found = await here.queue.schedules.get(id)
    if not _is_allowed(allowed, found):
        raise not_found()
    return found


def _is_allowed(allowed: Condition, schedule: Schedule) -> bool:
    """A rule about jobs allows a schedule if it allows the jobs that the schedule will make, as far as known."""
    return allowed == rules.always or rules.matches(
        allowed,
        {
            "topic": schedule.topic,
            "payload": schedule.payload,
            "scope": schedule.scope,
            "scopeId": schedule.scope_id,
            "createdBy": schedule.created_by,
            "scheduleId": schedule.id,
        },
    )


async def _require_topic(request: Request, here: Server, topic: str) -> None:
    caller = await here.access.caller(request)
    topics = (await here.access.enabled()).allowed_topics
    if topics and not caller.is_superuser and topic not in topics:
        message = f"Jobs of topic {topic} can't be enqueued over HTTP (allowed_topics)."
        raise ApiError(403, "topic_not_allowed", message)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: value for name, value in given.items() if value is not None or name in _REMOVABLE}
    options = {_NAMES.get(name, name): value for name, value in chosen.items()}
    for name in ("startAt", "endAt"):
        if name in given:
            options[_NAMES[name]] = optional_instant(given[name], name)
    return options


async def _shown(here: Server, schedule: Schedule) -> Response:
    return answer(schedule.as_json(await here.queue.schedules.now()))
