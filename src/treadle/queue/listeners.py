"""Functions of the program that are called for events: `@queue.on("job:completed")`.

Listeners read the feed of one event loop of this process, which every change in the database reaches. Each listener has
its own position and its own task, so it gets its events in order, one at a time, and a slow one does not delay others.
One that falls behind by more events than the feed keeps misses some, and the log says so. Whatever a listener raises is
logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue as threads
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic_core import from_json

from treadle.model.errors import InvalidInput
from treadle.model.events import ENQUEUED, checked_event
from treadle.model.job import Job, checked_topic
from treadle.model.raised import is_ctrl_c, one_line
from treadle.queue.background import end
from treadle.queue.handlers.hooks import is_async
from treadle.store.values import NewJob

if TYPE_CHECKING:
    from treadle.events.feed import Feed, Listener
    from treadle.events.ring import FeedEvent
    from treadle.queue.session import Session

log = logging.getLogger("treadle.listeners")

Bind = Callable[[Job, bool], Job]
"""Gives a job the methods of its queue, for a coroutine or for a plain function."""
AnyListener = TypeVar("AnyListener", bound=Callable[[dict[str, Any]], Any])

# How long listeners may go on with their current event when the queue is closed.
FINISH_S = 5.0
# Jobs that this process has enqueued, to know which are its own.
MOST_ENQUEUED = 100_000

_silenced = False


def silence() -> None:
    """Call no listeners in this process: a child that runs handlers, or a command of an operator."""
    global _silenced  # noqa: PLW0603 - it is a property of the process
    _silenced = True


class Registered(NamedTuple):
    event: str
    function: Callable[[dict[str, Any]], Any]
    topic: str | None
    local: bool

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))


class Listeners:
    """The listeners of a queue. They run on the first of its event loops that opens."""

    def __init__(self, bind: Bind) -> None:
        self._bind = bind
        self.waiting: list[Registered] = []
        """Those that don't listen yet."""
        self.own = OwnJobs()
        self._host: Session | None = None
        self._lock = threading.Lock()

    def add(self, event: str, function: AnyListener, topic: str | None, *, local: bool) -> AnyListener:
        if not callable(function):
            raise InvalidInput(f"on: {function!r} is not a function", field="on")
        found = Registered(checked_event(event), function, None if topic is None else checked_topic(topic), local)
        with self._lock:
            self.waiting.append(found)
            self.own.kept = self.own.kept or local
        return function

    async def begin(self, session: Session) -> None:
        """Start those that wait: they hear everything that happens after this."""
        with self._lock:
            waiting, self.waiting = self.waiting, []
            if _silenced:
                return
            host = self._host = self._host or session
        starting = self._start(host, waiting)
        try:
            if host is session:
                await starting
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(starting, host.loop))
        except BaseException:
            starting.close()
            self._put_back(waiting)
            raise

    async def _start(self, host: Session, waiting: list[Registered]) -> None:
        if host.listeners is None:
            host.listeners = ListenerTasks(host.feed, self.own, self._bind, self._left)
        await host.listeners.add(waiting)

    def _left(self, registered: list[Registered]) -> None:
        """Their loop is closed; the next use of the queue on another one starts them there."""
        with self._lock:
            self._host = None
        self._put_back(registered)

    def _put_back(self, registered: list[Registered]) -> None:
        with self._lock:
            self.waiting = [*registered, *self.waiting]


class OwnJobs:
    """Which jobs belong to this process: those that its workers run, and before that, those that it has enqueued."""

    def __init__(self) -> None:
        self.workers: set[str] = set()
        self.kept = False
        """Whether anybody asks."""
        self._enqueued: OrderedDict[str, None] = OrderedDict()

    def made(self, jobs: Iterable[NewJob]) -> None:
        """Before they are stored, because the feed may be faster than the answer."""
        for job in jobs:
            self._enqueued[job.id] = None
        while len(self._enqueued) > MOST_ENQUEUED:
            self._enqueued.popitem(last=False)

    def include(self, event: str, job: Mapping[str, Any]) -> bool:
        worker = job.get("lastWorker") if event != ENQUEUED else None
        return worker in self.workers if worker else job["id"] in self._enqueued


