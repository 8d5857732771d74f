"""The blocking API of a queue: the same methods, forwarded to an event loop in a background thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, cast, overload

from typing_extensions import Unpack

from treadle.model.durations import Duration
from treadle.model.errors import InvalidInput, Refused, StoreUnavailable
from treadle.model.job import Job
from treadle.model.job import ResultT as JobResultT
from treadle.model.output import DEFAULT_CHANNEL
from treadle.queue.enqueueing.known_templates import KnownTemplates
from treadle.queue.enqueueing.new_jobs import EnqueueOptions, TopicOwner
from treadle.queue.handlers.flows import Flow, FlowPayloadT
from treadle.queue.handlers.tasks import ArgumentsTask, PayloadT, PayloadTask, ResultT
from treadle.queue.queue import Queue
from treadle.queue.sync_parts import SyncSchedules, SyncTemplates, SyncWebhooks
from treadle.store.values import Inserted, NewJob

if TYPE_CHECKING:
    from treadle.events.output import OutputEvent
    from treadle.model.events import Event

P = ParamSpec("P")
R = TypeVar("R")


class SyncJob(Job[JobResultT]):
    """A job from `queue.sync`: the same fields, with blocking methods."""

    __slots__ = ()

    def refresh(self) -> SyncJob[JobResultT]:  # type: ignore[override]
        """Read the job again: this object shows its current state, and so does the returned one."""
        return self._updated(self._blocking().get(self.id))

    def cancel(self, reason: str = "") -> SyncJob[JobResultT]:  # type: ignore[override]
        """See `Queue.cancel`."""
        return self._blocking().cancel(self.id, reason)

    def requeue(self, *, force: bool = False) -> SyncJob[JobResultT]:  # type: ignore[override]
        """See `Queue.requeue`."""
        return self._blocking().requeue(self.id, force=force)

    def signal(self, step: str, value: Any = None, *, error: str | None = None) -> SyncJob[JobResultT]:  # type: ignore[override]
        """See `Queue.signal`."""
        return self._blocking().signal(self.id, step, value, error=error)

    def delete(self, *, force: bool = False) -> None:  # type: ignore[override]
        """See `Queue.delete`."""
        self._blocking().delete(self.id, force=force)

    def result(self, timeout: Duration | None = None) -> JobResultT:  # type: ignore[override]
        """Wait until the job has ended and return its result; JobFailed if it did not complete."""
        return cast(JobResultT, self._blocking().result(self.id, timeout))

    def events(self) -> Sequence[Event]:  # type: ignore[override]
        """See `Queue.events`."""
        return self._blocking().events(self.id)

    def why(self) -> Sequence[str]:  # type: ignore[override]
        """See `Queue.why`."""
        return self._blocking().why(self.id)

    def watch(self) -> Generator[SyncJob[JobResultT]]:  # type: ignore[override]
        """See `Queue.watch`."""
        return self._blocking().watch(self.id)

    def output(self, channel: str = DEFAULT_CHANNEL, *, after: int = 0, latest: bool = False) -> Generator[Any]:  # type: ignore[override]
        """See `Queue.output`."""
        return self._blocking().output(self.id, channel, after=after, latest=latest)

    def _blocking(self) -> SyncQueue:
        return cast(SyncQueue, self._bound())


@overload
def blocking(
    method: Callable[Concatenate[Queue, P], Coroutine[Any, Any, Job]],
) -> Callable[Concatenate[SyncQueue, P], SyncJob]: ...
@overload
def blocking(
    method: Callable[Concatenate[Queue, P], Coroutine[Any, Any, list[Job]]],
) -> Callable[Concatenate[SyncQueue, P], list[SyncJob]]: ...
@overload
def blocking(
    method: Callable[Concatenate[Queue, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncQueue, P], R]: ...
def blocking(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Make a coroutine method blocking, with the same signature and docstring. Returned jobs are blocking too."""

    @functools.wraps(method)
    def call(self: SyncQueue, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("connection") is not None:
            return self._bind(self._here(method, args, kwargs))
        return self._bind(self._run(getattr(self._queue, method.__name__)(*args, **kwargs)))

    return call


class _Turning(NamedTuple):
    """An event loop and the thread that runs it."""

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
        self.schedules = SyncSchedules(self, queue.schedules)
        self.templates = SyncTemplates(self, queue.templates)
        self.webhooks = SyncWebhooks(self, queue.webhooks)
        self._loop_only = False
        self._direct: _Direct | Literal[False] | None = None
        """The fast path for enqueues in the caller's thread; False if the store has none."""

    open = blocking(Queue.open)
    migrate = blocking(Queue.migrate)
    save_templates = blocking(Queue.save_templates)

    @overload
    def enqueue(self, topic: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> SyncJob: ...
    @overload
    def enqueue(
        self,
        topic: PayloadTask[..., PayloadT, Any, ResultT],
        payload: PayloadT | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncJob[ResultT]: ...
    @overload
    def enqueue(
        self,
        topic: ArgumentsTask[..., ..., Any, ResultT, Any],
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncJob[ResultT]: ...
    @overload
    def enqueue(
        self, topic: Flow[FlowPayloadT], payload: FlowPayloadT | None = None, **options: Unpack[EnqueueOptions]
    ) -> SyncJob: ...
    @functools.wraps(Queue.enqueue)
    def enqueue(self, topic: str | TopicOwner, payload: Any = None, **options: Unpack[EnqueueOptions]) -> SyncJob:
        if options.get("connection") is not None:
            job = self._here(Queue.enqueue, (topic, payload), options)
        else:
            job = self._enqueue_here(topic, payload, options) or self._run(self._enqueue(topic, payload, options))
        return cast(SyncJob, self._bind(job))

    enqueue_many = blocking(Queue.enqueue_many)
    get = blocking(Queue.get)
    list = blocking(Queue.list)
    count = blocking(Queue.count)
    stats = blocking(Queue.stats)
    events = blocking(Queue.events)
    why = blocking(Queue.why)
    result: Callable[..., Any] = blocking(Queue.result)
    topics = blocking(Queue.topics)
    template = blocking(Queue.template)
    cancel = blocking(Queue.cancel)
    cancel_many = blocking(Queue.cancel_many)
    requeue = blocking(Queue.requeue)
    requeue_many = blocking(Queue.requeue_many)
    requeue_plan = blocking(Queue.requeue_plan)
    signal = blocking(Queue.signal)
    steps = blocking(Queue.steps)
    release = blocking(Queue.release)
    release_many = blocking(Queue.release_many)
    reschedule = blocking(Queue.reschedule)
    reschedule_many = blocking(Queue.reschedule_many)
    delete = blocking(Queue.delete)
    delete_many = blocking(Queue.delete_many)
    drain = blocking(Queue.drain)
    undrain = blocking(Queue.undrain)
    pause = blocking(Queue.pause)
    resume = blocking(Queue.resume)
    work = blocking(Queue.work)
    run_until_empty = blocking(Queue.run_until_empty)
    reclaim = blocking(Queue.reclaim)

    def close(self) -> None:
        """Close the queue and end the thread."""
        with self._lock:
            turning, self._turning, self._direct = self._turning, None, None
        if turning is not None and turning.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(self._wind_up(), turning.loop).result()
            turning.loop.call_soon_threadsafe(turning.loop.stop)
            turning.thread.join()

    async def _wind_up(self) -> None:
        """Cancel the pending calls, which tells their callers, then close the queue."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._queue.close()

    @overload
    def stream(
        self, *, topic: str | None = None, job_id: str | None = None, snapshot: bool = False, format: None = None
    ) -> Generator[dict[str, Any]]: ...
    @overload
    def stream(
        self, *, topic: str | None = None, job_id: str | None = None, snapshot: bool = False, format: Literal["sse"]
    ) -> Generator[bytes]: ...
    def stream(
        self,
        *,
        topic: str | None = None,
        job_id: str | None = None,
        snapshot: bool = False,
        format: Literal["sse"] | None = None,
    ) -> Generator[Any]:
        """See `Queue.stream`."""
        source: AsyncGenerator[Any] = Queue.stream(
            self._queue, topic=topic, job_id=job_id, snapshot=snapshot, format=cast(Any, format)
        )
        return self._iterate(source)

    def watch(self, job_id: str) -> Generator[SyncJob]:
        """See `Queue.watch`."""
        return self._iterate(self._queue.watch(job_id))

    @overload
    def output(
        self, job_id: str, channel: str = DEFAULT_CHANNEL, *, after: int = 0, latest: bool = False
    ) -> Generator[Any]: ...
    @overload
    def output(
        self,
        job_id: str,
        channel: str = DEFAULT_CHANNEL,
        *,
        after: int = 0,
        latest: bool = False,
        events: Literal[True],
    ) -> Generator[OutputEvent]: ...
    def output(
        self,
        job_id: str,
        channel: str = DEFAULT_CHANNEL,
        *,
        after: int = 0,
        latest: bool = False,
        events: bool = False,
    ) -> Generator[Any]:
        """See `Queue.output`."""
        return self._iterate(
            Queue.output(self._queue, job_id, channel, after=after, latest=latest, events=cast(Any, events))
        )

    def _iterate(self, source: AsyncGenerator[Any]) -> Generator[Any]:
        async def following() -> Any:
            return await anext(source, _END)

        try:
            while (found := self._run(following())) is not _END:
                yield self._bind(found)
        finally:
            self._run(source.aclose())

    def _bind(self, answer: Any) -> Any:
        """Turn the jobs in an answer into blocking ones."""
        if isinstance(answer, Job):
            answer.__class__ = SyncJob
            answer.queue = cast(Any, self)
        elif type(answer) is _LIST and answer and isinstance(answer[0], Job):
            for one in answer:
                self._bind(one)
        return answer

    @property
    def is_open(self) -> bool:
        return self._turning is not None and self._turning.pid == os.getpid()

    @contextlib.contextmanager
    def on_its_loop_only(self) -> Iterator[None]:
        """Inside the block, no enqueue runs in the caller's thread."""
        self._loop_only = True
        try:
            yield
        finally:
            self._loop_only = False

    def __enter__(self) -> SyncQueue:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        # Submitted under the lock, so that a call submitted before a close is told about the close.
        with self._lock:
            loop = self._started()
            if loop is _running():
                work.close()
                raise InvalidInput("queue.sync can't be used on its own event loop; await the queue's methods there")
            answer = asyncio.run_coroutine_threadsafe(self._call(work), loop)
        try:
            return answer.result()
        except CancelledError:
            raise StoreUnavailable("the queue was closed during the call") from None
        except BaseException:
            answer.cancel()  # Ctrl-C while waiting; has no effect if the answer has arrived
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
        # A forked process has the loop but not the thread that runs it.
        if self._turning is None or self._turning.pid != os.getpid():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_turn, args=(loop,), name="treadle-sync", daemon=True)
            thread.start()
            self._calls = set()
            self._direct = None
            self._turning = _Turning(loop, thread, os.getpid())
        return self._turning.loop

    def _enqueue_here(self, topic: str | TopicOwner, payload: Any, options: EnqueueOptions) -> Job | None:
        """Enqueue in the caller's thread, which waits for the disk; None if that is not possible now.

        Passing a job to the loop's thread and from there to the writer's costs several times what SQLite takes to store
        it. While others write, joining their commit is cheaper.
        """
        direct = self._direct
        if not direct or self._loop_only or not self._is_elsewhere():
            return None
        try:
            return _finished(Queue.enqueue(direct, cast(str, topic), payload, **options))
        except _NotHere:
            return None

    def _is_elsewhere(self) -> bool:
        """Whether the loop runs, in a thread other than this one."""
        turning = self._turning
        return turning is not None and turning.pid == os.getpid() and turning.thread is not threading.current_thread()

    async def _enqueue(self, topic: str | TopicOwner, payload: Any, options: EnqueueOptions) -> Job:
        """Enqueue on the loop. Once the queue is open, later calls may take the fast path."""
        job = await self._queue.enqueue(cast(str, topic), payload, **options)
        if self._direct is None:
            session = await self._queue._session()
            here = session.store.insert_here([]) is not None
            self._direct = _Direct(self._queue, session) if here else False
        return job

    def _here(self, method: Callable[..., Coroutine[Any, Any, R]], args: Any, kwargs: Any) -> R:
        """Run on the caller's connection, and therefore in the caller's thread.

        Everything that needs the store is fetched first, so the rest never has to wait.
        """
        if _asynchronous(kwargs["connection"]):
            raise InvalidInput(
                "connection: queue.sync needs a blocking one; use await queue.enqueue(…) with an async one",
                field="connection",
            )
        return _finished(method(_Joined(self._queue, self._run(self._queue._session(joined=True))), *args, **kwargs))


def _finished(work: Coroutine[Any, Any, R]) -> R:
    """The result of a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: R = stop.value
        return result
    work.close()
    raise AssertionError("what was to be done in the caller's thread had to be awaited")


class _Joined(Queue):
    """The queue for a thread without an event loop, with its session already open."""

    def __init__(self, queue: Queue, session: Any) -> None:
        self.__dict__.update(queue.__dict__)
        self.queue = queue
        self.session = session
        self._known = _AlreadyRead(queue._known)

    def _bind(self, job: Job) -> Job:
        return self.queue._bind(job)

    async def _session(self, *, joined: bool = False) -> Any:
        return self.session


class _AlreadyRead(KnownTemplates):
    def __init__(self, known: KnownTemplates) -> None:
        self.__dict__.update(known.__dict__)

    async def read(self, session: Any) -> None:
        """It was read with the session."""


class _NotHere(Exception):
    """The call has to run on the loop: another thread or process is writing, or the store has to be read first."""


class _Direct(_Joined):
    """The same for plain enqueues, which join no transaction."""

    def __init__(self, queue: Queue, session: Any) -> None:
        super().__init__(queue, session)
        self._known = _KnownHere(queue._known)

    async def _session(self, *, joined: bool = False) -> Any:
        if not self.session.saved or self.listeners.waiting:
            raise _NotHere
        return self.session

    async def _add(self, session: Any, job: NewJob) -> Inserted:
        answers = session.store.insert_here([job])
        if answers is None:
            raise _NotHere
        [answer] = answers
        if isinstance(answer, Refused):
            raise answer
        if answer.existing_id is not None:
            raise _NotHere  # the loop enqueues again, finds the existing job and reads it
        return cast(Inserted, answer)


class _KnownHere(_AlreadyRead):
    async def read(self, session: Any) -> None:
        if self.are_old(session):
            raise _NotHere

    async def save(self, session: Any) -> None:
        raise _NotHere


# Inside the class, `list` is the method.
_LIST = list
_END = object()


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


FORWARDED = [
    name for name, one in vars(SyncQueue).items() if getattr(one, "__wrapped__", None) is getattr(Queue, name, one)
]
