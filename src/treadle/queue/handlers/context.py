"""The `ctx` that a handler gets: facts about its job, and requests to the worker that runs it.

Every kind of handler gets this class. The differences between a coroutine, a thread and a process (how a heartbeat is
written, how an enqueue is awaited) are behind `HandlerServices`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, overload

from typing_extensions import Unpack

from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import InvalidInput, Suspend
from treadle.model.handler import HandlerContext
from treadle.model.output import DEFAULT_CHANNEL, checked_channel, value_text
from treadle.model.retry import Retry
from treadle.model.steps import SLEEP
from treadle.policy.mapping import LIMIT, ItemKey
from treadle.queue.enqueueing.new_jobs import EnqueueOptions, TopicOwner, topic_of
from treadle.queue.handlers import children
from treadle.queue.handlers.mapped import Map, MapOptions, awaited_map
from treadle.queue.handlers.steps import (
    Run,
    StepRecord,
    Wait,
    Waiting,
    awaited_step,
    awaited_wait,
    deadline,
    innermost_step,
)
from treadle.queue.handlers.tasks import ArgumentsTask, PayloadT, PayloadTask, ResultT
from treadle.telemetry.log_context import facts_of

if TYPE_CHECKING:
    from treadle.model.job import Job
    from treadle.policy.judgement import Raised
    from treadle.queue.handlers.children import ChildRequest, Key, Requests
    from treadle.queue.handlers.flows import Flow, FlowPayloadT
    from treadle.store.values import Claimed

    class AwaitableJob(Job[ResultT], Awaitable[Job[ResultT]]):
        """The return value of `ctx.enqueue`: the job, or in a coroutine an awaitable for it."""


LEAST_LEASE_MS, MOST_LEASE_MS = 5_000, 3_600_000


class RunningCall(Protocol):
    """The parts of the running call that a context needs."""

    suspended: Suspend | None
    """Set once the handler was told to leave because it has to wait."""
    task: asyncio.Task[Any] | None
    """Of a coroutine that has waited: where it runs."""
    asked_context: Context | None
    """Made because code without `ctx` asked for it."""

    @property
    def job(self) -> Claimed: ...
    @property
    def step(self) -> str:
        """The declared step that it runs; empty in a plain handler."""

    @property
    def results(self) -> Mapping[str, Any]: ...
    @property
    def step_result_bytes(self) -> int:
        """How large the result of a step may be."""

    @property
    def cancelled(self) -> bool: ...
    def report(self, percent: int, message: str) -> None: ...
    def check(self) -> None: ...


class HandlerServices(Protocol):
    """Requests that need the store. Awaitable in coroutines, blocking elsewhere."""

    blocking: bool

    @property
    def call_in_process(self) -> Callable[..., Any] | None:
        """Calls a task's function in a process of its own, as a step; None: this is one already."""

    def describe(self, error: BaseException) -> Raised: ...
    def turn(self, call: Any) -> Awaitable[None] | None:
        """In a coroutine, before it does something for a step or a wait; None: it may go on at once."""
        ...

    def recall_step(self, call: Any, name: str, key: str, finish_ms: int | None, item: int | None = None) -> Any: ...
    def begin_map(self, call: Any, name: str, total: int, declared: bool) -> Any: ...
    def record_map(self, call: Any, record: StepRecord | None, name: str, declared: bool) -> Any: ...
    def read_items(self, call: Any, name: str, first: int, last: int) -> Sequence[tuple[int, str | None]]:
        """Blocking, also in a coroutine: a list can't be awaited."""
        ...

    def record_step(self, call: Any, record: StepRecord | None, name: str, key: str) -> Any: ...
    def wait_step(self, call: Any, wait: Wait) -> Any: ...
    def children(self, call: Any, request: ChildRequest) -> Any: ...
    def time_limit(self, seconds: float, error: Callable[[], BaseException]) -> AbstractContextManager[None]:
        """Interrupts a blocking step, where that is possible."""
        ...

    def heartbeat(self, call: Any, lease_ms: int | None = None) -> Any: ...
    def emit(self, call: Any, channel: str, text: str) -> Any: ...
    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any: ...
    def enqueue_with_outcome(
        self, call: Any, topic: str, payload: Any, options: dict[str, Any], step: tuple[str, str] | None
    ) -> Any: ...
    def database(self) -> Any: ...
    def close_database(self, database: Any, context: Context) -> None: ...
    def http(self) -> Any: ...


