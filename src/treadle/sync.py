"""The blocking face of a queue: the same methods, forwarded to an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from treadle.errors import InvalidInput
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


class SyncQueue:
    """`queue.sync`: for code without an event loop. Safe to use from any number of threads."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

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
    cancel = blocking(Queue.cancel)
    requeue = blocking(Queue.requeue)
    release = blocking(Queue.release)
    reschedule = blocking(Queue.reschedule)
    delete = blocking(Queue.delete)
    pause = blocking(Queue.pause)
    resume = blocking(Queue.resume)
    work = blocking(Queue.work)

    def close(self) -> None:
        """Close the queue and end the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._queue.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def __enter__(self) -> SyncQueue:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        loop = self._started()
        if loop is _running():
            work.close()
            raise InvalidInput("queue.sync can't be used on its own event loop")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=(self._loop,), name="treadle-sync", daemon=True).start()
            return self._loop

    def _here(self, method: Callable[..., Coroutine[Any, Any, R]], args: Any, kwargs: Any) -> R:
        """On the caller's own connection, so in the caller's own thread.

        Everything that needs the store is fetched first; what is left then never really awaits.
        """
        joined = _Joined(self._queue, self._run(self._queue._session()))
        topic = args[0] if args else kwargs.get("topic")
        if isinstance(topic, str):
            self._run(self._queue._template(joined.session, topic))
        work = method(joined, *args, **kwargs)
        try:
            work.send(None)
        except StopIteration as stop:
            result: R = stop.value
            return result
        work.close()
        raise InvalidInput("queue.sync needs a blocking connection; use await queue.enqueue(…) with an async one")


class _Joined(Queue):
    """The queue as seen from a thread without a loop: its session is there already."""

    def __init__(self, queue: Queue, session: Any) -> None:
        self.__dict__.update(queue.__dict__)
        self.session = session

    async def _session(self) -> Any:
        return self.session

    async def _template(self, session: Any, topic: str) -> Any:
        handler = self.handlers.get(topic)
        from treadle.template import Template

        return handler.template if handler else session.templates.get(topic) or Template(topic)


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
