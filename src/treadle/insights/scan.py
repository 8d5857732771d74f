"""A search of every job, newest first, a part at a time, with progress; it goes on without its reader."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from datetime import datetime

from treadle.insights.lists import MAX_LIMIT
from treadle.insights.search import JobSearch
from treadle.model.errors import QueryTooSlow, TreadleError
from treadle.policy import rules
from treadle.store.protocol import Store
from treadle.store.views import Listing

MOST_FOUND = 1_000
"""A search that finds more than this should be narrower, so it stops."""
FIRST_PART, LARGEST_PART = 1_000, 20_000
QUICK_S, SLOW_S = 0.1, 0.5
RUNNING, DONE, STOPPED, FULL, FAILED = "running", "done", "stopped", "full", "failed"


@dataclass(slots=True)
class Scan:
    """One search of all jobs: what it has read and found so far."""

    search: JobSearch
    total: int
    """The jobs that are read in the end, as far as is known."""
    state: str = RUNNING
    read: int = 0
    back_to: datetime | None = None
    """When the oldest job that was read was created."""
    found: dict[str, str] = field(default_factory=dict)
    """Ids, newest first, and the status that each had."""
    problem: str = ""
    began: float = field(default_factory=time.monotonic)
    took: float = 0.0

    @property
    def seconds(self) -> float:
        return self.took or time.monotonic() - self.began

    @property
    def seconds_left(self) -> float | None:
        """None until enough was read to say."""
        return self.seconds / self.read * max(self.total - self.read, 0) if self.read else None

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = {"": len(self.found)}
        for status in self.found.values():
            counts[status] = counts.get(status, 0) + 1
        return counts

    async def run(self, store: Store) -> None:
        try:
            await self._run(store)
        except TreadleError as error:
            self.state, self.problem = FAILED, error.message
        finally:
            self.took = time.monotonic() - self.began

    async def _run(self, store: Store) -> None:
        condition = self.search.condition()
        below: int | None = None
        size = FIRST_PART
        while self.state == RUNNING:
            part = Listing(topic=self.search.topic or None, limit=MAX_LIMIT, below=below)
            asked = time.monotonic()
            try:
                last = await store.select(replace(part, limit=1, offset=size - 1))
                ids = [id for _, id in await store.select(replace(part, newest=size, text=condition))]
            except QueryTooSlow:
                if size <= 1:
                    raise
                size = max(size // 4, 1)
                continue
            await self._keep(store, ids, last[0][1] if last else "")
            if not last:
                self.read = self.total = max(self.total, self.read)
                self.state = DONE
                return
            below, self.read = last[0][0], self.read + size
            self.total = max(self.total, self.read)
            if len(self.found) >= MOST_FOUND:
                self.state = FULL
            size = _next_size(size, time.monotonic() - asked)
            await asyncio.sleep(0)

    async def _keep(self, store: Store, ids: list[str], last: str) -> None:
        room = ids[: MOST_FOUND - len(self.found)]
        jobs = await store.get([*room, *([last] if last else [])])
        for job in jobs[: len(room)]:
            if job is not None:
                self.found[job.id] = job.status.value
        if last and jobs[-1] is not None:
            self.back_to = jobs[-1].created_at


def _next_size(size: int, took: float) -> int:
    """Short enough for other readers, long enough to get on."""
    if took < QUICK_S:
        return min(size * 2, LARGEST_PART)
    return max(size // 2, 1) if took > SLOW_S else size


class Scans:
    """The scans of this process: one for each person, the newest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scans: dict[str, Scan] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, who: str, search: JobSearch) -> Scan:
        """A new scan; the person's last one ends."""
        await self.stop(who)
        narrowed = search.narrowed
        q = search.q if narrowed.status and not search.status else narrowed.q  # a status in words stays a condition
        search = replace(search, topic=narrowed.topic, q=q, status="", sort="")
        rules.parse_search(search.q)
        counts = (await self._store.stats(search.topic or None)).counts
        scan = self._scans[who] = Scan(search, sum(counts.values()))
        self._tasks[who] = asyncio.create_task(scan.run(self._store))
        return scan

    def of(self, who: str) -> Scan | None:
        return self._scans.get(who)

    async def stop(self, who: str) -> None:
        scan, task = self._scans.get(who), self._tasks.pop(who, None)
        if scan and scan.state == RUNNING:
            scan.state = STOPPED
        if task:
            await asyncio.wait([task])

    async def close(self) -> None:
        for who in list(self._tasks):
            await self.stop(who)