class AwaitedServices(HandlerServices, Protocol):
    """What a coroutine can ask for besides."""

    def thread_place(self, call: Any) -> AbstractAsyncContextManager[None]:
        """A place among the threads of its job, for a plain function that it makes a step."""
        ...

    def for_threads(self, call: Any) -> HandlerServices:
        """The same for a plain function that it makes a step."""
        ...

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """How the function ended, and a cancel that came while it ran."""
        ...


RunningHandler = tuple[RunningCall, HandlerServices, Any, "Context | None"]
"""A call, the services behind its context, its payload, and the context if its handler wanted one."""
running_handler: ContextVar[RunningHandler | None] = ContextVar("treadle_running_handler", default=None)


def current_context() -> Context:
    """The context of the handler or step that this code runs in, in coroutines and threads; RuntimeError outside."""
    running = running_handler.get()
    if running is None:
        raise RuntimeError("current_context() works in code that a handler or a step calls; no handler runs here")
    call, services, payload, context = running
    if context is not None:
        return context
    if call.asked_context is None:
        call.asked_context = Context(call, services, payload)
    return call.asked_context


class Checkpoint:
    """Already done, so it may be ignored. Awaiting it lets the event loop run once, so that a cancel can arrive."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


CHECKPOINT = Checkpoint()


class Context(HandlerContext):
    """The running job, seen from its handler."""

    __slots__ = ("_call", "_database", "_services", "payload")

    def __init__(self, call: RunningCall, services: HandlerServices, payload: Any) -> None:
        self._call = call
        self._services = services
        self._database: Any = None
        self.payload = payload

    def __repr__(self) -> str:
        return f"<Context of {self.topic} {self.job_id}, attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        return self._call.job.id

    @property
    def topic(self) -> str:
        return self._call.job.topic

    @property
    def attempt(self) -> int:
        """From 1."""
        return self._call.job.attempt

    @property
    def max_attempts(self) -> int:
        return self._call.job.max_attempts

    @property
    def is_retry(self) -> bool:
        return self.attempt > 1

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def auth(self) -> dict[str, str | None]:
        """Who enqueued the job, and the scope it belongs to."""
        job = self._call.job
        return {"createdBy": job.created_by, "scope": job.scope, "scopeId": job.scope_id}

    @property
    def cancelled(self) -> bool:
        """True once a cancel has been requested."""
        return self._call.cancelled

    @property
    def results(self) -> Mapping[str, Any]:
        """The results of the steps that have completed, by name, in the types that their functions return."""
        return self._call.results

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that knows the job: every record has `job_id`, `topic` and `attempt`."""
        job = self._call.job
        return logging.LoggerAdapter(logging.getLogger(f"treadle.jobs.{job.topic}"), facts_of(job))

    @property
    def db(self) -> Any:
        """The queue's database, for the handler's own statements.

        SQLite: a sqlite3 connection for this call alone. PostgreSQL: asyncpg's pool, or in threads and processes the
        same methods blocking.
        """
        if self._database is None:
            self._database = self._services.database()
        return self._database

    @property
    def http(self) -> Any:
        """An HTTP client that all handlers share: aiohttp's, or in threads and processes the same methods blocking."""
        return self._services.http()

    def _close(self) -> None:
        """The call is over."""
        if self._database is not None:
            self._services.close_database(self._database, self)

    def progress(self, percent: float, message: str = "") -> Checkpoint:
        """Report progress from 0 to 100. This is cheap: the worker writes it in batches, a few times a second."""
        self._call.report(max(0, min(100, int(percent))), message)
        return CHECKPOINT

    def emit(self, value: Any, channel: str = DEFAULT_CHANNEL) -> Any:
        """Append a JSON value to a channel of the job's output, for those who follow it. `await` it in a coroutine.

        The worker stores values together, about ten times a second. A retry begins the channel anew for its readers.
        """
        if self._call.suspended is not None:
            raise self._call.suspended
        return self._services.emit(self._call, checked_channel(channel), value_text(value))

    def check_cancelled(self) -> Checkpoint:
        """Stop here if the job should stop: raises JobCancelled, TimeoutError or LeaseLost."""
        self._check()
        limit = deadline.get()
        if limit is not None and time.monotonic() > limit[0]:
            error = limit[1]()
            raise error
        return CHECKPOINT

    def heartbeat(self, lease: Duration | None = None) -> Any:
        """Renew the lease now; LeaseLost if another worker may have the job. `await` it in a coroutine.

        Workers renew leases automatically. Call this to be sure of the lease right before a side effect. `lease`: it
        lasts at least that long from now, 5 seconds to an hour.
        """
        self._check()
        if lease is None:
            return self._services.heartbeat(self._call)
        lease_ms = duration_ms(lease, "lease")
        if not LEAST_LEASE_MS <= lease_ms <= MOST_LEASE_MS:
            raise InvalidInput("lease: use 5s to 1h", field="lease")
        return self._services.heartbeat(self._call, lease_ms)

    def _check(self) -> None:
        """Raise the reason why the handler should stop. A handler that caught a Suspend gets it again."""
        if self._call.suspended is not None:
            raise self._call.suspended
        self._call.check()

    def _leave(self, suspend: Suspend) -> NoReturn:
        self._call.suspended = suspend
        raise suspend

    @overload
    def enqueue(
        self, topic: str, payload: Any = None, *, with_outcome: bool = False, **options: Unpack[EnqueueOptions]
    ) -> AwaitableJob[Any]: ...
    @overload
    def enqueue(
        self,
        topic: PayloadTask[..., PayloadT, Any, ResultT],
        payload: PayloadT | None = None,
        *,
        with_outcome: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> AwaitableJob[ResultT]: ...
    @overload
    def enqueue(
        self,
        topic: ArgumentsTask[..., ..., Any, ResultT, Any],
        payload: Mapping[str, Any] | None = None,
        *,
        with_outcome: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> AwaitableJob[ResultT]: ...
    @overload
    def enqueue(
        self,
        topic: Flow[FlowPayloadT],
        payload: FlowPayloadT | None = None,
        *,
        with_outcome: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> AwaitableJob[Any]: ...
    def enqueue(
        self,
        topic: str | TopicOwner,
        payload: Any = None,
        *,
        with_outcome: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> Any:
        """`queue.enqueue` of a child of this job, with its creator and scope as defaults. `await` it in a coroutine.

        `with_outcome`: store the new job in the transaction that completes this one, or not at all. An attempt that
        does not complete stores no follow-up jobs. In a step, it is the step's end that the new job is stored with. If
        a follow-up job is refused, this job (or step) fails with `FollowUpRefused`.
        """
        if self._call.suspended is not None:
            raise self._call.suspended
        job = self._call.job
        mine = {"created_by": job.created_by, "scope": job.scope, "scope_id": job.scope_id, "parent_id": job.id}
        given = {**mine, **options}
        if with_outcome:
            return self._services.enqueue_with_outcome(self._call, topic_of(topic), payload, given, innermost_step())
        return self._services.enqueue(topic_of(topic), payload, given)

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Awaitable[ResultT]],
        /,
        *args: Any,
        key: str | int = "",
        timeout: Duration | None = None,
        retry: Retry | None = None,
        cancelable: bool = True,
    ) -> Awaitable[ResultT]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., ResultT],
        /,
        *args: Any,
        key: str | int = "",
        timeout: Duration | None = None,
        retry: Retry | None = None,
        cancelable: bool = True,
    ) -> Any: ...
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | int = "",
        timeout: Duration | None = None,
        retry: Retry | None = None,
        cancelable: bool = True,
    ) -> Any:
        """Call `function(*args)` once per job: if it has completed before, return its stored result.

        The step is its name and key. `await` it in a coroutine, where a plain function runs in a thread.
        """
        if self._services.blocking:
            return Run(self, name, function, args, key, timeout, retry, cancelable).blocking()
        return awaited_step(self, name, function, args, key, timeout, retry, cancelable)

    def wait_external(
        self, name: str, /, *, key: str | int = "", answer: Any = None, timeout: Duration | None = None
    ) -> Any:
        """Wait for `queue.signal(job_id, name, value)` and return the value, in the type `answer`.

        The job is set aside and holds no slot; the handler is called again from its start when the answer has come.
        WaitTimeout if there is none in time. `await` it in a coroutine.
        """
        if self._services.blocking:
            return Waiting(self, name, key, answer, timeout).blocking()
        return awaited_wait(self, name, key, answer, timeout)

    def sleep(self, duration: Duration, /, *, key: str | int = "") -> Any:
        """Go on after this time. The job is pending until then; the handler is called again from its start."""
        if self._services.blocking:
            return Waiting(self, SLEEP, key, None, duration, sleeps=True).blocking()
        return awaited_wait(self, SLEEP, key, None, duration, sleeps=True)

    def run(
        self,
        topic: str | TopicOwner,
        payload: Any = None,
        /,
        key: str | int | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Any:
        """Make a child once for its topic and key, wait for its end, and return its result. `await` it in a coroutine.

        This job is set aside until then and holds no slot. ChildFailed if the child did not complete. The child has
        this job's creator, scope and priority, and its own template's retries and limits. `options`: as for `enqueue`.
        """
        return self._asked(children.run(self, topic, payload, key, options))

    def run_many(
        self,
        topic: str | TopicOwner,
        payloads: Iterable[Any],
        /,
        key: Key = None,
        max_failed: int | str = 0,
        **options: Unpack[EnqueueOptions],
    ) -> Any:
        """Make a child for each payload, all at once, and return their results in order. `await` it in a coroutine.

        `key`: as for `map`. ChildFailed if more than `max_failed` (a number, or a share such as "2%") did not complete;
        otherwise their results are None.
        """
        fan_out = children.FanOut(self, topic_of(topic), topic, payloads, key, None, max_failed, options)
        return self._asked(fan_out.requests())

    def map(
        self,
        name: str | TopicOwner,
        function: Any,
        items: Any = None,
        /,
        *,
        key: ItemKey = None,
        limit: int = LIMIT,
        max_failed: int | str = 0,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        cancelable: bool = True,
        **options: Unpack[EnqueueOptions],
    ) -> Any:
        """Call `function(item)` once for each item, at most `limit` at the same time, and return the results in order.

        Each item is a step whose key is a field of the item, a function of it, or its place in the list. An item that
        has completed never runs again. The results are read in pages, as they are asked for; with `max_failed` (a
        number, or a share such as "2%") the result of an item that failed is None. `await` it in a coroutine.

        With a task (`ctx.map("resize", resize, images)`, or `ctx.map(resize, images)`) each item is a child job on any
        worker that serves it, with the task's own retries and limits; `options`: as for `enqueue`. This job is set
        aside meanwhile and goes on once for each window of `limit`.
        """
        if isinstance(name, TopicOwner):
            name, function, items = name.topic, name, function
        if isinstance(function, TopicOwner):
            children.check_own_options(name, timeout=timeout, retry=retry, cancelable=None if cancelable else False)
            fan_out = children.FanOut(self, name, function, items, key, limit, max_failed, options)
            return self._asked(fan_out.requests())
        if options:
            names = ", ".join(options)
            raise InvalidInput(f"map {name}: {names}: for tasks only; {function!r:.100} is a function", field=names)
        run = MapOptions(key, limit, max_failed, timeout, retry, cancelable)
        if self._services.blocking:
            return Map(self, name, function, items, run).blocking()
        return awaited_map(self, name, function, items, run)

    def _asked(self, requests: Requests) -> Any:
        """The result of requests to the worker, or in a coroutine an awaitable for it."""
        return children.blocking(self, requests) if self._services.blocking else children.awaited(self, requests)
