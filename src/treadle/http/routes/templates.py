"""Templates: read, switch off and on, roll back. Their definitions come from the application's code."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.bodies import json_object, read_body
from treadle.http.errors import not_found
from treadle.http.openapi import spec
from treadle.http.server import Managed, Server, ServerDep, answer, needs
from treadle.model.errors import CodeDefined
from treadle.policy import rules
from treadle.policy.rules import Condition
from treadle.policy.saved_template import SavedTemplate

router = APIRouter(tags=["templates"])
_DEFINED_IN_CODE = doc.TemplateDocument.model_fields.keys() - req.TemplatePatch.model_fields.keys()


@router.get("/api/templates", **spec(doc.TemplateList))
async def templates(here: ServerDep, allowed: Managed) -> Response:
    """The current template of every topic that has one."""
    found = [one for one in await here.queue.templates.list() if _is_allowed(allowed, one.topic)]
    return answer({"items": [one.as_json() for one in found]})


@router.get("/api/templates/{topic}", **spec(doc.TemplateDocument, errors=(404,)))
async def template(here: ServerDep, allowed: Managed, topic: req.TopicName) -> Response:
    """The current template of a topic."""
    return answer((await _one(here, allowed, topic)).as_json())


@router.get("/api/templates/{topic}/versions", **spec(doc.TemplateVersionList, errors=(404,)))
async def template_versions(here: ServerDep, allowed: Managed, topic: req.TopicName) -> Response:
    """Every definition that was saved for a topic, newest first."""
    await _one(here, allowed, topic)
    return answer({"items": await here.queue.templates.versions(topic)})


async def _patch(request: Request, here: ServerDep, topic: req.TopicName) -> req.TemplatePatch:
    """CodeDefined for the fields of a definition."""
    if fixed := sorted((await json_object(request)).keys() & _DEFINED_IN_CODE):
        await here.queue.templates.get(topic)  # raises if there is none
        message = f"the template of {topic} is defined in code: change {', '.join(fixed)} there"
        raise CodeDefined(message, topic=topic)
    return await read_body(request, req.TemplatePatch)


@router.patch(
    "/api/templates/{topic}",
    **spec(doc.TemplateDocument, body=req.TemplatePatch, errors=(404, 409)),
    dependencies=[needs("templates", jobs_api=True)],
)
async def change_template(
    request: Request, here: ServerDep, topic: req.TopicName, body: Annotated[req.TemplatePatch, Depends(_patch)]
) -> Response:
    """Switch a template off or on, or make a saved version the current one."""
    changed = await here.queue.templates.update(
        topic, enabled=body.enabled, version=body.useVersion, expected=body.version
    )
    if body.useVersion is not None:
        await here.note(request, "use_template", topic, reason=f"version {body.useVersion}")
    if body.enabled is not None:
        await here.note(request, "enable_template" if body.enabled else "disable_template", topic)
    return answer(changed.as_json())


async def _one(here: Server, allowed: Condition, topic: str) -> SavedTemplate:
    if not _is_allowed(allowed, topic):
        raise not_found()
    return await here.queue.templates.get(topic)


def _is_allowed(allowed: Condition, topic: str) -> bool:
    """A rule about jobs allows a template if the topic alone decides and it allows that."""
    return allowed == rules.always or rules.matches(allowed, {"topic": topic})
