"""Claimed jobs that wait for a slot, with their waiting time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from treadle.store.values import Claimed


class Inbox:
    """Slots take from `jobs` directly, oldest first; arrival times are computed only on demand."""

    def __init__(self) -> None:
        self.jobs: deque[Claimed] = deque()
        self._added = 0
        self._arrivals: deque[tuple[int, float]] = deque()
        """(number added so far, time)"""
        self.aside: list[Claimed] = []
        """Jobs that a leaving worker will give back; no slot takes them."""

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, jobs: Sequence[Claimed], now: float) -> None:
        self._added += len(jobs)
        self._arrivals.append((self._added, now))
        self.jobs.extend(jobs)

    def take_older_than(self, when: float) -> list[Claimed]:
        """Take the jobs that arrived before `when` and are still here."""
        taken = self._added - len(self.jobs)
        upto = taken
        while self._arrivals and (self._arrivals[0][1] < when or self._arrivals[0][0] <= taken):
            upto = max(upto, self._arrivals.popleft()[0])
        return [self.jobs.popleft() for _ in range(upto - taken)]

    def take_all(self) -> list[Claimed]:
        jobs = list(self.jobs)
        self.jobs.clear()
        return jobs

    def set_aside(self) -> None:
        self.aside += self.take_all()

    def take_aside(self) -> list[Claimed]:
        jobs, self.aside = self.aside, []
        return jobs

    def take_topic(self, topic: str) -> list[Claimed]:
        return self.remove((job.n, job.token) for job in self.jobs if job.topic == topic)

    def remove(self, wanted: Iterable[tuple[int, int]]) -> list[Claimed]:
        """Remove the jobs with these (n, token). Counts as taking from the front, so ages may be off by a few ms."""
        keys = set(wanted)
        found = [job for job in self.jobs if (job.n, job.token) in keys]
        for job in found:
            self.jobs.remove(job)
        return found
