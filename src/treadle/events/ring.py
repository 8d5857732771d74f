"""The recent events of one process, numbered and serialized once for all who listen."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import to_json

from treadle.model.told_job import shortened

RING_EVENTS = 10_000
RING_BYTES = 64 * 2**20


class FeedEvent(NamedTuple):
    """One event, as sent to every listener."""

    id: int
    """Increasing; never the same in two processes."""
    event: str
    payload: Mapping[str, Any]
    """{event, at, job}; {event, at, deletedJobId} for a deleted job; {event, at} for `resync`. A job with a large
    payload or result comes without them, and it and its event are `truncated`."""
    facts: Mapping[str, Any]
    """What a listener's `match` checks: the whole job, or what is still known about a deleted one."""
    data: bytes
    """The payload as JSON, serialized once for all listeners."""


class Ring:
    """The most recent events, numbered without gaps. Ids carry a mark of their ring, so ids of other processes are
    unknown.
    """

    MARKS = 4096

    def __init__(self, most: int = RING_EVENTS, most_bytes: int = RING_BYTES) -> None:
        self._mark = secrets.randbelow(self.MARKS)
        self._most = most
        self._most_bytes = most_bytes
        self._events: deque[FeedEvent] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        # Numbers start from the clock, so that they also increase over restarts.
        self.first = self.next = int(time.time() * 1000)

    def add(self, event: str, payload: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        payload, data = shortened(payload)
        # The facts stay whole, so they count in full.
        size = len(data) if "truncated" not in payload and not facts.get("steps") else len(to_json(facts))
        self._events.append(FeedEvent(self.id_of(self.next), event, payload, facts, data))
        self._sizes.append(size)
        self._bytes += size
        self.next += 1
        while len(self._events) > self._most or (self._bytes > self._most_bytes and len(self._events) > 1):
            self._events.popleft()
            self._bytes -= self._sizes.popleft()
            self.first += 1

    def forget(self) -> None:
        """Events were missed: every listener in the ring has to resync."""
        self._events.clear()
        self._sizes.clear()
        self._bytes = 0
        self.next += 1
        self.first = self.next

    def get(self, number: int) -> FeedEvent:
        return self._events[number - self.first]

    def after(self, event_id: int) -> int | None:
        """The position after this event; None if it is not in the ring."""
        number, mark = divmod(event_id, self.MARKS)
        return number + 1 if mark == self._mark and self.first <= number + 1 <= self.next else None

    @property
    def last_id(self) -> int:
        return self.id_of(self.next - 1)

    def id_of(self, number: int) -> int:
        return number * self.MARKS + self._mark
