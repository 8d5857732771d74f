"""A new job as `admission` asks about it: its unique keys and the hash of its payload, the same in every store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from pydantic_core import from_json, to_json

from treadle.policy.admission import DEDUPE, IDEMPOTENCY, SLOT, Request, UniqueKey
from treadle.store.values import NewJob

# Names and keys of 255 characters each make up to 3 kB of text; an index entry of PostgreSQL has room for 2.7 kB.
LONGEST_KEY = 2_600


def request_of(job: NewJob) -> Request:
    hashed = None if job.given.idempotency_key is None else _payload_hash(job)
    return Request(job.id, job.topic, unique_keys(job), hashed, job.repeatable, job.limit, may_replace=job.may_replace)


def returning(job: NewJob, held: UniqueKey | None) -> Request:
    """An ended job that comes back with another payload. It needs no leave for the idempotency key that it holds."""
    request = request_of(job)
    return replace(request, unique=tuple(key for key in request.unique if key != held), returning=True)


def owned_as(job: NewJob, old: UniqueKey, old_key: str) -> NewJob:
    """The job with the owner that its old idempotency key has: nobody, whoever made it, or the anonymous callers."""
    before = job._replace(given=job.given._replace(idempotency_key=old_key))
    for owner in (None, job.given.created_by, ""):
        if old in unique_keys(before._replace(key_owner=owner)):
            return job._replace(key_owner=owner)
    return job


def unique_keys(job: NewJob) -> tuple[UniqueKey, ...]:
    keys = []
    given = job.given
    if given.idempotency_key is not None:
        scope = given.scope, given.scope_id
        owner = () if job.key_owner is None else (job.key_owner,)
        keys.append(UniqueKey(IDEMPOTENCY, _joined(job.topic, *scope, given.idempotency_key, *owner)))
    if job.dedupe_key is not None:
        keys.append(UniqueKey(DEDUPE, job.dedupe_key))
    if job.slot is not None:
        keys.append(UniqueKey(SLOT, job.slot))
    return tuple(keys)


def _joined(*parts: str | None) -> str:
    """Joined without ambiguity: ("a", "b:c") and ("a:b", "c") differ."""
    text = to_json(parts)
    return text.decode() if len(text) <= LONGEST_KEY else hashlib.sha256(text).hexdigest()


def _payload_hash(job: NewJob) -> str:
    """The same for equal JSON, regardless of key order."""
    text = json.dumps(from_json(job.payload), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
