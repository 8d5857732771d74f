"""Concurrent reads share one statement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from treadle.queue.enqueueing.batcher import Batcher

K = TypeVar("K")
V = TypeVar("V")

MOST = 200


class Gathered(Generic[K, V]):
    """A batched read by key; each key of a group is read once."""

    def __init__(self, read: Callable[[Sequence[K]], Awaitable[Sequence[V]]]) -> None:
        self._read = read
        self._together: Batcher[Sequence[K], Sequence[V]] = Batcher(self._read_all, MOST, patient=True)

    async def __call__(self, keys: Sequence[K]) -> Sequence[V]:
        """The values of these keys, in the same order."""
        return await self._together(keys)

    async def _read_all(self, asked: Sequence[Sequence[K]]) -> Sequence[Sequence[V]]:
        wanted = list(dict.fromkeys(key for keys in asked for key in keys))
        found = dict(zip(wanted, await self._read(wanted), strict=True))
        return [[found[key] for key in keys] for keys in asked]
