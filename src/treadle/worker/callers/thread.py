"""Calls plain functions in threads, one thread per concurrent call."""

from __future__ import annotations

import asyncio
from functools import partial

from treadle.policy.judgement import CallResult
from treadle.queue.handlers.context import HandlerServices
from treadle.worker.call import Begun, Call, perform
from treadle.worker.threads import Answer, Threads


class ThreadCaller:
    """A thread can't be stopped: its handler sees an interrupt at its next checkpoint."""

    def __init__(self, services: HandlerServices, threads: Threads) -> None:
        self._services = services
        self._threads = threads

    def begin(self, call: Call) -> Begun:
        return self._wait(call, self._threads.start(partial(perform, call, self._services)))

    async def _wait(self, call: Call, answer: Answer) -> CallResult:
        """The thread continues even if the slot's task is cancelled, and the job is not over until it ends."""
        while True:
            try:
                value, error = await asyncio.shield(answer)
            except asyncio.CancelledError:
                if self._threads.closed:
                    raise
            else:
                result: CallResult = value if error is None else call.function.raised(call, error)
                return result