class ListenerTasks:
    """The listeners on one event loop."""

    def __init__(self, feed: Feed, own: OwnJobs, bind: Bind, left: Callable[[list[Registered]], None]) -> None:
        self._feed = feed
        self._own = own
        self._bind = bind
        self._left = left
        self._calls: dict[asyncio.Task[None], Calls] = {}
        self._stopping = False

    async def add(self, registered: list[Registered]) -> None:
        """They hear everything that happens after this. All of them or none."""
        async with contextlib.AsyncExitStack() as opened:
            positions = []
            for one in registered:
                position = await self._position(one)
                opened.push_async_callback(position.close)
                positions.append((one, position))
            opened.pop_all()
        for one, position in positions:
            calls = Calls(one)
            task = asyncio.create_task(self._listen(calls, position), name=f"treadle-listener {one.name}")
            self._calls[task] = calls

    async def _position(self, one: Registered) -> Listener:
        def wanted(job: Mapping[str, Any]) -> bool:
            return one.topic in (None, job["topic"]) and (not one.local or self._own.include(one.event, job))

        return await self._feed.listener(match=wanted, event=one.event, lasting=True)

    async def stop(self) -> None:
        """Let each finish its current event, for a limited time."""
        self._stopping = True
        for task, calls in self._calls.items():
            if not calls.busy:
                task.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=FINISH_S)
        await end([task for task in self._calls if not task.done()], FINISH_S)
        self._left([calls.listener for calls in self._calls.values()])

    async def _listen(self, calls: Calls, position: Listener) -> None:
        one = calls.listener
        try:
            while not self._stopping and (told := await position.next()):
                if told.event == one.event:
                    await calls.call(self._event(one, told))
                else:
                    log.warning("the listener %s of %s is too slow; it has missed events", one.name, one.event)
        finally:
            calls.close()
            await position.close()

    def _event(self, one: Registered, told: FeedEvent) -> dict[str, Any]:
        event: dict[str, Any] = from_json(told.data)
        if "job" in event:
            event["job"] = self._bind(Job.from_json(event["job"]), is_async(one.function))
        return event


class Calls:
    """The calls of one listener, one after the other."""

    def __init__(self, listener: Registered) -> None:
        self.listener = listener
        self.busy = False
        self._thread = None if is_async(listener.function) else OneThread()

    async def call(self, event: dict[str, Any]) -> None:
        """In a task of its own, so that a listener which cancels its task cancels nothing else."""
        call = asyncio.create_task(self._call(event))
        self.busy = True
        try:
            await asyncio.wait((call,))
        finally:
            self.busy = False
            await end([call])
        if call.cancelled():
            self._failed(event, asyncio.CancelledError())

    async def _call(self, event: dict[str, Any]) -> None:
        try:
            if self._thread is None:
                await self.listener.function(event)
            else:
                await self._thread.run(lambda: self.listener.function(event))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # even an exit: a listener must not harm its process
            if is_ctrl_c(error):
                raise
            self._failed(event, error)

    def _failed(self, event: dict[str, Any], error: BaseException) -> None:
        job = event["job"].id if "job" in event else event["deletedJobId"]
        stack = "".join(traceback.format_tb(error.__traceback__))
        text = f"{stack}{one_line(error)}"
        log.error("the listener %s of %s of job %s failed\n%s", self.listener.name, event["event"], job, text)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()


class OneThread:
    """Calls functions in a thread of its own. It is a daemon: one that never returns does not keep the process."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: threads.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[BaseException | None]] | None]
        self._work = threads.SimpleQueue()
        self._started = False

    async def run(self, function: Callable[[], Any]) -> None:
        """Raises what the function raises. It can't be stopped: after a cancel its end is not waited for."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, name="treadle-listener", daemon=True).start()
        answer: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._work.put((function, answer))
        error = await answer
        if error is not None:
            raise RuntimeError("the listener raised StopIteration") if isinstance(error, StopIteration) else error

    def close(self) -> None:
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            function, answer = work
            error = _raised_by(function)
            try:
                self._loop.call_soon_threadsafe(_settle, answer, error)
            except RuntimeError:
                return  # the loop is closed


def _raised_by(function: Callable[[], Any]) -> BaseException | None:
    try:
        function()
    except BaseException as error:
        return error
    return None


def _settle(answer: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    if not answer.done():
        answer.set_result(error)
