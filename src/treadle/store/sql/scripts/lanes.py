"""Registers lanes: the enqueue that needs one makes it."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.store.lanes import LaneKey, lane_of
from treadle.store.sql.scripts.common import Script
from treadle.store.values import NewJob


def register_lanes(jobs: Iterable[NewJob]) -> Script[dict[LaneKey, int]]:
    rows = [{"topic": topic, "capability": capability} for topic, capability in sorted({lane_of(job) for job in jobs})]
    found = yield "find_lanes", rows
    if len(found) < len(rows):
        yield "add_lanes", rows
        found = yield "find_lanes", rows
    return {(topic, capability): lane for topic, capability, lane in found}
