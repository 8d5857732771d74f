"""Charts as numbers for the templates: x in percent, y in pixels, so that text never stretches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The upper lane shows completed jobs. All others have a lane below, on a scale that shows single jobs.
TOP, BASE, LOWER, BOTTOM = 8, 112, 120, 152
SPARK_HEIGHT = 22
ROOM_FOR_TEXT = 60
"""How wide a gap is that can say what it is, in percent."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The jobs that ended in one time span."""

    label: str
    url: str
    completed: int = 0
    retrying: int = 0
    failed: int = 0
    other: int = 0
    current: bool = False

    @property
    def wrong(self) -> int:
        return self.retrying + self.failed + self.other

    @property
    def words(self) -> str:
        told = [f"{self.completed:,} completed", f"{self.failed:,} failed"]
        if self.retrying:
            told.insert(1, f"{self.retrying:,} retried")
        if self.other:
            told.append(f"{self.other:,} cancelled or expired")
        return ", ".join(told)


@dataclass(frozen=True, slots=True)
class Part:
    kind: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    bucket: Bucket
    x: str
    width: str
    top: float
    area: float
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Gap:
    """The time before anything had ended: not zero jobs, but no data."""

    width: str
    middle: str
    text: str
    """Empty where it has no room."""


@dataclass(frozen=True, slots=True)
class Throughput:
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    lower_ticks: list[tuple[float, str]]
    labels: list[tuple[str, str, str]]
    """x, text anchor, text."""
    completed: int
    retrying: int
    failed: int
    other: int
    gap: Gap | None = None

    @property
    def any(self) -> bool:
        return bool(self.completed or self.retrying or self.failed or self.other)


def throughput(buckets: Sequence[Bucket], *, begins: bool = False) -> Throughput:
    """`begins`: nothing had ended before the first of these spans."""
    most = _nice(max((one.completed for one in buckets), default=0))
    worst = _nice(max((one.wrong for one in buckets), default=0))
    width = 100 / max(len(buckets), 1)
    return Throughput(
        [_bar(one, i * width, width, most, worst) for i, one in enumerate(buckets)],
        [(_y(value, most), f"{value:,}") for value in _ticks(most)],
        [(LOWER + (BOTTOM - LOWER), f"{worst:,}")] if any(one.wrong for one in buckets) else [],
        _labels(buckets, width),
        sum(one.completed for one in buckets),
        sum(one.retrying for one in buckets),
        sum(one.failed for one in buckets),
        sum(one.other for one in buckets),
        _gap(buckets, width) if begins else None,
    )


def _gap(buckets: Sequence[Bucket], width: float) -> Gap | None:
    first = next((i for i, one in enumerate(buckets) if one.completed or one.wrong), 0)
    if not first:
        return None
    text = f"nothing had ended before {buckets[first].label}" if first * width > ROOM_FOR_TEXT else ""
    return Gap(f"{first * width:.3f}%", f"{first * width / 2:.3f}%", text)


def _bar(bucket: Bucket, x: float, width: float, most: int, worst: int) -> Bar:
    top = _y(bucket.completed, most)
    parts, y = [], float(LOWER)
    for kind, count in (("failed", bucket.failed), ("retrying", bucket.retrying), ("other", bucket.other)):
        if count:
            height = max(2.0, round(count / worst * (BOTTOM - LOWER), 1))
            parts.append(Part(kind, round(y, 1), height))
            y += height
    return Bar(bucket, f"{x:.3f}%", f"{width:.3f}%", top, round(BASE - top, 1), parts)


def _y(value: float, most: int) -> float:
    return round(BASE - value / most * (BASE - TOP), 1)


def _nice(value: float) -> int:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 1:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def _ticks(most: int) -> list[int]:
    """Zero, the top, and round numbers between them."""
    lead = int(str(most)[0])
    steps = {1: 2, 2: 2, 5: 5}[lead] if most > 1 else 1
    return (
        sorted({round(most / steps * i) for i in range(steps + 1)}) if steps != 5 else [0, most * 2 // 5, most * 4 // 5]
    )


def _labels(buckets: Sequence[Bucket], width: float) -> list[tuple[str, str, str]]:
    if not buckets:
        return []
    quarter = max(len(buckets) // 4, 1)
    marks = [(f"{i * width:.3f}%", "start", buckets[i].label) for i in range(0, len(buckets) - quarter // 2, quarter)]
    return [*marks, ("100%", "end", "now")]


# -- latency ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Latency:
    """Two step lines on a log axis, with gaps where there is no data."""

    p50: str
    p95: str
    ticks: list[tuple[float, str]]
    labels: list[tuple[str, str, str]]
    count: int


LATENCY_TOP, LATENCY_BOTTOM = 8, 144


def latency(points: Sequence[tuple[str, float | None, float | None]]) -> Latency | None:
    """From (label, p50, p95) in milliseconds."""
    known = [value for _, p50, p95 in points for value in (p50, p95) if value is not None]
    if not known:
        return None
    low = math.floor(math.log10(max(min(known), 1)))
    high = max(math.ceil(math.log10(max(*known, 1))), low + 1)

    def y(ms: float) -> float:
        part = (math.log10(max(ms, 10**low)) - low) / (high - low)
        return round(LATENCY_BOTTOM - part * (LATENCY_BOTTOM - LATENCY_TOP), 1)

    ticks = [(y(10**power), _tick_words(10**power)) for power in range(low, high + 1)]
    return Latency(
        _steps([None if one[1] is None else y(one[1]) for one in points]),
        _steps([None if one[2] is None else y(one[2]) for one in points]),
        ticks,
        [("0%", "start", points[0][0]), ("50%", "middle", points[len(points) // 2][0]), ("100%", "end", "now")],
        len(points),
    )


def _tick_words(ms: int) -> str:
    return f"{ms} ms" if ms < 100 else f"{ms / 1000:g} s"


def _steps(values: Sequence[float | None]) -> str:
    path, open_ = [], False
    for i, value in enumerate(values):
        if value is None:
            open_ = False
            continue
        path.append(f"{'L' if open_ else 'M'}{i} {value}H{i + 1}")
        open_ = True
    return "".join(path)


# -- sparklines ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SparkBar:
    x: int
    height: int
    bad: int


@dataclass(frozen=True, slots=True)
class Spark:
    bars: list[SparkBar]

    @property
    def any(self) -> bool:
        return any(bar.height or bar.bad for bar in self.bars)


def spark(counts: Sequence[tuple[int, int]]) -> Spark:
    """From (all, failed) of each hour, oldest first."""
    most = max((all_ for all_, _ in counts), default=0) or 1
    return Spark([SparkBar(i * 4, _height(all_, most), _height(bad, most)) for i, (all_, bad) in enumerate(counts)])


def _height(count: int, most: int) -> int:
    return max(2, round(count / most * SPARK_HEIGHT)) if count > 0 else 0
