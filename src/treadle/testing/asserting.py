"""Assertions about enqueued jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from treadle.queue.enqueueing.new_jobs import TopicOwner, topic_of

if TYPE_CHECKING:
    from treadle.model.job import Job
    from treadle.queue import Queue

PAGE = 1000
SHOWN = 20


def assert_enqueued(
    queue: Queue,
    topic: str | TopicOwner,
    *,
    payload: Mapping[str, Any] | None = None,
    count: int | None = None,
) -> None:
    """Fail unless a job of this topic was enqueued with at least these payload members.

    `count` requires exactly that many jobs; without it, one is enough. Jobs that have already run count too.
    """
    __tracebackhide__ = True
    jobs = _jobs(queue, topic_of(topic))
    found = sum(_has(job.payload, payload or {}) for job in jobs)
    if found != count if count is not None else not found:
        wanted = "at least one job" if count is None else f"{count} {'job' if count == 1 else 'jobs'}"
        raise AssertionError(f"{wanted} of {_named(topic, payload)} expected, found {found}.{_listed(queue, jobs)}")


def refute_enqueued(queue: Queue, topic: str | TopicOwner, *, payload: Mapping[str, Any] | None = None) -> None:
    """Fail if a job of this topic was enqueued with at least these payload members."""
    __tracebackhide__ = True
    jobs = _jobs(queue, topic_of(topic))
    found = sum(_has(job.payload, payload or {}) for job in jobs)
    if found:
        raise AssertionError(f"no job of {_named(topic, payload)} expected, found {found}.{_listed(queue, jobs)}")


def _jobs(queue: Queue, topic: str | None) -> list[Job]:
    """Matching jobs, oldest first. Uses the blocking API so that sync and async tests can both call it."""
    was_open = queue.sync.is_open
    try:
        return [*_pages(queue, topic)][::-1]
    finally:
        if not was_open:
            queue.sync.close()


def _pages(queue: Queue, topic: str | None) -> Iterator[Job]:
    offset = 0
    while page := queue.sync.list(topic=topic, limit=PAGE, offset=offset):
        yield from page
        offset += PAGE


def _has(value: Any, wanted: Any) -> bool:
    """Whether the value matches. For an object, only the named members are compared."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(name in value and _has(value[name], wanted[name]) for name in wanted)
    return bool(value == wanted)


def _named(topic: str | TopicOwner, payload: Mapping[str, Any] | None) -> str:
    return topic_of(topic) + (f" with {json.dumps(dict(payload), default=str)}" if payload else "")


def _listed(queue: Queue, jobs: list[Job]) -> str:
    """The jobs of that topic, or all jobs if it has none."""
    jobs = jobs or _jobs(queue, None)
    if not jobs:
        return " No job was enqueued."
    lines = [f"\n  {job.topic} {json.dumps(job.payload)} ({job.status})" for job in jobs[:SHOWN]]
    more = f"\n  and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return f" Enqueued were:{''.join(lines)}{more}"
