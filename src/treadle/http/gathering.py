"""Reads that are wanted at the same time share one statement; one that is alone never waits for company."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST = 200


class Gathered(Generic[K, V]):
    """A batched read for the callers of one event loop.

    While a read is on its way, later callers gather; when it is back they go together, each key once. What a
    caller gets was read after it asked, never before.
    """

    def __init__(self, read: Callable[[Sequence[K]], Awaitable[Sequence[V]]]) -> None:
        self._read = read
        self._busy = False
        self._waiting: list[tuple[Sequence[K], asyncio.Future[Sequence[V]]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, keys: Sequence[K]) -> Sequence[V]:
        """The values of these keys, in their order."""
        if self._busy:
            future: asyncio.Future[Sequence[V]] = asyncio.get_running_loop().create_future()
            self._waiting.append((keys, future))
            return await future
        self._busy = True
        try:
            return await self._read(keys)
        finally:
            self._next()

    def _next(self) -> None:
        """Read for those who gathered, if any."""
        waiting = [one for one in self._waiting if not one[1].done()]  # without those who gave up
        group, self._waiting = waiting[:MOST], waiting[MOST:]
        self._busy = bool(group)
        if group:
            task = asyncio.get_running_loop().create_task(self._together(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _together(self, group: Sequence[tuple[Sequence[K], asyncio.Future[Sequence[V]]]]) -> None:
        wanted = list(dict.fromkeys(key for keys, _ in group for key in keys))
        try:
            found = dict(zip(wanted, await self._read(wanted), strict=True))
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            for keys, future in group:
                if not future.done():
                    future.set_result([found[key] for key in keys])
        finally:
            self._next()
