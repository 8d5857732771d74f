"""The steps of one job that run side by side, each in a task."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, Generic, TypeVar

from treadle.store.values import StepKey
from treadle.worker.steps.branches import Branches

EndT = TypeVar("EndT")


class RunningSteps(Generic[EndT]):
    def __init__(self, branches: Branches) -> None:
        self._branches = branches
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: list[tuple[str, EndT | BaseException]] = []
        self._heard: list[str] = []
        """Steps with an end that is known, while what follows has not begun: until then their job can go on."""
        self._news = asyncio.Event()

    @property
    def names(self) -> Collection[str]:
        """Also of those that have ended, until that is heard."""
        return self._tasks.keys()

    @property
    def held(self) -> int:
        """How many of them wait for something."""
        return sum(step.name in self._tasks and not step.key for step in self._branches.outer())

    def start(self, name: str, step: Coroutine[Any, Any, EndT]) -> None:
        self._branches.enter(StepKey(name))
        self._tasks[name] = asyncio.create_task(self._run(name, step))

    async def _run(self, name: str, step: Coroutine[Any, Any, EndT]) -> None:
        end: EndT | BaseException
        try:
            end = await step
        except BaseException as error:  # it belongs to the attempt: a task that ends with an exit would end the loop
            end = error
        self._ended.append((name, end))
        self._news.set()

    async def ends(self) -> list[tuple[str, EndT | BaseException]]:
        """Waits until a step has ended."""
        for name in self._heard:
            self._branches.leave(StepKey(name))
        self._heard.clear()
        await self._news.wait()
        self._news.clear()
        ended, self._ended = self._ended, []
        self._heard += [name for name, _ in ended]
        for name in self._heard:
            self._tasks.pop(name, None)
        return ended

    async def stop(self) -> None:
        """Returns when none of them runs any more."""
        while tasks := [task for task in self._tasks.values() if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
