"""Settings that operators change at run time."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http.access import parsed
from treadle.http.bodies import body_of
from treadle.http.errors import ApiError
from treadle.http.openapi import spec
from treadle.http.server import Here, answer, needs
from treadle.policy import format_ms
from treadle.rules import InvalidRule
from treadle.site import SiteSettings

router = APIRouter(tags=["settings"], dependencies=[needs("settings")])


@router.get("/api/settings", **spec(doc.SettingsDocument))
async def settings(here: Here) -> Response:
    """Who may do what over HTTP, and how long ended jobs are kept."""
    return _shown(await here.site.settings())


@router.patch("/api/settings", **spec(doc.SettingsDocument, body=doc.SettingsPatch))
async def change_settings(
    here: Here, body: Annotated[doc.SettingsPatch, Depends(body_of(doc.SettingsPatch))]
) -> Response:
    """Change what is given, all or nothing; null goes back to the default. A rule that can't be read is refused."""
    given = body.model_dump(exclude_unset=True)
    changes: dict[str, Any] = given.get("jobs") or {}
    _check_rules(changes)
    changes |= {f"{name}_ms": value for name, value in (given.get("retention") or {}).items()}
    return _shown(await here.site.change(changes) if changes else await here.site.settings())


def _check_rules(changes: dict[str, Any]) -> None:
    data = {}
    for name in ("enqueue_rule", "manage_rule"):
        try:
            parsed(changes.get(name) or "")
        except InvalidRule as error:
            data[name] = {"code": "validation_invalid_rule", "message": f"Invalid rule: {error.message}"}
    if data:
        name, first = next(iter(data.items()))
        raise ApiError(400, "invalid_rule", f"{name}: {first['message']}", {"jobs": data, **data})


def _shown(site: SiteSettings) -> Response:
    return answer(
        {
            "jobs": {
                "enqueue_rule": site.enqueue_rule,
                "manage_rule": site.manage_rule,
                "http_enabled": site.http_enabled,
                "allowed_topics": list(site.allowed_topics),
            },
            "retention": {
                "stale_after": format_ms(site.stale_after_ms),
                "delete_after": format_ms(site.delete_after_ms),
            },
            "webhooks": {},
        }
    )
