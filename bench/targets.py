"""What Treadle should reach, as bounds on figures and ratios of one run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Target(NamedTuple):
    label: str
    store: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    of: str | None = None
    """Divide by this figure of the same run first."""
    digits: int = 2

    def value(self, rounds: Sequence[Mapping[str, float]]) -> float | None:
        """The median over the rounds that measured it."""
        values = [value for figures in rounds if (value := self._value(figures)) is not None]
        return statistics.median(values) if values else None

    def _value(self, figures: Mapping[str, float]) -> float | None:
        value = figures.get(self.figure)
        if value is None or self.of is None:
            return value
        base = figures.get(self.of)
        return value / base if base else None

    def met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def bound(self) -> str:
        return f"≥ {self.at_least:,g}" if self.at_least is not None else f"≤ {self.at_most:,g}"


BOTH = ("postgres", "sqlite")


def _both(label: str, figure: str, **bounds: float | str | None) -> list[Target]:
    return [Target(label, store, figure, **bounds) for store in BOTH]  # type: ignore[arg-type]


TARGETS = [
    *_both("the dashboard over 1,000,000 jobs, p95 of all pages, ms", "pages p95 ms", at_most=100, digits=0),
    *_both("its slowest page, p95, ms", "slowest page p95 ms", at_most=100, digits=0),
    *_both("its searches for words, p95, ms", "text search p95 ms", at_most=100, digits=0),
    *_both("its largest page, kB", "largest page kB", at_most=100, digits=0),
    Target("drain, 1 worker, of bare claim 100 + complete 100", "postgres", "drain /s", 0.6, of="bare drain 100 /s"),
    Target(
        "drain, 1 worker, of the bare file (claim 100 + complete 100)",
        "sqlite",
        "drain /s",
        0.25,
        of="bare drain 100 /s",
    ),
    *_both(
        "drain beside a pass of retention over 1,000,000 old jobs, of one without",
        "drain beside retention /s",
        at_least=0.9,
        of="drain without retention /s",
    ),
    *_both("jobs deleted by retention beside a drain, per second", "deleted by retention /s", at_least=2_000, digits=0),
    Target("2 worker processes, of one", "sqlite", "drain 2 /s", 1.0, of="drain /s"),
    Target("2 worker processes, of one", "postgres", "drain 2 /s", None, None, of="drain /s"),
    Target("10 worker processes, jobs/s", "postgres", "drain 10 /s", 20_000, digits=0),
    Target("10 worker processes, jobs/s", "sqlite", "drain 10 /s", 10_000, digits=0),
    *_both("sync handlers in threads, jobs/s", "drain threads /s", at_least=8_000, digits=0),
    *_both("enqueue one at a time, of a bare insert", "enqueue one /s", at_least=0.7, of="bare insert 1 /s"),
    Target("100 callers at once, of one at a time", "postgres", "enqueue, 100 callers /s", 8, of="enqueue one /s"),
    Target("100 callers at once, of one at a time", "sqlite", "enqueue, 100 callers /s", 3, of="enqueue one /s"),
    Target("enqueue_many, of a bare multi-row insert", "postgres", "enqueue_many /s", 0.35, of="bare insert 1000 /s"),
    Target("enqueue_many, jobs/s", "sqlite", "enqueue_many /s", 80_000, digits=0),
    Target("pick-up by an idle worker in another process, p50 ms", "postgres", "pick-up p50 ms", at_most=2.5),
    Target("pick-up by an idle worker in another process, p99 ms", "postgres", "pick-up p99 ms", at_most=6),
    Target("pick-up by an idle worker in another process, p50 ms", "sqlite", "pick-up p50 ms", at_most=3),
    Target("pick-up by an idle worker in another process, p99 ms", "sqlite", "pick-up p99 ms", at_most=8),
    Target("pick-up in the same process, p50 ms", "sqlite", "same process p50 ms", at_most=1),
    *_both("a delayed job's start after its time, p99 ms", "delayed start p99 ms", at_most=50),
    *_both("a schedule's job after its time, with 10,000 schedules, p50 ms", "slot late p50 ms", at_most=100),
    *_both(
        "steps of 1,000 ten-step flows, 1 worker, of plain drained jobs",
        "flow steps /s",
        at_least=0.25,
        of="drain without flows /s",
    ),
    *_both("map over 10,000 items, items/s, of flow steps/s", "map items /s", at_least=0.5, of="flow steps /s"),
    *_both("map over 10,000 items, growth of the worker's memory, MB", "map memory MB", at_most=30),
    *_both(
        "drain with 10,000 waiting jobs, of the empty database",
        "drain, 10,000 waiting /s",
        at_least=0.95,
        of="drain without flows /s",
    ),
    *_both(
        "a map of 10,000 children in windows of 8: second half, of the first", "map, second half / first", at_most=1.3
    ),
    *_both("a map of 10,000 children: memory growth, MB", "map, memory growth MB", at_most=40, digits=0),
    *_both(
        "drain with 1M jobs of another topic, of the empty database", "drain, 1M other /s", at_least=0.9, of="drain /s"
    ),
    *_both("drain with 1M future jobs, of the empty database", "drain, 1M future /s", at_least=0.9, of="drain /s"),
    *_both("drain with ended jobs kept, of the empty database", "drain, ended kept /s", at_least=0.9, of="drain /s"),
    Target(
        "drain after 50 s under an old snapshot, of the quiet database",
        "postgres",
        "drain, old snapshot /s",
        0.6,
        of="drain /s",
    ),
    Target(
        "drain 10 s after the snapshot is gone, of the quiet database",
        "postgres",
        "drain, snapshot gone /s",
        0.9,
        of="drain /s",
    ),
    Target("server CPU per job, µs", "postgres", "server us/job", at_most=18, digits=1),
    Target("worker CPU per job, µs", "postgres", "worker us/job", at_most=18, digits=1),
    Target("CPU per job, µs", "sqlite", "worker us/job", at_most=25, digits=1),
    *_both("worker memory at rest, MB", "idle worker MB", at_most=80, digits=0),
    *_both("growth of a worker's memory from 100,000 to 1,000,000 jobs, %", "memory growth %", at_most=5, digits=1),
    Target("idle, 10 workers, statements/s", "postgres", "idle statements /s", at_most=20, digits=1),
    *_both("CPU of `import treadle`, of `import pydantic`", "import treadle ms", at_most=1.5, of="import pydantic ms"),
    *_both(
        "CPU of `import` and a first enqueue, of pydantic's `BaseModel`",
        "import and enqueue ms",
        of="import pydantic.BaseModel ms",
    ),
    *_both("idle, 10 workers, CPU %", "idle CPU %", at_most=2, digits=1),
    *_both("p99 of one awaited enqueue with 1M jobs waiting, ms", "enqueue p99 ms, 1M waiting", at_most=5),
    *_both("p99 of one claim with 1M jobs waiting, ms", "claim p99 ms, 1M waiting", at_most=10),
    *_both("POST enqueue at 300/s, by a superuser, p99 ms", "http enqueue, superuser, p99 ms", at_most=20),
    *_both("POST enqueue at 300/s, by a user under a rule, p99 ms", "http enqueue, user, p99 ms", at_most=20),
    *_both("GET a job at 300/s, by a superuser, p99 ms", "http get, superuser, p99 ms", at_most=20),
    *_both("GET a job at 300/s, by a user under a rule, p99 ms", "http get, user, p99 ms", at_most=20),
    *_both(
        "an enqueue heard in another process, p50, ms",
        "enqueued heard in another process, p50 ms",
        at_most=250,
        digits=0,
    ),
    *_both(
        "a completion heard in another process, p50, ms",
        "completed heard in another process, p50 ms",
        at_most=250,
        digits=0,
    ),
    *_both("1,000 idle streams, MB", "idle streams, MB", at_most=100, digits=0),
    *_both("1,000 idle streams, % of a core", "idle streams, % CPU", at_most=5, digits=1),
    *_both(
        "enqueue beside 200 streams of a busy topic, p99, ms",
        "enqueue beside busy streams, p99 ms",
        at_most=50,
        digits=0,
    ),
    *_both("webhooks to a quick local receiver, deliveries/s", "webhooks /s", at_least=1_000, digits=0),
    *_both("POST enqueue, requests/s, of a bare FastAPI route", "http enqueue /s", at_least=0.35, of="bare FastAPI /s"),
    *_both("GET a job, requests/s, of a bare FastAPI route", "http get /s", at_least=0.35, of="bare FastAPI /s"),
]
