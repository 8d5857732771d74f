"""Limits the number of label values, because each one is a stored time series; the rest share one label."""

from __future__ import annotations

MOST_TOPICS = 200
MOST_ROUTES = 200
OTHER = "other"


class Labels:
    """The first values keep their names, so that a counter never changes its label."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name
