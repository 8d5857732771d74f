"""Settings that operators change at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.access import parsed
from treadle.http.bodies import body_of
from treadle.http.errors import ApiError, bad_field
from treadle.http.openapi import spec
from treadle.http.server import ServerDep, answer, needs
from treadle.model.durations import format_ms
from treadle.policy.retention import Ages
from treadle.policy.rules import InvalidRule
from treadle.queue.runtime_settings import EXCEPTIONS, StoredSettings

router = APIRouter(tags=["settings"], dependencies=[needs("settings")])


@router.get("/api/settings", **spec(doc.SettingsDocument))
async def settings(here: ServerDep) -> Response:
    """The access rules for HTTP callers and how long ended jobs are kept."""
    return _shown(await here.site.settings())


@router.patch("/api/settings", **spec(doc.SettingsDocument, body=req.SettingsPatch, errors=(409,)))
async def change_settings(
    request: Request, here: ServerDep, body: Annotated[req.SettingsPatch, Depends(body_of(req.SettingsPatch))]
) -> Response:
    """Change the given settings, all or none; null resets one to its default. An invalid rule is refused."""
    given = body.model_dump(exclude_unset=True)
    changes: dict[str, Any] = given.get("jobs") or {}
    _check_rules(changes)
    if "access_rule" in changes:
        changes |= _both_rules(changes)
    changes |= given.get("webhooks") or {}
    changes |= _retention_changes(given.get("retention") or {})
    changed = await here.site.change(changes, body.version)
    if not changes:
        return _shown(changed)
    told = {**changes, **{name: _told(changes[name]) for name in EXCEPTIONS if name in changes}}
    await here.note(request, "settings", filter=", ".join(f"{name}: {value}" for name, value in told.items()))
    return _shown(changed)


def _retention_changes(given: dict[str, Any]) -> dict[str, Any]:
    """By the names of the stored settings."""
    changes = {f"{name}_ms": value for name, value in given.items() if name not in EXCEPTIONS}
    for kind in EXCEPTIONS:
        if kind in given:
            changes[kind] = given[kind] and {
                name: ages and {f"{one}_ms": ms for one, ms in ages.items()} for name, ages in given[kind].items()
            }
    return changes


def _told(exceptions: Mapping[str, Mapping[str, int] | None] | None) -> str:
    """What the audit log says of a change of exceptions."""
    if exceptions is None:
        return "none"
    return "; ".join(
        f"{name} " + (", ".join(f"{one}: {ms}" for one, ms in ages.items()) if ages else "as others")
        for name, ages in exceptions.items()
    )


def _check_rules(changes: dict[str, Any]) -> None:
    data = {}
    for name in ("enqueue_rule", "manage_rule", "access_rule"):
        try:
            parsed(changes.get(name) or "")
        except InvalidRule as error:
            data[name] = {"code": "validation_invalid_rule", "message": f"Invalid rule: {error.message}"}
    if data:
        name, first = next(iter(data.items()))
        raise ApiError(400, "invalid_rule", f"{name}: {first['message']}", {"jobs": data, **data})


def _both_rules(changes: dict[str, Any]) -> dict[str, Any]:
    rule = changes.pop("access_rule")
    if "enqueue_rule" in changes or "manage_rule" in changes:
        raise bad_field("access_rule", "sets both rules; give it alone, or enqueue_rule and manage_rule")
    return {"enqueue_rule": rule, "manage_rule": rule}


def _shown(site: StoredSettings) -> Response:
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
                "output_after": format_ms(site.output_after_ms),
                "by_status": _exceptions(site.by_status),
                "by_topic": _exceptions(site.by_topic),
            },
            "webhooks": {"job_urls": site.job_urls},
            "version": site.version,
        }
    )


def _exceptions(known: Mapping[str, Ages]) -> dict[str, dict[str, str | None]]:
    return {
        name: {
            "stale_after": None if ages.stale_after_ms is None else format_ms(ages.stale_after_ms),
            "delete_after": None if ages.delete_after_ms is None else format_ms(ages.delete_after_ms),
        }
        for name, ages in known.items()
    }
