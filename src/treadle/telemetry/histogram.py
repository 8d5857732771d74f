"""Counts of how often a value fell into which range: plain numbers, added to by the batch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

# Seconds. A claim takes about a millisecond; a job may run or wait for hours.
CALLS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
JOBS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class Histogram:
    """`counts[i]` values were at most `bounds[i]` and more than the bound before; the last were above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: list[float]) -> None:
        """Many at once; sorts `values`. A tenth of the cost of observing them one by one, or less."""
        values.sort()
        before = 0
        for i, bound in enumerate(self.bounds):
            upto = bisect_right(values, bound, before)
            self.counts[i] += upto - before
            before = upto
            if upto == len(values):
                break
        self.counts[-1] += len(values) - before
        self.total += sum(values)

    def add(self, other: Histogram) -> None:
        """Take over what another one with the same bounds has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> Iterable[tuple[float, int]]:
        """(bound, how many were at most that), the last for infinity."""
        upto = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            upto += count
            yield bound, upto
