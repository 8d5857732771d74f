"""The blocking face of a queue: the same methods, forwarded to an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from treadle.errors import InvalidInput, StoreUnavailable
from treadle.job import Job
from treadle.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")


def blocking(
    method: Callable[Concatenate[Queue, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncQueue, P], R]:
    """Forward a coroutine method; its signature and its documentation stay."""

    @functools.wraps(method)
    def call(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.get("connection") is not None:
            return self._here(method, args, kwargs)
        return self._run(method(self._queue, *args, **kwargs))

    return call


class _Turning(NamedTuple):
    """An event loop and the thread that turns it."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    pid: int


class SyncQueue:
    """`queue.sync`: for code without an event loop. Safe to use from any number of threads."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._turning: _Turning | None = None
        self._lock = threading.Lock()
        self._calls: set[asyncio.Task[Any]] = set()

    open = blocking(Queue.open)
    migrate = blocking(Queue.migrate)
    save_templates = blocking(Queue.save_templates)
    enqueue = blocking(Queue.enqueue)
    enqueue_many = blocking(Queue.enqueue_many)
    get = blocking(Queue.get)
    list = blocking(Queue.list)
    count = blocking(Queue.count)
    stats = blocking(Queue.stats)
    events = blocking(Queue.events)
    why = blocking(Queue.why)
    result = blocking(Queue.result)
    topics = blocking(Queue.topics)
    template = blocking(Queue.template)
    cancel = blocking(Queue.cancel)
    cancel_many = blocking(Queue.cancel_many)
    requeue = blocking(Queue.requeue)
    requeue_many = blocking(Queue.requeue_many)
    release = blocking(Queue.release)
    release_many = blocking(Queue.release_many)
    reschedule = blocking(Queue.reschedule)
    delete = blocking(Queue.delete)
    delete_many = blocking(Queue.delete_many)
    pause = blocking(Queue.pause)
    resume = blocking(Queue.resume)
    work = blocking(Queue.work)

    def close(self) -> None:
        """Close the queue and end the thread."""
        with self._lock:
            turning, self._turning = self._turning, None
        if turning is not None and turning.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(self._wind_up(), turning.loop).result()
            turning.loop.call_soon_threadsafe(turning.loop.stop)
            turning.thread.join()

    async def _wind_up(self) -> None:
        """Those who still wait are told; then the queue is closed."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._queue.close()

    def __enter__(self) -> SyncQueue:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        # Handed over under the lock: whatever was handed over before a close is told that it was closed.
        with self._lock:
            loop = self._started()
            if loop is _running():
                work.close()
                raise InvalidInput("queue.sync can't be used on its own event loop")
            answer = asyncio.run_coroutine_threadsafe(self._call(work), loop)
        try:
            return answer.result()
        except CancelledError:
            raise StoreUnavailable("the queue was closed meanwhile") from None
        except BaseException:
            answer.cancel()  # Ctrl-C while waiting; without effect on an answer that is there
            raise

    async def _call(self, work: Coroutine[Any, Any, R]) -> R:
        task = asyncio.current_task()
        assert task
        self._calls.add(task)
        try:
            return await work
        finally:
            self._calls.discard(task)

    def _started(self) -> asyncio.AbstractEventLoop:
        # A fork has the loop but not the thread that turns it.
        if self._turning is None or self._turning.pid != os.getpid():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_turn, args=(loop,), name="treadle-sync", daemon=True)
            thread.start()
            self._calls = set()
            self._turning = _Turning(loop, thread, os.getpid())
        return self._turning.loop

    def _here(self, method: Callable[..., Coroutine[Any, Any, R]], args: Any, kwargs: Any) -> R:
        """On the caller's own connection, so in the caller's own thread.

        Everything that needs the store is fetched first; what is left then never really awaits.
        """
        if _asynchronous(kwargs["connection"]):
            raise InvalidInput(
                "connection: queue.sync needs a blocking one; use await queue.enqueue(…) with an async one",
                field="connection",
            )
        work = method(_Joined(self._queue, self._run(self._queue._session(joined=True))), *args, **kwargs)
        try:
            work.send(None)
        except StopIteration as stop:
            result: R = stop.value
            return result
        work.close()
        raise AssertionError("a blocking connection had to be awaited")


class _Joined(Queue):
    """The queue as seen from a thread without a loop: its session is there already."""

    def __init__(self, queue: Queue, session: Any) -> None:
        self.__dict__.update(queue.__dict__)
        self.queue = queue
        self.session = session

    def _bind(self, job: Job) -> Job:
        return self.queue._bind(job)

    async def _session(self, *, joined: bool = False) -> Any:
        return self.session

    async def _read_templates(self, session: Any) -> None:
        """They were read on the way here."""


def _asynchronous(connection: Any) -> bool:
    execute = getattr(connection, "execute", None)
    return execute is not None and inspect.iscoroutinefunction(inspect.unwrap(execute))


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


FORWARDED = [name for name, one in vars(SyncQueue).items() if inspect.isfunction(one) and hasattr(one, "__wrapped__")]
