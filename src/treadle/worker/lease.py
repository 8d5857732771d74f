"""The worker's right to run what it claimed, and the moment when that right is gone."""

from __future__ import annotations


class Lease:
    """`lost` is set by the keeper's thread and read by handlers in any thread: it only ever turns True."""

    __slots__ = ("id", "lost", "until")

    def __init__(self, id: int, until: float) -> None:
        self.id = id
        self.until = until
        """By this process's monotonic clock, counted from before the request: never later than the store's."""
        self.lost = False
