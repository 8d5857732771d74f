"""Jobs as a request would make them, for `enqueue_rule` to check: new ones, and old ones that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from treadle.http import request_models as req
from treadle.http.instants import optional_instant
from treadle.model.durations import duration_ms, priority_value
from treadle.model.fields import NEW_JOB
from treadle.model.job import Job, rfc3339
from treadle.model.template import Template


class Candidate(NamedTuple):
    job: Mapping[str, Any]
    """In JSON form, with the defaults of its template."""
    body: Mapping[str, Any]
    """The body of an enqueue that would make it."""


def new(
    body: req.EnqueueBody, options: Mapping[str, Any], template: Template, made: datetime, by: str | None
) -> dict[str, Any]:
    """The job as it would be stored."""
    now = rfc3339(made)
    run_at, expires_at = options.get("run_at"), options.get("expires_at")
    if options.get("delay") is not None:
        run_at = made + timedelta(milliseconds=duration_ms(options["delay"], "delay"))
    if expires_at is None and template.expires is not None:
        expires_at = made + timedelta(milliseconds=duration_ms(template.expires))
    priority = options.get("priority")
    attempts = body.maxAttempts or body.maxRetries or template.retry.max_attempts
    return {
        **NEW_JOB,
        "topic": body.topic,
        "priority": priority_value(template.priority if priority is None else priority),
        "payload": body.payload,
        "runAt": rfc3339(run_at) or now,
        "expiresAt": rfc3339(expires_at),
        "createdAt": now,
        "updatedAt": now,
        "maxAttempts": attempts,
        "maxRetries": attempts,
        "scope": body.scope,
        "scopeId": body.scopeId,
        "createdBy": by,
        "idempotencyKey": body.idempotencyKey,
        "capability": body.capability or template.capability,
        "webhookUrl": body.webhookUrl,
    }


_KEPT = "topic priority payload runAt expiresAt createdAt maxAttempts maxRetries scope scopeId createdBy".split()
_KEPT += ["id", "idempotencyKey", "capability", "webhookUrl"]
_SENT = ("topic", "payload", "scope", "scopeId", "idempotencyKey")


def requeued(job: Job, template: Template, payload: Mapping[str, Any]) -> Candidate:
    """An ended job that begins anew with another payload. It is due now, and its deadline no longer counts."""
    now = rfc3339(datetime.now(UTC))
    return _remade(job, template, {"payload": payload, "runAt": now, "expiresAt": None})


def patched(job: Job, template: Template, body: req.JobPatch | req.BulkBody) -> Candidate:
    """A pending job with other options."""
    given = {name: getattr(body, name) for name in ("runAt", "priority") if getattr(body, name) is not None}
    if (attempts := body.maxAttempts or body.maxRetries) is not None:
        given |= {"maxAttempts": attempts, "maxRetries": attempts}
    sent = dict(given)
    if "runAt" in given:
        given["runAt"] = rfc3339(optional_instant(body.runAt, "runAt"))
    if "priority" in given:
        given["priority"] = priority_value(given["priority"])
    if job.expires_at is not None and template.expires is None:
        sent["expiresAt"] = rfc3339(job.expires_at)
    candidate = _remade(job, template, given)
    return candidate._replace(body={**candidate.body, **sent})


def _remade(job: Job, template: Template, changes: Mapping[str, Any]) -> Candidate:
    stored = job.as_json()
    made = {**NEW_JOB, **{name: stored[name] for name in _KEPT}, "updatedAt": stored["createdAt"], **changes}
    body = {name: made[name] for name in _SENT if made[name] is not None}
    # What its template gives to every job needs not be sent.
    if made["priority"] != priority_value(template.priority):
        body["priority"] = made["priority"]
    if made["maxAttempts"] != template.retry.max_attempts:
        body |= {"maxAttempts": made["maxAttempts"], "maxRetries": made["maxAttempts"]}
    if made["capability"] != template.capability:
        body["capability"] = made["capability"]
    return Candidate(made, body)
