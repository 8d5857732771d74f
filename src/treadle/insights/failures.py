"""Failures grouped by cause: type, message without variable parts, and the last frame of the application."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from treadle.insights.error_text import read_error
from treadle.model.job import Job, from_ms, rfc3339, to_ms
from treadle.store.protocol import Store
from treadle.store.views import FailedGroup

NEWEST = 10_000
"""How many of the newest failures are counted."""
SHOWN = 200
"""How many groups are read, the most recent ones."""
_PARTICULARS = re.compile(
    r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b(?=\w*\d)[0-9a-fA-F]{8,}\b|\d+(?:[.,:]\d+)*"
)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    key: str
    topic: str
    """Of the newest one."""
    type: str
    message: str
    """Without numbers and ids."""
    frame: str
    newest_id: str
    ended: Sequence[int]
    """When they failed, oldest first: numbers, because there may be ten thousand and most pages only count them."""

    @property
    def last_seen(self) -> datetime:
        return _instant(self.ended[-1])

    @property
    def first_seen(self) -> datetime:
        return _instant(self.ended[0])

    def since(self, when: datetime) -> int:
        return len(self.ended) - bisect_left(self.ended, to_ms(when, "when"))

    def filter(self, since: datetime | None = None) -> str:
        """The failures of this group, to list or to change."""
        return f'errorGroup = "{self.key}"' + (f' && failedAt >= "{rfc3339(since)}"' if since else "")


async def failure_groups(store: Store) -> list[FailureGroup]:
    """Groups of the newest failed jobs, most recent first."""
    found = sorted(await store.failed_groups(NEWEST), key=lambda one: max(one.ended), reverse=True)[:SHOWN]
    jobs = await store.get([one.newest_id for one in found])
    return [_group(one, job) for one, job in zip(found, jobs, strict=True) if job is not None]


def _group(found: FailedGroup, job: Job) -> FailureGroup:
    error = read_error(job.last_error, job.error_type)
    frame = error.last_own_frame if error else None
    return FailureGroup(
        found.group,
        job.topic,
        error.type if error else job.error_type or "",
        normalised(error.message if error else ""),
        f"{frame.file}:{frame.line} {frame.name}" if frame else "",
        job.id,
        sorted(found.ended),
    )


def _instant(ms: int) -> datetime:
    when = from_ms(ms)
    assert when is not None
    return when


def normalised(message: str) -> str:
    return _PARTICULARS.sub("…", message)[:500]
