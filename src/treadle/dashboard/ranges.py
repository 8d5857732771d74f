"""The time ranges of pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from treadle.dashboard.page import Page


@dataclass(frozen=True, slots=True)
class Range:
    name: str
    label: str
    length: timedelta
    step_minutes: int
    title: str
    words: str
    """After "in": the last hour."""
    per: str


RANGES = {
    "1h": Range("1h", "1 h", timedelta(hours=1), 1, "Last 60 minutes", "the last hour", "minute"),
    "24h": Range("24h", "24 h", timedelta(hours=24), 30, "Last 24 hours", "24 h", "half hour"),
    "7d": Range("7d", "7 d", timedelta(days=7), 180, "Last 7 days", "7 days", "three hours"),
}


def range_of(page: Page, default: str) -> Range:
    return RANGES.get(page.query("range"), RANGES[default])


def segments(page: Page, path: str) -> list[tuple[str, str, str]]:
    return [(one.name, one.label, page.url(path, range=one.name)) for one in RANGES.values()]
