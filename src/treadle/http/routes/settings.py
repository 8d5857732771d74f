"""Settings that operators change at run time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http.bodies import body_of
from treadle.http.openapi import spec
from treadle.http.server import Here, Server, answer, needs
from treadle.policy import format_ms

router = APIRouter(tags=["settings"], dependencies=[needs("settings")])


@router.get("/api/settings", **spec(doc.SettingsDocument))
async def settings(here: Here) -> Response:
    """Who may do what over HTTP, and how long ended jobs are kept."""
    return await _current(here)


@router.patch("/api/settings", **spec(doc.SettingsDocument, body=doc.SettingsPatch))
async def change_settings(
    here: Here, body: Annotated[doc.SettingsPatch, Depends(body_of(doc.SettingsPatch))]
) -> Response:
    """Change what is given; a rule that can't be read is refused, and the old one stays."""
    if body.jobs is not None:
        changes = {name: value for name, value in body.jobs.model_dump(exclude_unset=True).items() if value is not None}
        await here.site.patch(changes)
    return await _current(here)


async def _current(here: Server) -> Response:
    jobs, kept = await here.site.jobs(), here.queue.settings
    return answer(
        {
            "jobs": {
                "enqueue_rule": jobs.enqueue_rule,
                "manage_rule": jobs.manage_rule,
                "http_enabled": jobs.http_enabled,
                "allowed_topics": list(jobs.allowed_topics),
            },
            "retention": {
                "stale_after": format_ms(kept.stale_after_ms),
                "delete_after": format_ms(kept.delete_after_ms),
            },
            "webhooks": {},
        }
    )
