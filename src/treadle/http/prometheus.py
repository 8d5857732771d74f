"""Converts plain counters to Prometheus metric families. The registry lives for one scrape and has no global state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from treadle.telemetry.histogram import CALLS, JOBS, Histogram
from treadle.telemetry.labels import MOST_TOPICS, OTHER

if TYPE_CHECKING:
    from treadle.store.views import Stats
    from treadle.telemetry.http_requests import HttpMetrics


class JobTimes(Protocol):
    """How long jobs of a topic waited and ran."""

    waits: Histogram
    runs: Histogram


class WorkerMetrics(Protocol):
    """The counters of a worker in this process."""

    claimed: int
    retried: int
    snoozed: int
    released: int
    lease_losses: int
    stuck: int
    store_errors: int
    ended: Counter[tuple[str, str]]
    claims: Histogram
    settles: Histogram
    slots: int

    @property
    def topics(self) -> Mapping[str, JobTimes]: ...
    @property
    def free_slots(self) -> Callable[[], int]: ...
    def fold(self) -> None: ...


def render(stats: Stats | None, workers: Sequence[WorkerMetrics], http: HttpMetrics | None) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    ended = [worker.ended for worker in workers] + ([http.ended] if http else [])
    server = _of_server(http) if http else ()
    registry.register(_Families([*_of_store(stats), _ended(ended), *_of_workers(workers), *server]))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


# -- the store -------------------------------------------------------------------------------------------


def _of_store(stats: Stats | None) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "treadle_store_up", "1 if the store answered this scrape, else 0.", value=0 if stats is None else 1
    )
    if stats is not None:
        jobs = GaugeMetricFamily("treadle_jobs", "Jobs by topic and status.", labels=["topic", "status"])
        for topic, counts in _bounded(stats.topics).items():
            for status, count in counts.items():
                jobs.add_metric([topic, status], count)
        yield jobs


def _bounded(topics: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    """The first topics by name, the rest merged into one: each label costs storage in Prometheus."""
    if len(topics) <= MOST_TOPICS:
        return topics
    names = sorted(topics)
    rest: Counter[str] = Counter()
    for name in names[MOST_TOPICS:]:
        rest.update(topics[name])
    return {name: topics[name] for name in names[:MOST_TOPICS]} | {OTHER: rest}


# -- the workers of this process -------------------------------------------------------------------------


def _of_workers(workers: Sequence[WorkerMetrics]) -> Iterator[Metric]:
    for worker in workers:
        worker.fold()
    yield _put_back(workers)
    yield _by_topic("treadle_job_wait_seconds", "From when a job was due until its handler started.", workers, "waits")
    yield _by_topic("treadle_job_run_seconds", "How long handlers ran, for all outcomes.", workers, "runs")
    yield _calls("treadle_claim_seconds", "How long the store took for a claim.", [one.claims for one in workers])
    yield _calls("treadle_settle_seconds", "How long the store took for a batch of endings.", _settles(workers))
    yield _slots(workers)
    counters = {
        "treadle_jobs_claimed": ("Jobs claimed.", [one.claimed for one in workers]),
        "treadle_lease_losses": (
            "Jobs lost to another worker before their outcome was stored.",
            [one.lease_losses for one in workers],
        ),
        "treadle_handler_stuck": ("Handlers that did not stop within their grace.", [one.stuck for one in workers]),
        "treadle_store_errors": ("Claims and endings that the store refused.", [one.store_errors for one in workers]),
    }
    for name, (what, counts) in counters.items():
        yield CounterMetricFamily(name, what, value=sum(counts))


def _ended(counts: Iterable[Counter[tuple[str, str]]]) -> Metric:
    ended: Counter[tuple[str, str]] = Counter()
    for one in counts:
        ended.update(one)
    family = CounterMetricFamily("treadle_jobs_ended", "Jobs that this process ended.", labels=["topic", "status"])
    for labels, count in sorted(ended.items()):
        family.add_metric(labels, count)
    return family


def _put_back(workers: Sequence[WorkerMetrics]) -> Metric:
    family = CounterMetricFamily("treadle_jobs_put_back", "Attempts after which a job waits again.", labels=["why"])
    family.add_metric(["retry"], sum(one.retried for one in workers))
    family.add_metric(["snooze"], sum(one.snoozed for one in workers))
    family.add_metric(["release"], sum(one.released for one in workers))
    return family


def _by_topic(name: str, what: str, workers: Sequence[WorkerMetrics], which: str) -> Metric:
    merged: dict[str, Histogram] = {}
    for worker in workers:
        for topic, times in worker.topics.items():
            merged.setdefault(topic, Histogram(JOBS)).add(getattr(times, which))
    family = HistogramMetricFamily(name, what, labels=["topic"])
    for topic in sorted(merged):
        _add(family, [topic], merged[topic])
    return family


def _settles(workers: Sequence[WorkerMetrics]) -> list[Histogram]:
    return [one.settles for one in workers]


def _calls(name: str, what: str, histograms: Sequence[Histogram]) -> Metric:
    merged = Histogram(CALLS)
    for one in histograms:
        merged.add(one)
    family = HistogramMetricFamily(name, what, labels=[])
    _add(family, [], merged)
    return family


def _slots(workers: Sequence[WorkerMetrics]) -> Metric:
    slots, free = sum(one.slots for one in workers), sum(one.free_slots() for one in workers)
    family = GaugeMetricFamily("treadle_slots", "Places for running jobs.", labels=["state"])
    family.add_metric(["busy"], slots - free)
    family.add_metric(["free"], free)
    return family


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    buckets = [("+Inf" if bound == inf else str(bound), count) for bound, count in histogram.cumulative()]
    family.add_metric(labels, buckets, histogram.total)


# -- the server ------------------------------------------------------------------------------------------


def _of_server(http: HttpMetrics) -> Iterator[Metric]:
    answered = CounterMetricFamily(
        "treadle_http_requests", "Requests that were answered.", labels=["method", "route", "status"]
    )
    for (method, route, status), count in sorted(http.requests.items()):
        answered.add_metric([method, route, str(status)], count)
    yield answered
    took = HistogramMetricFamily(
        "treadle_http_request_seconds", "From a request to the start of its response.", labels=["route"]
    )
    for route in sorted(http.seconds):
        _add(took, [route], http.seconds[route])
    yield took
