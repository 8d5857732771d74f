"""Calls plain functions in threads, one thread per concurrent call.

Not `run_in_executor`, because its future wakes the loop once per job. Here finished calls gather in a deque, and the
first one of a burst wakes the loop for all.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from contextvars import Context as Variables
from contextvars import copy_context

from treadle.policy.judgement import CallResult
from treadle.queue.handlers.context import HandlerServices
from treadle.worker.call import Begun, Call, perform

PendingResult = asyncio.Future[CallResult]


class ThreadCaller:
    """A thread can't be stopped: its handler sees an interrupt at its next checkpoint."""

    def __init__(self, services: HandlerServices) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Call, PendingResult, Variables] | None] = queue.SimpleQueue()
        self._done: deque[tuple[PendingResult, CallResult]] = deque()
        self._announced = False
        self._busy = 0
        self._closed = False
        self._threads = 0

    def begin(self, call: Call) -> Begun:
        self._busy += 1
        if self._busy > self._threads:
            self._start_thread()
        answer: PendingResult = self._loop.create_future()
        # Copied here, as in `asyncio.to_thread`, so that the handler sees the job and the span of its slot.
        self._work.put((call, answer, copy_context()))
        return self._wait(answer)

    async def _wait(self, answer: PendingResult) -> CallResult:
        """The thread continues even if the slot's task is cancelled, and the job is not over until it ends."""
        try:
            while True:
                try:
                    return await asyncio.shield(answer)
                except asyncio.CancelledError:
                    if self._closed:
                        raise
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Idle threads exit; one that is stuck in a handler is a daemon and ends with the process."""
        self._closed = True
        for _ in range(self._threads):
            self._work.put(None)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"treadle-slot-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            call, answer, variables = work
            self._done.append((answer, variables.run(perform, call, self._services)))
            # The loop clears the mark before it collects, so a call of a thread that finds the mark set will be
            # collected.
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
            answer, result = self._done.popleft()
            answer.set_result(result)  # shielded from cancels of its slot, so it is neither set nor cancelled yet
