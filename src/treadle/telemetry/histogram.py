"""A histogram with plain integer counts, updated in batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

# In seconds. A claim takes about a millisecond; a job may run or wait for hours.
CALLS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
JOBS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class Histogram:
    """`counts[i]` values were at most `bounds[i]` and above the previous bound; the last count is for values above all
    bounds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: list[float]) -> None:
        """Add many values; sorts `values`. Costs a tenth of adding them one by one, or less."""
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
        """Add the counts of another histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> Iterable[tuple[float, int]]:
        """Pairs of (bound, number of values up to it); the last bound is infinity."""
        upto = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            upto += count
            yield bound, upto
