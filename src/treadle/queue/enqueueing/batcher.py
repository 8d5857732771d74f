"""Batches concurrent calls; a lone call hardly waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class Batcher(Generic[RequestT, AnswerT]):
    """Group commit, or one statement for many reads, for the callers of one event loop.

    While a call is in flight, later callers gather; when it returns, they are sent together. A hundred callers then pay
    for a few calls, and each caller's work is always done after it asked, never before.

    After a group (or always, if `patient`), the first caller waits for one turn of the event loop and takes along the
    callers that arrive in it, because requests that were answered together tend to come back together.
    """

    def __init__(
        self, call: Callable[[Sequence[RequestT]], Awaitable[Sequence[AnswerT]]], most: int, *, patient: bool = False
    ) -> None:
        self._call = call
        self._most = most
        self._patient = patient
        self._crowded = patient
        self._busy = False
        self._waiting: list[tuple[RequestT, asyncio.Future[AnswerT]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, asked: RequestT) -> AnswerT:
        if self._busy or self._crowded:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[AnswerT] = loop.create_future()
            self._waiting.append((asked, future))
            if not self._busy:
                self._busy = True
                loop.call_soon(self._next)
            return await future
        self._busy = True
        try:
            return (await self._call([asked]))[0]
        finally:
            self._next()

    def _next(self) -> None:
        """Send the callers that have gathered, if any."""
        waiting = [one for one in self._waiting if not one[1].done()]  # skip callers that gave up
        group, self._waiting = waiting[: self._most], waiting[self._most :]
        self._busy = bool(group)
        if group:
            self._crowded = self._patient or len(group) > 1
            task = asyncio.get_running_loop().create_task(self._send(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, group: Sequence[tuple[RequestT, asyncio.Future[AnswerT]]]) -> None:
        try:
            answers = list(zip(group, await self._call([asked for asked, _ in group]), strict=True))
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in answers:
                if not future.done():
                    future.set_result(answer)
        finally:
            self._next()
