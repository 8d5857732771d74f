"""Reads that are wanted at the same time share one statement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from treadle.together import Together

K = TypeVar("K")
V = TypeVar("V")

MOST = 200


class Gathered(Generic[K, V]):
    """A read by keys, each key of a group read once."""

    def __init__(self, read: Callable[[Sequence[K]], Awaitable[Sequence[V]]]) -> None:
        self._read = read
        self._together: Together[Sequence[K], Sequence[V]] = Together(self._read_all, MOST, patient=True)

    async def __call__(self, keys: Sequence[K]) -> Sequence[V]:
        """The values of these keys, in their order."""
        return await self._together(keys)

    async def _read_all(self, asked: Sequence[Sequence[K]]) -> Sequence[Sequence[V]]:
        wanted = list(dict.fromkeys(key for keys in asked for key in keys))
        found = dict(zip(wanted, await self._read(wanted), strict=True))
        return [[found[key] for key in keys] for keys in asked]
