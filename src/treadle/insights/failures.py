"""Groups failures by cause: type, message without variable parts, and the last application frame."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from treadle.insights.error_text import read_error
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy import rules
from treadle.store.protocol import Store
from treadle.store.values import Listing

# How many of the newest failures to read.
NEWEST = 1000
_PARTICULARS = re.compile(
    r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b(?=\w*\d)[0-9a-fA-F]{8,}\b|\d+(?:[.,:]\d+)*"
)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    key: str
    topic: str
    type: str
    message: str
    """Without numbers and ids."""
    frame: str
    newest_id: str
    example: str
    """The full message of the newest one."""
    times: list[datetime] = field(default_factory=list)
    """Newest first."""
    ids: list[str] = field(default_factory=list)

    @property
    def last_seen(self) -> datetime:
        return max(self.times)

    @property
    def first_seen(self) -> datetime:
        return min(self.times)

    def since(self, when: datetime) -> int:
        return sum(at >= when for at in self.times)


async def failure_groups(store: Store, newest: int = NEWEST) -> list[FailureGroup]:
    """Groups of the newest failed jobs, most recent first. The store's `error_group` column will replace this."""
    jobs = await store.list(Listing(status=Status.FAILED, limit=newest, condition=rules.always))
    return group(jobs)


def group(jobs: Sequence[Job]) -> list[FailureGroup]:
    groups: dict[str, FailureGroup] = {}
    for job in jobs:
        at = job.failed_at or job.updated_at
        found = groups.get(key := fingerprint(job))
        if found is None:
            found = groups[key] = _begin(key, job)
        found.times.append(at)
        found.ids.append(job.id)
    return sorted(groups.values(), key=lambda one: one.last_seen, reverse=True)


def _begin(key: str, job: Job) -> FailureGroup:
    error = read_error(job.last_error, job.error_type)
    frame = error.last_own_frame if error else None
    example = error.message if error else ""
    return FailureGroup(
        key,
        job.topic,
        error.type if error else job.error_type or "",
        normalised(example),
        f"{frame.file}:{frame.line} {frame.name}" if frame else "",
        job.id,
        example,
    )


def fingerprint(job: Job) -> str:
    """The group stored by the worker; for a failure without one, a group computed from its text."""
    if job.error_group:
        return job.error_group
    error = read_error(job.last_error, job.error_type)
    frame = error.last_own_frame if error else None
    parts = (
        (job.topic, error.type, normalised(error.message), f"{frame.file} {frame.name}" if frame else "")
        if error
        else (job.topic,)
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


def normalised(message: str) -> str:
    return _PARTICULARS.sub("…", message)[:500]
