"""Counters of a worker since its start; `treadle.telemetry` formats them on demand.

Per job this costs appending a number or two; the lists are folded into counts in batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from treadle.model.status import ENDED, Status
from treadle.policy.lifecycle import Transition
from treadle.store.values import Moved, Settlement
from treadle.telemetry.histogram import CALLS, JOBS, Histogram
from treadle.telemetry.labels import MOST_TOPICS, Labels


class Times:
    """How long jobs of a topic waited and ran."""

    __slots__ = ("new_runs", "new_starts", "runs", "waits")

    def __init__(self) -> None:
        self.new_starts: list[float] = []
        """Handler start by our clock minus due time by the database's clock, both in seconds."""
        self.new_runs: list[float] = []
        self.waits = Histogram(JOBS)
        self.runs = Histogram(JOBS)

    def fold(self, clock_gap_s: float) -> None:
        """Count the new values."""
        if not self.new_runs:
            return
        waits = [start - clock_gap_s for start in self.new_starts]
        if min(waits) < 0:  # the clocks are compared through an answer that took some time
            waits = [max(wait, 0.0) for wait in waits]
        self.waits.observe_all(waits)
        self.runs.observe_all(self.new_runs)
        self.new_starts.clear()
        self.new_runs.clear()


@dataclass(slots=True)
class Metrics:
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    snoozed: int = 0
    released: int = 0
    cancelled: int = 0
    lease_losses: int = 0
    stuck: int = 0
    """Handlers that did not stop within their grace, each counted once."""
    store_errors: int = 0
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (topic, status): jobs ended by this worker and by its maintenance duties."""
    topics: dict[str, Times] = field(default_factory=dict)
    claims: Histogram = field(default_factory=partial(Histogram, CALLS))
    settles: Histogram = field(default_factory=partial(Histogram, CALLS))
    slots: int = 0
    """0 if not running."""
    free_slots: Callable[[], int] = lambda: 0
    clock_gap_s: float = 0.0
    """Our monotonic clock minus the database's, at the last claim."""
    _labels: Labels = field(default_factory=partial(Labels, MOST_TOPICS))

    def times(self, topic: str) -> Times:
        return self.topics.setdefault(self._labels.of(topic), Times())

    def fold(self) -> None:
        for times in self.topics.values():
            times.fold(self.clock_gap_s)

    def count_completed(self, topics: Sequence[str]) -> None:
        """One entry for each job."""
        self.completed += len(topics)
        for topic, count in Counter(topics).items():
            self.ended[self._labels.of(topic), "completed"] += count

    def count(self, settlements: Iterable[Settlement]) -> None:
        """Endings other than completed ones."""
        for one in settlements:
            self._count(one.transition)
            if one.transition.to in ENDED:
                self.ended[self._labels.of(one.job.topic), one.transition.to.value] += 1

    def count_moved(self, moved: Iterable[Moved]) -> None:
        """Jobs ended by maintenance."""
        for one in moved:
            if one.status in ENDED:
                self.ended[self._labels.of(one.topic), one.status.value] += 1

    def _count(self, transition: Transition) -> None:
        if transition.to is Status.FAILED:
            self.failed += 1
        elif transition.to is Status.CANCELLED:
            self.cancelled += 1
        elif transition.event == "job:retrying":
            self.retried += 1
        elif transition.event == "job:snoozed":
            self.snoozed += 1
        else:
            self.released += 1
