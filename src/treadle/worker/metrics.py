"""What a worker has done since it started, as plain counters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treadle.lifecycle import Status, Transition


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
    """Handlers that did not stop within their grace; each counted once."""
    store_errors: int = 0

    def count(self, transitions: Iterable[Transition]) -> None:
        """Endings other than completed ones, which the settler counts by the batch."""
        for transition in transitions:
            self._count(transition)

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
