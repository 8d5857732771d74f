"""Runs plain functions in threads, one thread per function that runs.

Not `run_in_executor`, because its future wakes the loop once per function, its threads are shared with the user's own
`asyncio.to_thread`, and a StopIteration leaves its caller waiting forever. Here finished functions gather in a deque,
and the first one of a burst wakes the loop for all.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any, NamedTuple

# The steps of one job that run in threads at the same time, so that a job with thousands leaves room for others.
PLACES = 8


class Ended(NamedTuple):
    """What a function returned or raised."""

    value: Any
    error: BaseException | None = None

    def result(self) -> Any:
        """Its value; raises what it raised, on the loop, where a StopIteration would be taken for a return."""
        if isinstance(self.error, StopIteration):
            raise RuntimeError("the function raised StopIteration") from self.error
        if self.error is not None:
            raise self.error
        return self.value


def ended(function: Callable[[], Any]) -> Ended:
    """Call it; whatever it raises is kept for the one who waits for its answer."""
    try:
        return Ended(function())
    except BaseException as error:
        return Ended(None, error)


Answer = asyncio.Future[Ended]


class Threads:
    """The threads of one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Answer, Variables] | None] = queue.SimpleQueue()
        self._done: deque[tuple[Answer, Ended]] = deque()
        self._announced = False
        self._busy = 0
        self._threads = 0
        self.closed = False

    def start(self, function: Callable[[], Any]) -> Answer:
        """Nothing stops the function, so its answer comes when it has ended. Don't cancel it: shield it."""
        self._busy += 1
        if self._busy > self._threads:
            self._start_thread()
        answer: Answer = self._loop.create_future()
        # Copied here, as in `asyncio.to_thread`, so that the function sees the job and the span of its slot.
        self._work.put((function, answer, copy_context()))
        return answer

    async def wait(self, function: Callable[[], Any]) -> tuple[Ended, asyncio.CancelledError | None]:
        """How the function ended, and a cancel of the caller that came while it ran: it can't be stopped."""
        answer, cancelled = self.start(function), None
        while not answer.done():
            try:
                await asyncio.shield(answer)
            except asyncio.CancelledError as error:
                if self.closed:
                    raise
                cancelled = error
        return answer.result(), cancelled

    async def run(self, function: Callable[[], Any]) -> Any:
        """What the function returns; a cancel that came while it ran is raised afterwards."""
        how, cancelled = await self.wait(function)
        if cancelled is not None:
            raise cancelled
        return how.result()

    def close(self) -> None:
        """Idle threads exit; one that is stuck in a function is a daemon and ends with the process."""
        self.closed = True
        for _ in range(self._threads):
            self._work.put(None)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"treadle-slot-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            function, answer, variables = work
            self._done.append((answer, variables.run(ended, function)))
            # The loop clears the mark before it collects, so a function that finds the mark set will be collected.
            if not self._announced:
                self._announced = True
                self._announce()

    def _announce(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:
            pass  # the loop is closed: the worker left without this thread

    def _collect(self) -> None:
        self._announced = False
        while self._done:
            answer, how = self._done.popleft()
            self._busy -= 1
            if not answer.done():
                answer.set_result(how)
