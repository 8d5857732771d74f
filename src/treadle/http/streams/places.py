"""How many streams may be open: each keeps a connection and a queue of events, and has its rights checked again."""

from __future__ import annotations

from collections import Counter

from treadle.http.errors import ApiError

RETRY_AFTER_S = 10


class StreamPlaces:
    """The open streams of one server, by caller."""

    def __init__(self, most: int, per_caller: int) -> None:
        self._most = most
        self._per_caller = per_caller
        self._open: Counter[str] = Counter()
        self._total = 0

    def take(self, caller: str) -> None:
        """Raise a 429 if there is no place left."""
        if self._open[caller] >= self._per_caller:
            raise _too_many(f"{self._per_caller:,} streams of one caller are open; close some.")
        if self._total >= self._most:
            raise _too_many(f"{self._most:,} streams are open; try again later.")
        self._open[caller] += 1
        self._total += 1

    def give_back(self, caller: str) -> None:
        self._total -= 1
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]


def _too_many(message: str) -> ApiError:
    return ApiError(429, "too_many_streams", message, headers={"Retry-After": str(RETRY_AFTER_S)})
