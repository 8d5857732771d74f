"""Topics that fail now: what ended in the last minutes, compared with a limit and with the topic's own day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.model.status import Status
from treadle.store.views import EndedCount

MINUTE_MS = 60_000
WINDOW_MS = 10 * MINUTE_MS
"""What counts as now."""
ENOUGH = 5
"""How many jobs must have ended within the window."""
SHARE = 0.2
"""Above this share of failures, a topic is failing."""
TIMES_ITS_DAY = 3
FEW = 3
"""Fewer failures than this are no change of a rate."""
_BAD = (Status.FAILED, Status.EXPIRED)
_TRIED = (Status.COMPLETED, *_BAD)


@dataclass(frozen=True, slots=True)
class FailingTopic:
    topic: str
    failed: int
    ended: int
    """Since it began to fail."""
    since: int
    """The minute in which it began."""
    earlier: bool
    """It failed from the first minute on that was looked at: it began then or before."""
    before: float | None
    """Its success rate within the day before; None without data."""


@dataclass(slots=True)
class _Count:
    tried: int = 0
    failed: int = 0

    def add(self, one: EndedCount) -> None:
        self.tried += one.jobs
        self.failed += one.jobs if one.status in _BAD else 0

    @property
    def rate(self) -> float:
        return self.failed / self.tried if self.tried > 0 else 0.0


def failing_topics(
    minutes: Sequence[EndedCount], hours: Sequence[EndedCount], begin: int, now: int
) -> dict[str, FailingTopic]:
    """The topics that fail now. `minutes` says what ended in each minute since `begin`, `hours` what did in a day."""
    by_minute: dict[str, dict[int, _Count]] = defaultdict(lambda: defaultdict(_Count))
    for one in minutes:
        if one.status in _TRIED:
            by_minute[one.topic][one.at].add(one)
    days: dict[str, _Count] = defaultdict(_Count)
    for one in hours:
        if one.status in _TRIED:
            days[one.topic].add(one)
    found = (_failing(topic, counts, days[topic], begin, now) for topic, counts in by_minute.items())
    return {one.topic: one for one in found if one}


def _failing(topic: str, minutes: Mapping[int, _Count], day: _Count, begin: int, now: int) -> FailingTopic | None:
    recent = _sum([count for at, count in minutes.items() if at > now - WINDOW_MS])
    # What ended within the window is in the day as well.
    normal = _Count(day.tried - recent.tried, day.failed - recent.failed)
    limit = min(SHARE, normal.rate * TIMES_ITS_DAY) if normal.failed > 0 else SHARE
    few = recent.failed < FEW and recent.rate <= SHARE
    if recent.tried < ENOUGH or recent.rate <= limit or few:
        return None
    since = _since(minutes, limit)
    all_ = _sum([count for at, count in minutes.items() if at >= since])
    before = _Count(day.tried - all_.tried, day.failed - all_.failed)
    return FailingTopic(
        topic, all_.failed, all_.tried, since, since <= begin, 1 - before.rate if before.tried > 0 else None
    )


def _since(minutes: Mapping[int, _Count], limit: float) -> int:
    """The first minute of the trouble: before it, enough jobs ended with no more failures than usual."""
    since, healthy = 0, _Count()
    for at in sorted(minutes, reverse=True):
        count = minutes[at]
        if count.failed > 0 and count.rate > limit:
            since, healthy = at, _Count()
            continue
        healthy = _sum([healthy, count])
        if healthy.tried >= ENOUGH and since:
            break
    return since


def _sum(counts: Sequence[_Count]) -> _Count:
    return _Count(sum(one.tried for one in counts), sum(one.failed for one in counts))
