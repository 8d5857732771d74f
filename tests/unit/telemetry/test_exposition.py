"""The text that Prometheus reads, parsed again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from tests.faulty import FaultyQueue
from tests.waiting import until
from treadle import Fail, Queue, Worker
from treadle.http.exposition import CONTENT_TYPE, exposition
from treadle.http.prometheus import render
from treadle.model.status import Status
from treadle.policy.lifecycle import Failed, decide
from treadle.queue import results
from treadle.store.values import Claimed, Moved, Settlement
from treadle.store.views import Stats
from treadle.telemetry import HttpMetrics
from treadle.telemetry.labels import MOST_TOPICS
from treadle.worker import Metrics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: bytes) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, /, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def stats(topics: Mapping[str, Mapping[str, int]]) -> Stats:
    full = {topic: {status.value: counts.get(status.value, 0) for status in Status} for topic, counts in topics.items()}
    return Stats({}, 0, full)


def claimed(topic: str, **facts: Any) -> Claimed:
    return Claimed(1, "0190", topic, "{}", 1, 1, 0, None, None, None, 1, 1)._replace(**facts)


def test_jobs_by_topic_and_status() -> None:
    samples = parsed(render(stats({"mail": {"pending": 3, "failed": 1}}), (), None))
    assert value(samples, "treadle_jobs", topic="mail", status="pending") == 3
    assert value(samples, "treadle_jobs", topic="mail", status="failed") == 1
    assert value(samples, "treadle_jobs", topic="mail", status="waiting") == 0
    assert value(samples, "treadle_store_up") == 1


def test_topics_beyond_the_bound_are_counted_as_one() -> None:
    many = {f"topic_{i:04}": {"pending": 1} for i in range(MOST_TOPICS + 30)}
    samples = parsed(render(stats(many), (), None))
    assert len({dict(labels)["topic"] for name, labels in samples if name == "treadle_jobs"}) == MOST_TOPICS + 1
    assert value(samples, "treadle_jobs", topic="other", status="pending") == 30


def test_a_store_that_does_not_answer_is_told_of_and_the_rest_stays() -> None:
    samples = parsed(render(None, [Metrics(claimed=7)], None))
    assert value(samples, "treadle_store_up") == 0
    assert value(samples, "treadle_jobs_claimed_total") == 7
    assert not any(name == "treadle_jobs" for name, _ in samples)


def test_what_workers_count_adds_up() -> None:
    one = Metrics(lease_losses=1, stuck=2, store_errors=3, retried=4, snoozed=5, released=6, slots=10)
    two = Metrics(lease_losses=10, slots=5)
    one.free_slots, two.free_slots = lambda: 4, lambda: 5
    samples = parsed(render(None, [one, two], None))
    assert value(samples, "treadle_lease_losses_total") == 11
    assert value(samples, "treadle_handler_stuck_total") == 2
    assert value(samples, "treadle_store_errors_total") == 3
    assert value(samples, "treadle_jobs_put_back_total", why="retry") == 4
    assert value(samples, "treadle_jobs_put_back_total", why="snooze") == 5
    assert value(samples, "treadle_jobs_put_back_total", why="release") == 6
    assert value(samples, "treadle_slots", state="busy") == 6
    assert value(samples, "treadle_slots", state="free") == 9


def test_endings_by_topic_and_status() -> None:
    metrics = Metrics()
    metrics.count_completed(["mail", "mail", "report"])
    job = claimed("mail")
    metrics.count([Settlement(job, decide(job, Failed("no", "Boom")), 5)])
    metrics.count_moved(
        [Moved("0190", "mail", Status.EXPIRED, "job:expired"), Moved("0191", "mail", Status.PENDING, "")]
    )
    samples = parsed(render(None, [metrics], None))
    assert value(samples, "treadle_jobs_ended_total", topic="mail", status="completed") == 2
    assert value(samples, "treadle_jobs_ended_total", topic="report", status="completed") == 1
    assert value(samples, "treadle_jobs_ended_total", topic="mail", status="failed") == 1
    assert value(samples, "treadle_jobs_ended_total", topic="mail", status="expired") == 1
    assert (metrics.completed, metrics.failed) == (3, 1)


def test_waits_and_runs_are_folded_when_they_are_read() -> None:
    metrics = Metrics(clock_gap_s=-100.0)
    times = metrics.times("mail")
    times.new_starts += [-99.5, -98.0, -100.2]  # 0.5 s, 2 s, and one that two clocks disagree about
    times.new_runs += [0.002, 45.0, 0.1]
    samples = parsed(render(None, [metrics], None))
    assert value(samples, "treadle_job_wait_seconds_count", topic="mail") == 3
    assert value(samples, "treadle_job_wait_seconds_sum", topic="mail") == pytest.approx(2.5)
    assert value(samples, "treadle_job_wait_seconds_bucket", topic="mail", le="0.5") == 2
    assert value(samples, "treadle_job_run_seconds_bucket", topic="mail", le="0.0025") == 1
    assert value(samples, "treadle_job_run_seconds_bucket", topic="mail", le="60.0") == 3
    assert value(samples, "treadle_job_run_seconds_bucket", topic="mail", le="+Inf") == 3
    again = parsed(render(None, [metrics], None))
    assert value(again, "treadle_job_run_seconds_count", topic="mail") == 3


def test_handlers_beyond_the_bound_share_one_histogram() -> None:
    metrics = Metrics()
    for i in range(MOST_TOPICS + 30):
        metrics.times(f"topic_{i:04}").new_starts.append(1.0)
        metrics.times(f"topic_{i:04}").new_runs.append(1.0)
    samples = parsed(render(None, [metrics], None))
    assert value(samples, "treadle_job_run_seconds_count", topic="other") == 30


def test_requests_by_method_route_and_status() -> None:
    http = HttpMetrics()
    http.observe("GET", "/api/jobs/{id}", 200, 0.002)
    http.observe("GET", "/api/jobs/{id}", 404, 0.2)
    http.observe("BREW", "/api/jobs", 405, 0.2)
    samples = parsed(render(None, (), http))
    assert value(samples, "treadle_http_requests_total", method="GET", route="/api/jobs/{id}", status="404") == 1
    assert value(samples, "treadle_http_requests_total", method="other", route="/api/jobs", status="405") == 1
    assert value(samples, "treadle_http_request_seconds_count", route="/api/jobs/{id}") == 2
    assert value(samples, "treadle_http_request_seconds_bucket", route="/api/jobs/{id}", le="0.0025") == 1


def test_a_name_that_could_end_its_line_does_not() -> None:
    http = HttpMetrics()
    http.observe("GET", '/a"} 1\nforged 1', 200, 0.1)
    samples = parsed(render(None, (), http))
    assert value(samples, "forged") is None
    assert value(samples, "treadle_http_requests_total", method="GET", route='/a"} 1\nforged 1', status="200") == 1


async def test_the_whole_of_a_process(sqlite_url: str) -> None:
    async with Queue(sqlite_url) as queue:

        @queue.job(max_attempts=1)
        async def picky(payload: dict[str, Any]) -> None:
            if payload.get("bad"):
                raise Fail("no")

        worker = Worker(queue)
        jobs = await picky.enqueue_many([{}, {}, {"bad": True}])
        await picky.enqueue({}, delay="1h")
        samples = await _work_off(queue, worker, [job.id for job in jobs])
    assert value(samples, "treadle_jobs", topic="picky", status="completed") == 2
    assert value(samples, "treadle_jobs", topic="picky", status="pending") == 1
    assert value(samples, "treadle_jobs_ended_total", topic="picky", status="failed") == 1
    assert value(samples, "treadle_job_run_seconds_count", topic="picky") == 3
    assert value(samples, "treadle_slots", state="free") == worker.options.slots
    assert value(samples, "treadle_http_requests_total", method="GET", route="/metrics", status="200") is None


async def _work_off(queue: Queue, worker: Worker, ids: list[str]) -> Samples:
    import asyncio

    running = asyncio.create_task(worker.run())
    try:
        for id in ids:
            await results.ended(queue, id, 15)
        metrics = worker.metrics
        await until(lambda: metrics.completed + metrics.failed == len(ids) and metrics.free_slots() == metrics.slots)
        return parsed(await exposition(queue, [worker.metrics], HttpMetrics()))
    finally:
        worker.stop()
        await running


async def test_the_store_is_asked_once_a_second_at_most(sqlite_url: str) -> None:
    queue = FaultyQueue(sqlite_url)
    async with queue:
        first = await exposition(queue)
        await queue.enqueue("mail")
        assert await exposition(queue) == first
        assert queue.faults.calls["stats"] == 1


async def test_a_database_that_can_not_be_opened_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    queue = Queue(f"sqlite:///{tmp_path}/file/jobs.db")
    samples = parsed(await exposition(queue))
    assert value(samples, "treadle_store_up") == 0


def test_nothing_is_registered_globally() -> None:
    render(stats({"mail": {"pending": 1}}), [Metrics()], HttpMetrics())
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("treadle")]
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
