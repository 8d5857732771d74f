"""Histograms of how long jobs waited and ran, by topic and minute.

Bucket k holds times below 2**k ms and not below 2**(k-1) ms; the last one holds everything longer. A settle adds one
row for each topic, kind and bucket that it has, so a batch of hundreds of jobs adds about ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from treadle.policy.history import TIMED
from treadle.store.sql.scripts.common import Script
from treadle.store.values import Settlement
from treadle.store.views import TIME_BUCKETS

LAST = TIME_BUCKETS - 1
# From this age in minutes on, times are kept in spans of so many minutes: each writer's rows become one, then half an
# hour and an hour of them. These are divisors of what charts draw for an hour, a day and a week.
SPANS = ((2, 1), (120, 30), (1500, 60))
# How far behind that age the leader looks for rows to join, in minutes.
BEHIND = 60


def times_of(settlements: Sequence[Settlement], now: int, writer: int) -> list[dict[str, Any]]:
    """Rows for the waits of all started jobs, and for the runs of completed ones."""
    minute = now // 60_000
    waits = Counter(
        [
            (job.topic, waited.bit_length() if waited > 0 else 0)
            for job, _, _, _, waited in settlements
            if waited is not None
        ]
    )
    runs = Counter(
        [
            (job.topic, ran.bit_length())
            for job, transition, ran, _, _ in settlements
            if ran is not None and transition.to is TIMED
        ]
    )
    return [
        {
            "minute": minute,
            "writer": writer,
            "topic": topic,
            "kind": kind,
            "bucket": min(bucket, LAST),
            "count": count,
        }
        for kind, counts in (("wait", waits), ("run", runs))
        for (topic, bucket), count in counts.items()
    ]


def join_old_times() -> Script[None]:
    for age, span in SPANS:
        taken = yield "take_fine_times", [{"age": age, "behind": age + BEHIND, "span": span}]
        if taken:
            yield (
                "add_times",
                [
                    {
                        "minute": minute - minute % span,
                        "writer": 0,
                        "topic": topic,
                        "kind": kind,
                        "bucket": bucket,
                        "count": count,
                    }
                    for minute, topic, kind, bucket, count in taken
                ],
            )
