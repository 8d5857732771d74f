"""The operator's first questions: how much ended and when, how long jobs wait, and what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from treadle.insights.stats import QueueStats, summarise
from treadle.insights.templates import saved_templates
from treadle.insights.workers import live_workers
from treadle.model.job import to_ms
from treadle.policy.saved_template import SavedTemplate
from treadle.store.protocol import Store
from treadle.store.views import MAINTENANCE, Backlog, History, Leadership, LiveWorker, Topic

T = TypeVar("T")
HOUR_MS = 3_600_000
QUICK_S = 0.05
KEPT_FOR = 10


class CachedAnswer(Generic[T]):
    """Caches the last answer briefly, so that ten open pages cost the database little more than one.

    An answer is kept ten times as long as it took, but at most `most` seconds. A quick answer is not kept, so that a
    page shows recent changes. The time of the first answer is ignored, because it includes opening connections.
    """

    def __init__(self, most: float, read: Callable[[], Awaitable[T]]) -> None:
        self._most = most
        self._seconds = 0.0
        self._read = read
        self._answer: T | None = None
        self._at = float("-inf")
        self._reading: asyncio.Task[T] | None = None

    async def get(self) -> T:
        if self._answer is not None and time.monotonic() - self._at < self._seconds:
            return self._answer
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._look())
        return await asyncio.shield(self._reading)

    def forget(self) -> None:
        """Drop the answer, so that the next one shows a change made here."""
        self._seconds = 0.0

    async def _look(self) -> T:
        asked = time.monotonic()
        self._answer = await self._read()
        first, self._at = self._at == float("-inf"), time.monotonic()
        took = self._at - asked
        self._seconds = 0.0 if first or took < QUICK_S else min(KEPT_FOR * took, self._most)
        return self._answer


class OneAnswer(Generic[T]):
    """The same answer each time it is asked, so that the parts of one page agree and the database is asked once."""

    def __init__(self, cached: CachedAnswer[T]) -> None:
        self.cached = cached
        self._reading: asyncio.Future[T] | None = None

    async def get(self) -> T:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.cached.get())
        return await asyncio.shield(self._reading)

    def forget(self) -> None:
        self._reading = None
        self.cached.forget()


@dataclass(frozen=True, slots=True)
class Now:
    """The current state of the queue, without reading single jobs."""

    at: int
    topics: Sequence[Topic]
    workers: Sequence[LiveWorker]
    templates: Mapping[str, SavedTemplate] = field(default_factory=dict)
    leaders: Sequence[Leadership] = ()

    def paused_until(self, topic: str) -> int | None:
        return next((one.paused_until for one in self.topics if one.topic == topic), None)

    def serving(self, topic: str, capability: str | None = None) -> list[LiveWorker]:
        return [
            worker
            for worker in self.workers
            if topic in worker.topics and (not capability or capability in worker.capabilities)
        ]

    @property
    def backlog(self) -> list[Backlog]:
        return [one for topic in self.topics for one in topic.backlog]

    def pending(self) -> int:
        return sum(one.pending for one in self.topics)

    def processing(self) -> int:
        return sum(one.processing for one in self.topics)

    def due(self, topic: str | None = None) -> int:
        return sum(one.jobs for one in self.backlog if one.due and topic in (None, one.topic))

    def oldest_due(self, topic: str | None = None) -> int | None:
        """The due time of the job that has waited longest."""
        return min((one.first for one in self.backlog if one.due and topic in (None, one.topic)), default=None)

    def later(self) -> tuple[int, int | None]:
        """How many jobs are delayed, and when the next one is due."""
        found = [one for one in self.backlog if not one.due]
        return sum(one.jobs for one in found), min((one.first for one in found), default=None)

    def unserved(self) -> list[Backlog]:
        """Due jobs that no live worker can run."""
        return [one for one in self.backlog if one.due and not self.serving(one.topic, one.capability)]


async def now(store: Store) -> Now:
    at, topics, workers, templates, leaders = await asyncio.gather(
        store.now(), store.topics(backlog=True), live_workers(store), saved_templates(store), store.leaders()
    )
    return Now(at, topics, workers, templates, [one for one in leaders if one.name == MAINTENANCE])


async def history(store: Store, since: datetime, step_minutes: int) -> History:
    return await store.history(to_ms(since, "since"), step_minutes)


async def ended(store: Store, since: datetime | None = None) -> QueueStats:
    """Counts of the jobs that have ended, or have since then; the numbers of live jobs are left at 0."""
    return summarise(await store.stats(since=None if since is None else to_ms(since, "since"), live=False))
