"""Failures grouped by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from treadle.dashboard.charts import Spark, spark
from treadle.dashboard.page import Page, macros
from treadle.dashboard.ranges import Range, range_of, segments
from treadle.insights.failures import NEWEST, FailureGroup

HOURS = 24
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    key: str
    type: str
    message: str
    frame: str
    topic: str
    newest_id: str
    is_new: bool
    count: int
    in_hour: int
    in_day: int
    in_week: int
    first_seen: datetime
    last_seen: datetime
    spark: Spark
    jobs_query: str
    requeue_query: str
    delete_query: str


async def errors(page: Page) -> Response:
    range_ = range_of(page, "24h")
    context = await _context(page, range_)
    return await page.render(
        "errors",
        section="Errors",
        title="Errors",
        ranges=segments(page, "/errors"),
        live_url=page.url("/live", view="errors", range=range_.name, q=page.query("q")),
        **context,
    )


async def errors_regions(page: Page) -> dict[str, str]:
    context, part = await _context(page, range_of(page, "24h")), macros("lists")
    noted = {name: context.pop(name) for name in ("in_range", "in_hour")}
    return {
        "errors-note": str(part.errors_note(range_words=context["range_words"], **noted)),
        "error-groups": str(part.error_list(base=page.base, read_only=page.read_only, **context)),
    }


async def _context(page: Page, range_: Range) -> dict[str, Any]:
    q = page.query("q").strip()[:200]
    groups = await page.state.failures.get()
    rows = error_rows(
        groups, page.now, range_, page.path if page.request.url.path.endswith("/errors") else page.url("/errors")
    )
    if q:
        small = q.lower()
        rows = [row for row in rows if small in f"{row.type} {row.message} {row.frame} {row.topic}".lower()]
    stats = await page.state.insights.ended(page.now - range_.length)
    in_hour = 0 if range_.length <= HOUR else (await page.state.insights.ended(page.now - HOUR)).failed
    looked_at = NEWEST if sum(len(group.ended) for group in groups) >= NEWEST else 0
    return {
        "groups": rows,
        "q": q,
        "range": range_.name,
        "range_words": range_.words,
        "in_range": stats.failed,
        "in_hour": in_hour,
        "completed": stats.completed,
        "looked_at": looked_at,
    }


def error_rows(groups: Sequence[FailureGroup], now: datetime, range_: Range, back: str) -> list[ErrorRow]:
    """Groups seen in the range, with the most frequent in the last hour first."""
    since = now - range_.length
    rows = [_row(group, now, range_, back) for group in groups if group.last_seen >= since]
    return sorted(rows, key=lambda row: (-row.in_hour, -row.in_day, -row.in_week))


def _row(group: FailureGroup, now: datetime, range_: Range, back: str) -> ErrorRow:
    since = now - range_.length
    jobs = {"status": "failed", "filter": group.filter(since)}
    return ErrorRow(
        group.key,
        group.type,
        group.message,
        group.frame,
        group.topic,
        group.newest_id,
        group.first_seen >= now - timedelta(hours=1) and len(group.ended) < NEWEST,
        group.since(since),
        group.since(now - timedelta(hours=1)),
        group.since(now - timedelta(hours=24)),
        group.since(now - timedelta(days=7)),
        group.first_seen,
        group.last_seen,
        _spark(group, now),
        urlencode(jobs),
        urlencode({"action": "requeue", "all": "1", **jobs, "back": back}),
        urlencode({"action": "delete", "all": "1", **jobs, "back": back}),
    )


def _spark(group: FailureGroup, now: datetime) -> Spark:
    since = [group.since(now - timedelta(hours=hours)) for hours in range(HOURS, -1, -1)]
    counts = [earlier - later for earlier, later in pairwise(since)]
    return spark([(count, count) for count in counts])
