"""What the pages of one server share: cached answers, the audit log, and running operations."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from treadle.dashboard.checkup import Checkup
from treadle.dashboard.failing_schedules import FailingSchedule, failing_schedules
from treadle.http.server import Server
from treadle.insights import failing
from treadle.insights.failing import FailingTopic
from treadle.insights.failures import FailureGroup
from treadle.insights.insights import Insights
from treadle.insights.overview import CachedAnswer, Now, OneAnswer
from treadle.insights.scan import Scans
from treadle.insights.search import JobSearch
from treadle.insights.stats import QueueStats
from treadle.model.job import to_ms
from treadle.queue.doctor import examine
from treadle.queue.webhooks import WebhookEndpoint
from treadle.store.views import History, Wait

T = TypeVar("T")
HOUR, DAY = timedelta(hours=1), timedelta(hours=24)
MOST_SCHEDULES_COUNTED = 99
"""In the navigation, so that a page never reads all of them."""


class State:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.queue = queue = server.queue
        self.insights = insights = Insights(queue.store)
        self.audit, self.operations = server.audit, server.operations
        self.now: CachedAnswer[Now] | OneAnswer[Now] = CachedAnswer(2.0, insights.now)
        self.counts: CachedAnswer[dict[str, int | None]] | OneAnswer[dict[str, int | None]] = CachedAnswer(
            2.0, lambda: insights.count(JobSearch())
        )
        self.day: CachedAnswer[History] | OneAnswer[History] = CachedAnswer(2.0, lambda: self._history(DAY, 60))
        """What ended in the last 24 hours, by hour."""
        self.hour: CachedAnswer[History] | OneAnswer[History] = CachedAnswer(2.0, lambda: self._history(HOUR, 1))
        """What ended in the last 60 minutes, by minute."""
        self.waits: CachedAnswer[Sequence[Wait]] | OneAnswer[Sequence[Wait]] = CachedAnswer(5.0, insights.waits)
        self.stats: CachedAnswer[QueueStats] | OneAnswer[QueueStats] = CachedAnswer(2.0, insights.ended)
        self.failures: CachedAnswer[list[FailureGroup]] | OneAnswer[list[FailureGroup]] = CachedAnswer(
            5.0, insights.failure_groups
        )
        self.schedules: CachedAnswer[Sequence[FailingSchedule]] | OneAnswer[Sequence[FailingSchedule]] = CachedAnswer(
            5.0, lambda: failing_schedules(queue)
        )
        self.webhooks: CachedAnswer[Sequence[WebhookEndpoint]] | OneAnswer[Sequence[WebhookEndpoint]] = CachedAnswer(
            5.0, queue.webhooks.list
        )
        self.schedule_count: CachedAnswer[str] | OneAnswer[str] = CachedAnswer(5.0, self._count_schedules)
        self.scans = Scans(queue.store)
        self.checkup = Checkup(lambda: examine(queue.store, queue.settings, queue.key_file))
        self.database = _database_words(queue.url)

    def for_one_page(self) -> State:
        """The same, but each answer is read once, however many parts of the page show it."""
        page = copy.copy(self)
        page.now, page.counts = _one(self.now), _one(self.counts)
        page.stats, page.failures = _one(self.stats), _one(self.failures)
        page.day, page.hour, page.waits = _one(self.day), _one(self.hour), _one(self.waits)
        return page

    def forget(self) -> None:
        """Drop cached answers after a change, so that the next page shows it."""
        for kept in (
            *(self.now, self.counts, self.day, self.hour, self.waits),
            *(self.stats, self.failures, self.schedules, self.schedule_count, self.webhooks),
        ):
            kept.forget()

    async def _history(self, length: timedelta, step_minutes: int) -> History:
        return await self.insights.history(first_span(datetime.now(UTC), length, step_minutes), step_minutes)

    async def failing_topics(self) -> Mapping[str, FailingTopic]:
        now, hour, day = await asyncio.gather(self.now.get(), self.hour.get(), self.day.get())
        begin = to_ms(first_span(datetime.now(UTC), HOUR, 1), "begin")
        return failing.failing_topics(hour.ended, day.ended, begin, now.at)

    async def _count_schedules(self) -> str:
        """Empty if there are none."""
        found = await self.insights.count_schedules(MOST_SCHEDULES_COUNTED + 1)
        return f"{MOST_SCHEDULES_COUNTED}+" if found > MOST_SCHEDULES_COUNTED else str(found or "")

    async def failing_groups(self, within: timedelta = timedelta(hours=1)) -> Sequence[FailureGroup]:
        since = datetime.now(UTC) - within
        return [one for one in await self.failures.get() if one.last_seen >= since]


def first_span(at: datetime, length: timedelta, step_minutes: int) -> datetime:
    """The start of the first of the spans that end now, aligned to their length."""
    step = timedelta(minutes=step_minutes)
    last = datetime.fromtimestamp(at.timestamp() // step.total_seconds() * step.total_seconds(), at.tzinfo)
    return last - step * (round(length / step) - 1)


def _one(answer: CachedAnswer[T] | OneAnswer[T]) -> OneAnswer[T]:
    return OneAnswer(answer.cached if isinstance(answer, OneAnswer) else answer)


def _database_words(url: str) -> str:
    if url.startswith("sqlite"):
        return "SQLite, " + url.partition("?")[0].rpartition("/")[2]
    return "PostgreSQL" if url.startswith("postgres") else "MongoDB"
