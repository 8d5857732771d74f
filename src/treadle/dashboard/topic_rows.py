"""Topics as table rows: pending, running, success rate and speed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from treadle.dashboard import words
from treadle.dashboard.charts import Spark, spark
from treadle.dashboard.ranges import Range
from treadle.dashboard.state import State
from treadle.insights.delays import Cause, Delay, delay
from treadle.insights.failing import FailingTopic
from treadle.insights.overview import HOUR_MS, Now
from treadle.insights.times import Distribution, distribution
from treadle.model.job import from_ms
from treadle.model.status import ENDED, Status
from treadle.policy.saved_template import SavedTemplate
from treadle.store.views import FOREVER, EndedCount, Topic

HOURS = 24
# A due job that has not started after this long is late.
LATE_MS = 60_000
FAILING = "failing"
BAD = frozenset((Status.FAILED, Status.EXPIRED))


@dataclass(frozen=True, slots=True)
class TopicRow:
    name: str
    version: str
    has_template: bool
    state: str
    state_note: str
    state_icon: str
    state_css: str
    paused: bool
    enabled: bool
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
    """Failing ones first, then by the longest waiting job."""
    at = datetime.now(UTC)
    now, hours, failing, (ended, ran) = await asyncio.gather(
        state.now.get(),
        state.day.get(),
        state.failing_topics(),
        state.insights.history(at - range_.length, range_.step_minutes),
    )
    minutes = _covered(ended, now, range_)
    rows = [
        _row(topic, now, failing, distribution(ran, "run", topic.topic), hours.ended, ended, minutes)
        for topic in now.topics
    ]
    return sorted(rows, key=lambda row: (row.state != FAILING, -row.oldest_ms, row.name))


def _row(
    topic: Topic,
    now: Now,
    failing: Mapping[str, FailingTopic],
    runs: Distribution,
    hours: Sequence[EndedCount],
    ended: Sequence[EndedCount],
    minutes: float,
) -> TopicRow:
    name = topic.topic
    first = now.oldest_due(name)
    waits = max(now.at - first, 0) if first is not None else -1
    counts: dict[str, int] = defaultdict(int)
    for one in ended:
        if one.topic == name and one.status in ENDED:
            counts[one.status] += one.jobs
    tried = counts[Status.COMPLETED] + counts[Status.FAILED] + counts[Status.EXPIRED]
    saved = now.templates.get(name)
    enabled = saved is None or saved.enabled
    state, note, icon, css = _state(topic, now, failing.get(name), enabled)
    return TopicRow(
        name,
        _version(saved),
        saved is not None,
        state,
        note,
        icon,
        css,
        topic.paused_until is not None,
        enabled,
        now.due(name),
        words.duration(waits) if waits >= 0 else words.DASH,
        waits,
        waits > LATE_MS and state != "paused",
        topic.processing,
        _rate(sum(counts.values()), minutes),
        counts[Status.COMPLETED] / tried if tried else None,
        runs.percentile(0.5),
        runs.percentile(0.95),
        runs.percentile(0.99),
        _spark([one for one in hours if one.topic == name], now.at),
    )


def _version(saved: SavedTemplate | None) -> str:
    if saved is None:
        return "no template"
    steps = len(saved.definition.get("steps") or ())
    return f"version {saved.version}" + (f", {words.plural(steps, 'step')}" if steps else "")


def _covered(ended: Sequence[EndedCount], now: Now, range_: Range) -> float:
    """The minutes that the rates are about: of a queue younger than the range, those since its first ending."""
    first = min((one.at for one in ended), default=now.at)
    return max(1.0, min(range_.length / timedelta(minutes=1), (now.at - first) / 60_000))


def _rate(count: int, minutes: float) -> str:
    rate = count / minutes
    return "0" if not count else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" if rate >= 0.05 else "< 0.1"


def _state(topic: Topic, now: Now, failing: FailingTopic | None, enabled: bool) -> tuple[str, str, str, str]:
    """The word, its explanation, its icon and its colour."""
    if topic.paused_until is not None:
        until = from_ms(topic.paused_until) if topic.paused_until < FOREVER else None
        return "paused", f"until {until:%H:%M} UTC" if until else "until it is resumed", "pause", "cancelling"
    if not enabled and not topic.processing:
        return "disabled", "template switched off", "st_cancelled", "cancelled"
    if failing:
        return FAILING, f"{failing.failed:,} of {failing.ended:,}", "st_failed", "failed"
    unserved = [one for one in now.unserved() if one.topic == topic.topic]
    if unserved:
        needs = unserved[0].capability
        return "no worker", f"needs {needs}" if needs else "none serves it", "errors", "failed"
    waits = delay(now, topic)
    if waits and now.at - waits.first > LATE_MS and waits.cause in _LATE:
        word, icon, css = _LATE[waits.cause]
        return word, _late_note(waits), icon, css
    if topic.processing:
        return "running", f"{topic.processing:,} running", "play", "pending"
    return ("waiting", "due, not started yet", *_CALM) if waits else ("idle", "nothing to do", *_CALM)


_CALM = ("st_pending", "pending")
_LATE = {
    Cause.KEY: ("key is full", "st_waiting", "waiting"),
    Cause.RATE: ("rate is full", "clock", "waiting"),
    Cause.SLOTS: ("slots full", "st_processing", "processing"),
    Cause.DRAINING: ("draining", "drain", "cancelling"),
}


def _late_note(waits: Delay) -> str:
    return {
        Cause.KEY: f"{waits.jobs:,} wait for it",
        Cause.RATE: f"{waits.jobs:,} wait for it",
        Cause.SLOTS: f"all {waits.slots:,} taken",
    }.get(waits.cause, "its workers stop")


def _spark(hours: Sequence[EndedCount], at: int) -> Spark:
    last = at - at % HOUR_MS
    counts = [[0, 0] for _ in range(HOURS)]
    for one in hours:
        if one.status not in ENDED:
            continue
        place = HOURS - 1 - (last - one.at) // HOUR_MS
        if 0 <= place < HOURS:
            counts[place][0] += one.jobs
            counts[place][1] += one.jobs if one.status in BAD else 0
    return spark([(all_, bad) for all_, bad in counts])
