"""Calls users' functions of retention: any failure is an answer, and no call takes longer than its time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from typing import Any

from treadle.model.job import Job
from treadle.queue.handlers.hooks import Hook, is_async

TIMEOUT_S = 30.0
# Calls of one hook that outlived their time and still run. A function in a thread can't be stopped.
MOST_STUCK = 4


class HookCalls:
    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._stuck: Counter[Hook] = Counter()

    async def call(self, hook: Hook, job: Job) -> BaseException | None:
        """What the hook raised."""
        if self._stuck[hook] >= MOST_STUCK:
            return TimeoutError(f"{MOST_STUCK} earlier calls still run")
        call = asyncio.ensure_future(_outcome(hook, job) if is_async(hook) else _in_thread(hook, job))
        try:
            done, _ = await asyncio.wait([call], timeout=self._timeout_s)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if done:
            return call.result()
        self._stuck[hook] += 1
        call.add_done_callback(lambda _: self._stuck.subtract([hook]))
        call.cancel()
        return TimeoutError(f"it took more than {self._timeout_s:g} s")


async def _outcome(hook: Hook, job: Job) -> BaseException | None:
    try:
        await hook(job)
    except BaseException as error:  # whatever it is, it is the hook's: a cancel of the caller's ends the task's wait
        return error
    return None


def _in_thread(hook: Hook, job: Job) -> asyncio.Future[BaseException | None]:
    """In a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[BaseException | None] = _Uncancellable(loop=loop)
    context = contextvars.copy_context()

    def run() -> None:
        error: BaseException | None = None
        try:
            context.run(hook, job)
        except BaseException as raised:
            error = raised
        _tell(loop, answer, error)

    threading.Thread(target=run, name=f"treadle-{getattr(hook, '__name__', 'hook')}", daemon=True).start()
    return answer


def _tell(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], error: BaseException | None) -> None:
    def tell() -> None:
        if not answer.done():
            answer.set_result(error)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        pass  # the loop was closed before the hook came back


class _Uncancellable(asyncio.Future[BaseException | None]):
    """Done when the thread is: a function can't be stopped, and counts as stuck until then."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False
