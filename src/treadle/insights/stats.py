"""Queue statistics, from roll-ups or counted if a rule limits the view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from treadle.insights.lists import COUNT_CAP, listing
from treadle.model.job import to_ms
from treadle.model.status import Status
from treadle.policy.rules import Condition
from treadle.store.protocol import Store
from treadle.store.views import Stats, Topic

# How many of the newest completed jobs the average run time is taken from if the roll-ups can't be used.
AVERAGE_OF = 1000


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Job counts by status, success rate and average run time."""

    pending: int = 0
    processing: int = 0
    waiting: int = 0
    cancelling: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    success_rate: float | None = None
    """completed / (completed + failed + expired); None without data."""
    avg_execution_time: float | None = None
    """Milliseconds, over completed jobs; None without data."""
    topics: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            **{status.value: getattr(self, status.value) for status in Status},
            "successRate": self.success_rate,
            "avgExecutionTime": self.avg_execution_time,
            "topics": self.topics,
        }


def summarise(stats: Stats) -> QueueStats:
    counts = stats.counts
    completed = counts[Status.COMPLETED]
    tried = completed + counts[Status.FAILED] + counts[Status.EXPIRED]
    return QueueStats(
        **{status.value: counts[status] for status in Status},
        success_rate=completed / tried if tried > 0 else None,
        avg_execution_time=stats.run_ms / completed if completed > 0 else None,
        topics={name: dict(c) for name, c in stats.topics.items()},
    )


async def stats_of(store: Store, condition: Condition, topic: str | None, since: datetime | None) -> QueueStats:
    """The same figures for a subset of jobs: counted (each up to 10,000) instead of read from the roll-ups."""
    start = None if since is None else to_ms(since, "since")
    among = listing(topic, None, None, None, AVERAGE_OF, 0, condition)
    found = summarise(await store.stats(among.topic, start, among=among, cap=COUNT_CAP))
    newest = await store.list(replace(among, status=Status.COMPLETED, ended_since=start))
    took = [
        (job.completed_at - job.started_at).total_seconds() * 1000
        for job in newest
        if job.completed_at and job.started_at
    ]
    average = sum(took) / len(took) if took else 0.0
    return replace(found, avg_execution_time=average if took else None)


async def topics_of(store: Store, condition: Condition, topics: Sequence[Topic]) -> list[Topic]:
    """The topics of a subset of jobs, with the counts of that subset."""

    async def count(topic: Topic, status: Status | None, most: int) -> int:
        return min(await store.count(listing(topic.topic, status, None, None, 1, 0, condition), most), most)

    return [
        replace(
            topic,
            # A status that no job has needs no count.
            pending=await count(topic, Status.PENDING, COUNT_CAP) if topic.pending else 0,
            processing=await count(topic, Status.PROCESSING, COUNT_CAP) if topic.processing else 0,
        )
        for topic in topics
        if await count(topic, None, 1)
    ]
