"""Runs plain functions in threads of their own, as many as jobs of that kind run at once.

Not `run_in_executor`: its future per call wakes the loop once per job. Here finished jobs gather in a
deque, and the first of a burst wakes the loop for all.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from contextvars import Context as Variables
from contextvars import copy_context

from treadle.context import Context, Desk
from treadle.lifecycle import Outcome
from treadle.worker import outcomes
from treadle.worker.run import Run

Answer = asyncio.Future[Outcome | None]


class Threads:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Run, Answer, Variables] | None] = queue.SimpleQueue()
        self._done: deque[tuple[Answer, Outcome | None]] = deque()
        self._announced = False
        self._busy = 0
        self._closed = False
        self._threads = 0

    async def perform(self, run: Run) -> Outcome | None:
        self._busy += 1
        if self._busy > self._threads:
            self._start_thread()
        answer: Answer = self._loop.create_future()
        # Taken here, as `asyncio.to_thread` does: the handler sees the job and the span that its slot is at.
        self._work.put((run, answer, copy_context()))
        try:
            return await self._wait(answer)
        finally:
            self._busy -= 1

    async def _wait(self, answer: Answer) -> Outcome | None:
        """Whoever cancels the slot's task: the thread goes on, and as long as it does the job is not over."""
        while True:
            try:
                return await asyncio.shield(answer)
            except asyncio.CancelledError:
                if self._closed:
                    raise

    def close(self) -> None:
        """Idle threads leave; one that is stuck in a handler is a daemon and goes with the process."""
        self._closed = True
        for _ in range(self._threads):
            self._work.put(None)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"treadle-slot-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            run, answer, variables = work
            outcome = variables.run(call, run, self._desk)
            self._done.append((answer, outcome))
            # The loop clears the mark before it collects, so whoever sees it set will be collected.
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
            answer, outcome = self._done.popleft()
            answer.set_result(outcome)  # shielded from whoever cancels its slot: nobody else sets or cancels it


def call(run: Run, desk: Desk) -> Outcome | None:
    """A plain function's whole attempt, in its own thread: the loop does none of its work."""
    handler = run.recipe.handler
    try:
        payload = handler.payload(run.job.payload)
    except Exception as error:  # whatever the payload's type raises
        return outcomes.final(error)
    try:
        result = handler.function(*handler.arguments(Context(run, desk, payload), payload))
    except BaseException as error:  # an exit in a handler ends the job, not the worker
        return outcomes.of_error(run, error)
    return outcomes.of_return(run, outcomes.stored(handler, result))
