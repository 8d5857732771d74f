"""A new job as `admission` asks about it: its unique keys and the hash of its payload, the same in every store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from pydantic_core import from_json

from treadle.model.secrets import hide
from treadle.policy.admission import Request, UniqueKey
from treadle.store.values import NewJob


def request_of(job: NewJob) -> Request:
    hashed = None if job.given.idempotency_key is None else _payload_hash(job)
    return Request(job.id, job.topic, job.unique, hashed, job.repeatable, job.limit, may_replace=job.may_replace)


def returning(job: NewJob, held: UniqueKey | None) -> Request:
    """An ended job that comes back with another payload. It needs no leave for the idempotency key that it holds."""
    request = request_of(job)
    return replace(request, unique=tuple(key for key in request.unique if key != held), returning=True)


def owned_as(job: NewJob, old: UniqueKey, old_key: str) -> NewJob:
    """The job with the owner that its old idempotency key has: nobody, whoever made it, or the anonymous callers."""
    before = job._replace(given=job.given._replace(idempotency_key=old_key))
    for owner in (None, job.given.created_by, ""):
        if old in before._replace(key_owner=owner).unique:
            return job._replace(key_owner=owner)
    return job


def _payload_hash(job: NewJob) -> str:
    """The same for equal JSON, regardless of key order. Secrets are left out: by comparing, anyone would learn them."""
    text = json.dumps(
        hide(from_json(job.payload), job.secret), sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()
