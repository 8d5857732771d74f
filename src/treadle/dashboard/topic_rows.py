"""Topics as table rows: pending, running, success rate and speed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from treadle.dashboard import words
from treadle.dashboard.charts import Spark, spark
from treadle.dashboard.ranges import Range
from treadle.dashboard.state import State
from treadle.insights import overview
from treadle.insights.overview import HOUR_MS, Now
from treadle.insights.times import Distribution, distribution
from treadle.model.job import from_ms
from treadle.model.status import Status
from treadle.store.views import FOREVER, EndedCount, Topic

HOURS = 24
# A due job that has not started after this long is late.
LATE_MS = 60_000
BAD = frozenset((Status.FAILED, Status.EXPIRED))


@dataclass(frozen=True, slots=True)
class TopicRow:
    name: str
    version: str
    state: str
    state_note: str
    state_icon: str
    state_css: str
    paused: bool
    due: int
    oldest: str
    oldest_ms: int
    late: bool
    running: int
    per_minute: str
    success: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    spark: Spark


async def topic_rows(state: State, range_: Range) -> list[TopicRow]:
    """Sorted by the longest waiting job."""
    store = state.queue.store
    at = datetime.now(UTC)
    now, hours, (ended, ran) = await asyncio.gather(
        state.now.get(),
        overview.history(store, at - timedelta(hours=HOURS - 1, minutes=at.minute), 60),
        overview.history(store, at - range_.length, range_.step_minutes),
    )
    rows = [_row(topic, now, distribution(ran, "run", topic.topic), hours.ended, ended, range_) for topic in now.topics]
    return sorted(rows, key=lambda row: (-row.oldest_ms, row.name))


def _row(
    topic: Topic,
    now: Now,
    runs: Distribution,
    hours: Sequence[EndedCount],
    ended: Sequence[EndedCount],
    range_: Range,
) -> TopicRow:
    name = topic.topic
    first = now.oldest_due(name)
    waits = max(now.at - first, 0) if first is not None else -1
    counts: dict[str, int] = defaultdict(int)
    for one in ended:
        if one.topic == name:
            counts[one.status] += one.jobs
    tried = counts[Status.COMPLETED] + counts[Status.FAILED] + counts[Status.EXPIRED]
    state, note, icon, css = _state(topic, now)
    saved = now.templates.get(name)
    return TopicRow(
        name,
        f"version {saved.version}" if saved else "no template",
        state,
        note,
        icon,
        css,
        topic.paused_until is not None,
        now.due(name),
        words.duration(waits) if waits >= 0 else words.DASH,
        waits,
        waits > LATE_MS and state != "paused",
        topic.processing,
        _rate(sum(counts.values()), range_),
        counts[Status.COMPLETED] / tried if tried else None,
        runs.percentile(0.5),
        runs.percentile(0.95),
        runs.percentile(0.99),
        _spark([one for one in hours if one.topic == name], now.at),
    )


def _rate(count: int, range_: Range) -> str:
    rate = count / (range_.length / timedelta(minutes=1))
    return "0" if not count else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" if rate >= 0.05 else "< 0.1"


def _state(topic: Topic, now: Now) -> tuple[str, str, str, str]:
    """The word, its explanation, its icon and its colour."""
    if topic.paused_until is not None:
        until = from_ms(topic.paused_until) if topic.paused_until < FOREVER else None
        return "paused", f"until {until:%H:%M} UTC" if until else "until it is resumed", "pause", "cancelling"
    unserved = [one for one in now.unserved() if one.topic == topic.topic]
    if unserved:
        needs = unserved[0].capability
        return "no worker", f"needs {needs}" if needs else "none serves it", "errors", "failed"
    if topic.processing:
        return "running", f"{topic.processing:,} running", "play", "pending"
    return (
        ("waiting", "due, not started yet", "st_pending", "pending")
        if now.due(topic.topic)
        else (
            "idle",
            "nothing to do",
            "st_pending",
            "pending",
        )
    )


def _spark(hours: Sequence[EndedCount], at: int) -> Spark:
    last = at - at % HOUR_MS
    counts = [[0, 0] for _ in range(HOURS)]
    for one in hours:
        place = HOURS - 1 - (last - one.at) // HOUR_MS
        if 0 <= place < HOURS:
            counts[place][0] += one.jobs
            counts[place][1] += one.jobs if one.status in BAD else 0
    return spark([(all_, bad) for all_, bad in counts])
