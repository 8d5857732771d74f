"""Lanes: topic x capability x priority, registered by the enqueue that needs them."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.store.base import NewJob
from treadle.store.scripts.common import Script


def register_lanes(jobs: Iterable[NewJob]) -> Script[dict[tuple[str, str, int], int]]:
    wanted = sorted({lane_of(job) for job in jobs})
    rows = [{"topic": topic, "capability": cap, "priority": priority} for topic, cap, priority in wanted]
    found = yield "find_lanes", rows
    if len(found) < len(rows):
        yield "add_lanes", rows
        found = yield "find_lanes", rows
    return {(topic, cap, priority): lane for topic, cap, priority, lane in found}


def lane_of(job: NewJob) -> tuple[str, str, int]:
    return job.topic, job.capability, job.priority
