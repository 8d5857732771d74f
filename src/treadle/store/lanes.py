"""Lanes (topic x capability x worker type): which of them a worker serves, and in which order it takes their jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from treadle.store.values import NewJob, Wants

# A claim from at most this many lanes merges them in one statement; the number is also in PostgreSQL's `claim`.
MERGED = 16

LaneKey = tuple[str, str]
LanePlace = tuple[int, int, int]
"""Of a ready job in its lane: rank, run_at, n. The order in which jobs are claimed."""


def lane_of(job: NewJob) -> LaneKey:
    return job.topic, job.capability


def lane_keys(wants: Wants) -> list[dict[str, str]]:
    """The keys of the lanes that a worker serves; jobs without special needs go to any worker."""
    return [
        {"topic": topic, "capability": capability, "worker_type": worker_type}
        for topic in dict.fromkeys(wants.topics)
        for capability in {"", *wants.capabilities}
        for worker_type in {"", *wants.worker_types}
    ]


def quota(limit: int, lanes: int) -> int:
    """How many places of each lane to look at, if there are several: about twice a lane's share."""
    return min(limit, 2 * limit // lanes + 8)


class LaneTurns(NamedTuple):
    lanes: list[int]
    """The lane of each job, in the order in which they are claimed."""
    cut: bool
    """There may be more rows than this look covered."""


def turns(peeked: Mapping[int, Sequence[LanePlace]], limit: int, looked_at: int) -> LaneTurns:
    """Merge lanes by their places, as far as they are known: after the last place of a lane of which only `looked_at`
    were read, an older job of that lane may follow."""
    full = [places[-1] for places in peeked.values() if looked_at < limit and len(places) == looked_at]
    cut = min(full, default=None)
    known = sorted((place, lane) for lane, places in peeked.items() for place in places if cut is None or place <= cut)
    return LaneTurns([lane for _, lane in known[:limit]], cut is not None and len(known) < limit)
