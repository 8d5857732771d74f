"""Enqueues that wait at the same time share one transaction; one that is alone never waits for company."""

from __future__ import annotations

import asyncio

from treadle.errors import Refused
from treadle.store.base import Inserted, NewJob, Store

MOST = 500


class Intake:
    """Group commit for the callers of one event loop.

    While an insert is on its way, later callers gather; when it is back they go together. A hundred
    callers then pay for a few commits instead of a hundred, and a lone caller pays nothing extra.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._busy = False
        self._waiting: list[tuple[NewJob, asyncio.Future[Inserted | Refused]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, job: NewJob) -> Inserted:
        answer = await (self._join(job) if self._busy else self._alone(job))
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def _alone(self, job: NewJob) -> Inserted | Refused:
        self._busy = True
        try:
            return (await self._store.insert([job], atomic=False))[0]
        finally:
            self._next()

    async def _join(self, job: NewJob) -> Inserted | Refused:
        future: asyncio.Future[Inserted | Refused] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        return await future

    def _next(self) -> None:
        """Send those who gathered, if any."""
        waiting = [one for one in self._waiting if not one[1].done()]  # without those who gave up
        group, self._waiting = waiting[:MOST], waiting[MOST:]
        self._busy = bool(group)
        if group:
            task = asyncio.get_running_loop().create_task(self._together(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _together(self, group: list[tuple[NewJob, asyncio.Future[Inserted | Refused]]]) -> None:
        try:
            answers = await self._store.insert([job for job, _ in group], atomic=False)
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in zip(group, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        finally:
            self._next()
