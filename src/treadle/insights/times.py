"""How long jobs waited and ran: percentiles from the tally's histograms, by topic and span."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treadle.store.views import TIME_BUCKETS, Times


@dataclass(frozen=True, slots=True)
class Distribution:
    """Counts in buckets of powers of two."""

    counts: tuple[int, ...]

    @property
    def jobs(self) -> int:
        return sum(self.counts)

    def percentile(self, part: float) -> float | None:
        """In milliseconds, as if the times of a bucket were spread evenly; None without data."""
        left = part * self.jobs
        for bucket, count in enumerate(self.counts):
            if count and left <= count:
                low = 2 ** (bucket - 1) if bucket else 0
                return float(low + (2**bucket - low) * left / count)
            left -= count
        return None


def distribution(found: Iterable[Times], kind: str, topic: str = "") -> Distribution:
    """All times of one kind together, of one topic or of all."""
    counts = [0] * TIME_BUCKETS
    for one in found:
        if one.kind == kind and topic in ("", one.topic):
            counts[one.bucket] += one.jobs
    return Distribution(tuple(counts))


def by_span(found: Iterable[Times], kind: str, topic: str = "") -> dict[int, Distribution]:
    """The same for each span, by its beginning."""
    spans: dict[int, list[Times]] = {}
    for one in found:
        spans.setdefault(one.at, []).append(one)
    return {at: distribution(rows, kind, topic) for at, rows in spans.items()}
