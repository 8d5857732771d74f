"""The first page: problems, workload and trends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.audit_rows import AuditRow, audit_rows
from treadle.dashboard.charts import Bucket, Latency, Throughput, latency, throughput
from treadle.dashboard.page import Page, macros
from treadle.dashboard.pages.errors import error_rows
from treadle.dashboard.problems import Problem, Trouble, problems
from treadle.dashboard.ranges import RANGES, Range, range_of, segments
from treadle.dashboard.state import HOUR, first_span
from treadle.dashboard.topic_rows import TopicRow, topic_rows
from treadle.insights.failures import FailureGroup
from treadle.insights.overview import Now
from treadle.insights.stats import QueueStats
from treadle.insights.times import Distribution, by_span, distribution
from treadle.model.job import from_ms, rfc3339, to_ms
from treadle.model.status import ENDED, Status
from treadle.store.views import EndedCount, Wait

TOPICS, ERRORS, ACTIONS, PROBLEMS = 6, 5, 5, 8


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    unit: str
    note: str
    url: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class TopError:
    type: str
    message: str
    newest_id: str
    count: int
    last_seen: datetime


@dataclass(frozen=True, slots=True)
class OverviewView:
    range: str
    range_title: str
    range_words: str
    range_words_of: str
    problems: Sequence[Problem]
    problems_title: str
    problems_note: str
    tiles: Sequence[Tile]
    chart: Throughput
    chart_words: str
    per: str
    latency: Latency | None
    latency_points: Sequence[tuple[str, float | None, float | None]]
    p50: float | None
    p95: float | None
    topics: Sequence[TopicRow]
    topic_count: int
    errors: Sequence[TopError]
    error_count: int
    actions: Sequence[AuditRow]


async def overview(page: Page) -> Response:
    range_ = range_of(page, "1h")
    view = await _view(page, range_)
    return await page.render(
        "overview",
        section="Overview",
        title="Overview",
        view=view,
        ranges=segments(page, "/"),
        live_url=page.url("/live", view="overview", range=range_.name),
    )


async def overview_regions(page: Page) -> dict[str, str]:
    view, part = await _view(page, range_of(page, "1h")), macros("overview")
    return {
        "problems": str(part.problems(view, page.base)),
        "tiles": str(part.tiles(view)),
        "ended": str(part.throughput(view.chart, view.chart_words, view.per)),
        "latency": str(part.latency(view)),
        "behind": str(part.topics(view, page.base)),
        "topfail": str(part.top_errors(view, page.base)),
        "acts": str(part.actions(view, page.base)),
    }


async def _view(page: Page, range_: Range) -> OverviewView:
    state, at = page.state, page.now
    start = first_span(at, range_.length, range_.step_minutes)
    now, groups, rows = await asyncio.gather(state.now.get(), state.failures.get(), topic_rows(state, RANGES["24h"]))
    (ended, spans), stats, before, asked = await asyncio.gather(
        state.hour.get() if range_.length == HOUR else state.insights.history(start, range_.step_minutes),
        state.insights.ended(at - range_.length),
        state.insights.ended(at - range_.length * 2),
        state.waits.get(),
    )
    runs, waits = distribution(spans, "run"), distribution(spans, "wait")
    await state.checkup.look()
    found = problems(page, await _trouble(page, now, groups, asked))
    buckets = _buckets(page, ended, start, range_)
    begins = _ended(before) == _ended(stats)
    points = _points(buckets, by_span(spans, "run"), start, range_)
    failing = error_rows(groups, at, range_, page.url("/"))
    return OverviewView(
        range_.name,
        range_.title,
        range_.title.lower(),
        range_.words,
        found[:PROBLEMS],
        f"{words.plural(len(found), 'thing needs', 'things need')} attention" if found else "Nothing needs attention",
        _checked(page, now, found),
        _tiles(page, now, asked, stats, before.failed - stats.failed, runs, waits),
        chart := throughput(buckets, begins=begins),
        f"Jobs ended per {range_.per}: {chart.completed:,} completed, {chart.failed:,} failed",
        range_.per,
        latency(points),
        points,
        runs.percentile(0.5),
        runs.percentile(0.95),
        rows[:TOPICS],
        len(rows),
        [TopError(row.type, row.message, row.newest_id, row.count, row.last_seen) for row in failing[:ERRORS]],
        len(failing),
        audit_rows(await state.audit.newest(ACTIONS)),
    )


async def _trouble(page: Page, now: Now, groups: Sequence[FailureGroup], waits: Sequence[Wait]) -> Trouble:
    state = page.state
    day, failing, schedules, webhooks = await asyncio.gather(
        state.day.get(), state.failing_topics(), state.schedules.get(), state.webhooks.get()
    )
    return Trouble(now, failing, groups, waits, day.times, schedules, state.checkup.findings or (), webhooks)


def _checked(page: Page, now: Now, problems: Sequence[Problem]) -> str:
    checkup = page.state.checkup
    fine = checkup.findings is not None and all(one.level == "ok" for one in checkup.findings)
    if problems:
        return "The database and retention are fine." if fine else ""
    return f"Every due job has a worker; {words.plural(len(now.workers), 'worker')} connected, the database is fine."


# -- figures ---------------------------------------------------------------------------------------


def _tiles(
    page: Page,
    now: Now,
    asked: Sequence[Wait],
    stats: QueueStats,
    failed_before: int,
    runs: Distribution,
    waits: Distribution,
) -> list[Tile]:
    counts = _counts(page, now, stats, failed_before)
    return [*counts[:-1], *_people(page, now, asked), counts[-1], *_rates_and_times(page, stats, runs, waits)]


def _people(page: Page, now: Now, asked: Sequence[Wait]) -> list[Tile]:
    """Only where a job waits for somebody: most queues never ask."""
    if not asked:
        return []
    longest = words.duration(now.at - asked[0].since)
    count = sum(one.jobs for one in asked)
    return [Tile("For a person", f"{count:,}", "", f"for {longest}", page.url("/jobs", status="waiting"))]


def _counts(page: Page, now: Now, stats: QueueStats, failed_before: int) -> list[Tile]:
    later, next_at = now.later()
    due = now.due()
    slots = sum(worker.slots for worker in now.workers)
    soon = from_ms(next_at)
    change = (
        ""
        if stats.failed == failed_before
        else f"{'up' if stats.failed > failed_before else 'down'} from {failed_before:,}"
    )
    return [
        Tile("Pending", f"{now.pending():,}", "", f"{due:,} due now", page.url("/jobs", status="pending")),
        Tile(
            "Processing",
            f"{now.processing():,}",
            "",
            f"of {slots:,} slots" if slots else "no worker",
            page.url("/jobs", status="processing"),
        ),
        Tile(
            "Scheduled",
            f"{later:,}",
            "",
            f"next {words.ago(soon, page.now)}" if soon and soon > page.now else "for later",
            page.url("/jobs", status="pending", sort="runAt"),
        ),
        Tile(
            "Failed",
            f"{stats.failed:,}",
            "",
            change or "as before",
            page.url("/errors", range=page.query("range")),
            stats.failed > failed_before,
        ),
    ]


def _rates_and_times(page: Page, stats: QueueStats, runs: Distribution, waits: Distribution) -> list[Tile]:
    return [
        _split(
            "Success rate",
            words.percent(stats.success_rate),
            f"{stats.completed:,} completed",
            page.url("/jobs", status="completed"),
        ),
        _split(
            "Average run",
            words.duration(stats.avg_execution_time),
            f"p50 {words.duration(runs.percentile(0.5))}",
            page.url("/topics"),
        ),
        _split(
            "p95 run",
            words.duration(runs.percentile(0.95)),
            f"p99 {words.duration(runs.percentile(0.99))}",
            page.url("/topics"),
        ),
        _split(
            "p95 wait",
            words.duration(waits.percentile(0.95)),
            f"p50 {words.duration(waits.percentile(0.5))}",
            page.url("/topics"),
        ),
    ]


def _split(name: str, text: str, note: str, url: str) -> Tile:
    """Splits off the unit, which is drawn smaller."""
    value, _, unit = text.partition(" ")
    plain = unit in ("s", "ms", "%")
    return Tile(name, value if plain else text, unit if plain else "", note, url)


def _ended(stats: QueueStats) -> int:
    return sum(getattr(stats, status.value) for status in ENDED)


def _buckets(page: Page, ended: Sequence[EndedCount], start: datetime, range_: Range) -> list[Bucket]:
    step = timedelta(minutes=range_.step_minutes)
    count = round(range_.length / step)
    sums: list[dict[str, int]] = [dict.fromkeys(("completed", "failed", "retrying", "other"), 0) for _ in range(count)]
    begin = int(start.timestamp() * 1000)
    for one in ended:
        place = (one.at - begin) // int(step.total_seconds() * 1000)
        if 0 <= place < count:
            kind = one.status if one.status in ("completed", "failed", "retrying") else "other"
            sums[place][kind] += max(one.jobs, 0)
    return [
        Bucket(
            _label(start + step * i, range_),
            _jobs_of(page, start + step * i, step, kinds),
            **kinds,
            current=i == count - 1,
        )
        for i, kinds in enumerate(sums)
    ]


def _label(at: datetime, range_: Range) -> str:
    return f"{at:%H:%M}" if range_.name != "7d" else f"{at:%a %H:%M}"


def _jobs_of(page: Page, at: datetime, step: timedelta, kinds: dict[str, int]) -> str:
    """The jobs behind a bar; for a bar with failures, only the failures."""
    status = Status.FAILED if kinds["failed"] else Status.COMPLETED
    field = f"{status}At"
    filter_ = f'{field} >= "{rfc3339(at)}" && {field} < "{rfc3339(at + step)}"'
    return page.url("/jobs", status=status.value, filter=filter_)


def _points(
    buckets: Sequence[Bucket], spans: Mapping[int, Distribution], start: datetime, range_: Range
) -> list[tuple[str, float | None, float | None]]:
    """Label, p50 and p95 of each bar."""
    begin, step_ms = to_ms(start), range_.step_minutes * 60_000
    found = [spans.get(begin + i * step_ms, Distribution(())) for i in range(len(buckets))]
    return [
        (bucket.label, one.percentile(0.5), one.percentile(0.95)) for bucket, one in zip(buckets, found, strict=True)
    ]
