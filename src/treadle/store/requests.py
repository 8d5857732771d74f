"""A new job as `admission` asks about it: its unique keys and the hash of its payload, the same in every store."""

from __future__ import annotations

import hashlib
import json

from pydantic_core import from_json

from treadle.policy.admission import Request
from treadle.store.values import NewJob


def request_of(job: NewJob) -> Request:
    hashed = None if job.given.idempotency_key is None else _payload_hash(job)
    return Request(job.id, job.topic, job.unique, hashed, job.repeatable, job.limit, may_replace=job.may_replace)


def _payload_hash(job: NewJob) -> str:
    """The same for equal JSON, regardless of key order."""
    text = json.dumps(from_json(job.payload), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
