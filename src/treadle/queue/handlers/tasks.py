"""Tasks: what `@queue.job` returns, to be called like the original function or enqueued.

A task is one of two kinds, determined by the function's signature (`Handler` decides, the overloads here tell type
checkers the same): a `PayloadTask` is enqueued with its payload and options, an `ArgumentsTask` with the function's
arguments and nothing else, so that no option can clash with an argument. For both, options go into `task.options(…)`.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypedDict, TypeVar, cast, overload

from pydantic import BaseModel
from typing_extensions import Unpack

from treadle.model.durations import Duration, Priority
from treadle.model.errors import InvalidInput, InvalidPayload
from treadle.model.handler import Handler
from treadle.model.job import Job
from treadle.model.keys import WHOLE_PAYLOAD
from treadle.model.retry import Retry
from treadle.model.template import CancelPolicy, Concurrency, Rate, Retention, Template
from treadle.queue.enqueueing.new_jobs import ELSEWHERE, EnqueueOptions, TopicOwner, UnknownOption, merged, option_named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from treadle.queue.handlers.context import Context
    from treadle.queue.handlers.hooks import Hook
    from treadle.queue.handlers.sync_tasks import SyncArgumentsTask, SyncPayloadTask
    from treadle.queue.queue import Queue
    from treadle.queue.schedules.options import CodeSchedule

Call = ParamSpec("Call")
"""The parameters of the function."""
Args = ParamSpec("Args")
"""Its parameters without the context."""
PayloadT = TypeVar("PayloadT", bound="BaseModel | Mapping[str, Any] | DataclassInstance")
ReturnT = TypeVar("ReturnT")
"""The return type of a call: the result, or a coroutine."""
ResultT = TypeVar("ResultT")
SignatureT = TypeVar("SignatureT")
"""`Callable[Args, None]`. Unlike `Args` it is invariant, so mypy does not take `(days: int = 30)` for `()`."""


class JobOptions(TypedDict, total=False):
    """The options of `@queue.job` and `queue.register`."""

    title: str
    process: bool
    timeout: Duration
    priority: Priority
    max_attempts: int | None
    retry: Retry | None
    capability: str | None
    idempotency_key: str | None
    idempotent: bool
    concurrency: Concurrency | None
    rate: Rate | tuple[int, Duration] | None
    dedupe_keys: Sequence[str]
    repeatable: bool
    enabled: bool
    cancel: CancelPolicy | None
    expires: Duration | None
    description: str
    version: int | None
    schedulable: bool
    secret: Sequence[str]
    step_result_limit: int | str | None
    retention: Retention | Mapping[str, Duration | None] | None
    schedule: str | CodeSchedule | Sequence[str | CodeSchedule] | None
    timezone: str | None
    on_start: Hook | None
    on_success: Hook | None
    on_failure: Hook | None
    on_retry: Hook | None


class DecoratorOptions(JobOptions, total=False):
    topic: str | None


# Names from other queues and from the HTTP API.
_OTHER_NAMES = {
    "name": "use topic= or title=",
    "worker_capability": "use capability=",
    "max_backoff": "use retry=Retry(…, max_delay=…)",
    "backoff": "use retry=Retry(…, backoff=…)",
    "retries": "use max_attempts=, which counts the first run too, or retry=Retry(…)",
    "max_retries": "use max_attempts=, which counts the first run too, or retry=Retry(…)",
    "default_retry_delay": "use retry=Retry(…, delay=…)",
    "retry_delay": "use retry=Retry(…, delay=…)",
    "retry_backoff": "use retry=Retry(…, backoff='exponential')",
    "retry_backoff_max": "use retry=Retry(…, max_delay=…)",
    "retry_jitter": "use retry=Retry(…, jitter=0.2)",
    "retry_kwargs": "use retry=Retry(…)",
    "acks_late": "leave it out: a job whose worker dies always runs again",
    "ignore_result": "leave it out: return None to store no result",
    "result_ttl": "use retention={'delete_after': '1d'}",
    "job_timeout": "use timeout=",
    "cron": "use schedule=",
    "crontab": "use schedule='0 3 * * *'",
    "serializer": "leave it out: payloads and results are JSON",
    "autoretry_for": "every exception is retried; use retry=Retry(…, on={Error: False}) for exceptions",
    "bind": "take ctx as the first parameter",
    "time_limit": "use timeout=",
    "soft_time_limit": "use timeout=",
    "rate_limit": "use rate=(10, '1m')",
    "queue": "use topic=, or capability= to choose workers",
}


# Methods of other queues' tasks.
_OTHER_METHODS = {
    "delay": "{task}.sync.enqueue(…), or await {task}.enqueue(…)",
    "apply_async": "{task}.options(delay='15m').sync.enqueue(…)",
    "apply": "{task}(…) to call it here, or treadle.testing.inline(queue)",
    "send": "{task}.sync.enqueue(…), or await {task}.enqueue(…)",
    "send_with_options": "{task}.options(delay='15m').sync.enqueue(…)",
    "schedule": "{task}.options(delay='15m').sync.enqueue(…)",
    "call_local": "{task}(…)",
    "retry": "raise RetryAfter('1m') in the handler",
    "s": "ctx.enqueue(…) in the handler that comes first",
    "si": "ctx.enqueue(…) in the handler that comes first",
}


# Methods of other queues themselves.
OTHER_QUEUE_METHODS = {
    "task": "@queue.job",
    "actor": "@queue.job",
    "periodic_task": "@queue.job(schedule='0 3 * * *')",
    "scheduled_job": "@queue.job(schedule='0 3 * * *')",
    "add_job": "@queue.job(schedule='0 3 * * *'), or queue.schedules.create(topic, cron)",
    "enqueue_in": "task.options(delay='15m').sync.enqueue(…)",
    "enqueue_at": "task.options(run_at=when).sync.enqueue(…)",
    "enqueue_call": "task.sync.enqueue(…)",
    "send_task": "queue.sync.enqueue(topic, payload)",
}


class Task(TopicOwner, Generic[Call, ReturnT, ResultT]):
    """A decorated function: call it as before, or enqueue it."""

    def __init__(self, queue: Queue, handler: Handler, function: Callable[..., Any]) -> None:
        self.queue = queue
        self.handler = handler
        self.topic = handler.topic
        self._options: EnqueueOptions = {}
        self.__name__ = getattr(function, "__name__", handler.topic)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", handler.topic)
        self.__wrapped__ = function

    def __call__(self, *args: Call.args, **kwargs: Call.kwargs) -> ReturnT:
        return cast(ReturnT, self.__wrapped__(*args, **kwargs))

    if not TYPE_CHECKING:  # type checkers would believe that a task has every attribute

        def __getattr__(self, name: str) -> Any:
            instead = _OTHER_METHODS.get(name)
            hint = f"; use {instead.format(task=self.__name__)}" if instead else ""
            raise AttributeError(f"a task has no {name}{hint}", name=name, obj=self)

    def options(self, **options: Unpack[EnqueueOptions]) -> Self:
        """The same task with options of `Queue.enqueue`: `task.options(delay="15m").enqueue(…)`."""
        chosen = copy.copy(self)
        chosen._options = merged(self._options, options)
        return chosen

    def __repr__(self) -> str:
        return f"<Task {self.topic}>"


class PayloadTask(Task[Call, ReturnT, ResultT], Generic[Call, PayloadT, ReturnT, ResultT]):
    """Enqueued with its payload."""

    async def enqueue(self, payload: PayloadT | None = None, **options: Unpack[EnqueueOptions]) -> Job[ResultT]:
        """See `Queue.enqueue`."""
        return await self.queue.enqueue(self.topic, payload, **merged(self._options, options))

    async def enqueue_many(self, payloads: Iterable[PayloadT], **options: Unpack[EnqueueOptions]) -> list[Job[ResultT]]:
        """See `Queue.enqueue_many`."""
        return await self.queue.enqueue_many(self.topic, payloads, **merged(self._options, options))

    @property
    def sync(self) -> SyncPayloadTask[PayloadT, ResultT]:
        """The same methods, blocking."""
        from treadle.queue.handlers.sync_tasks import SyncPayloadTask

        return SyncPayloadTask(self.queue.sync, self.topic, self._options)


class ArgumentsTask(Task[Call, ReturnT, ResultT], Generic[Call, Args, ReturnT, ResultT, SignatureT]):
    """Enqueued with the function's arguments; options come first: `task.options(…).enqueue(…)`."""

    # A function without arguments is a `PayloadTask` in truth: it takes any payload, as `ctx.payload`, and the options.
    @overload
    async def enqueue(
        self: ArgumentsTask[..., [], Any, ResultT, Callable[[], None]],
        payload: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> Job[ResultT]: ...
    @overload
    async def enqueue(self, *args: Args.args, **kwargs: Args.kwargs) -> Job[ResultT]: ...
    async def enqueue(self, *args: Any, **kwargs: Any) -> Job[ResultT]:
        """See `Queue.enqueue`."""
        return await self.queue.enqueue(self.topic, bound(self.handler, args, kwargs), **self._options)

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Job[ResultT]]:
        """One job per item: a tuple has arguments by position, a mapping by name. See `Queue.enqueue_many`."""
        return await self.queue.enqueue_many(self.topic, payloads_of(self.handler, calls), **self._options)

    @property
    def sync(self) -> SyncArgumentsTask[Args, ResultT, SignatureT]:
        """The same methods, blocking."""
        from treadle.queue.handlers.sync_tasks import SyncArgumentsTask

        return SyncArgumentsTask(self.queue.sync, self.handler, self._options)


def bound(handler: Handler, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The payload for a call with these arguments. An option among them is refused with the place where it belongs."""
    try:
        return handler.bind(args, kwargs)
    except InvalidPayload as error:
        strange = [name for name in kwargs if not handler.takes(name)]
        options = ", ".join(f"{option}=…" for name in strange if (option := option_named(name)))
        hints = [f"options go before: .options({options}).enqueue(…)"] if options else []
        hints += [ELSEWHERE[name] for name in strange if name in ELSEWHERE]
        if not hints:
            raise
        raise InvalidPayload("; ".join((error.message, *hints)), field="payload") from None


def payloads_of(handler: Handler, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Mapping[str, Any]]:
    return [handler.bind(call, {}) if isinstance(call, tuple) else call for call in calls]


def make_task(queue: Queue, handler: Handler, function: Callable[..., Any]) -> Task[..., Any, Any]:
    kind = ArgumentsTask if handler.takes_arguments else PayloadTask
    return kind(queue, handler, function)


class JobDecorator:
    """`@queue.job`, bare or with options."""

    def __init__(self, queue: Queue, options: DecoratorOptions) -> None:
        self._queue = queue
        self._options = options

    # The first match is chosen: coroutines before functions, a payload before arguments. Type checkers see a
    # function without parameters as one without arguments; it accepts any payload all the same.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[[Context, PayloadT], Awaitable[ResultT]], /
    ) -> PayloadTask[..., PayloadT, Coroutine[Any, Any, ResultT], ResultT]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[[PayloadT], Awaitable[ResultT]], /
    ) -> PayloadTask[..., PayloadT, Coroutine[Any, Any, ResultT], ResultT]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, Args], Awaitable[ResultT]], /
    ) -> ArgumentsTask[
        Concatenate[Context, Args], Args, Coroutine[Any, Any, ResultT], ResultT, Callable[Args, None]
    ]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Args, Awaitable[ResultT]], /
    ) -> ArgumentsTask[Args, Args, Coroutine[Any, Any, ResultT], ResultT, Callable[Args, None]]: ...
    @overload
    def __call__(
        self, function: Callable[[Context, PayloadT], ResultT], /
    ) -> PayloadTask[..., PayloadT, ResultT, ResultT]: ...
    @overload
    def __call__(self, function: Callable[[PayloadT], ResultT], /) -> PayloadTask[..., PayloadT, ResultT, ResultT]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Args], ResultT], /
    ) -> ArgumentsTask[Concatenate[Context, Args], Args, ResultT, ResultT, Callable[Args, None]]: ...
    @overload
    def __call__(
        self, function: Callable[Args, ResultT], /
    ) -> ArgumentsTask[Args, Args, ResultT, ResultT, Callable[Args, None]]: ...
    @overload
    def __call__(self, /, **options: Unpack[DecoratorOptions]) -> JobDecorator: ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        chosen = {**self._options, **options}
        if isinstance(function, str):
            raise InvalidInput(f"@queue.job: name the topic with @queue.job(topic={function!r})", field="topic")
        if function is None:
            return JobDecorator(self._queue, cast(DecoratorOptions, chosen))
        return self._queue.register(chosen.pop("topic", None) or function.__name__, function, **chosen)


def make_handler(topic: str, function: Callable[..., Any], options: JobOptions) -> Handler:
    template = make_template(topic, options)
    handler = Handler(function, template, options.get("process", False))
    handler.template = replace(template, payload_schema=handler.schema(), result_schema=handler.result_schema())
    return handler


def make_template(topic: str, options: JobOptions) -> Template:
    chosen: dict[str, Any] = dict(options)
    _check_names(topic, chosen)
    chosen.pop("process", None)
    return Template(topic, name=chosen.pop("title", ""), **_template_options(topic, chosen))


def _check_names(topic: str, options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in JobOptions.__annotations__:
            raise UnknownOption(f"{topic}: {name}: a job has no such option{_hint(name)}", field=name)


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, JobOptions.__annotations__, 1)
    hint = _OTHER_NAMES.get(name) or (f"use {near[0]}=" if near else "")
    return f"; {hint}" if hint else ""


def _retention(topic: str, given: Mapping[str, Any]) -> Retention:
    if unknown := given.keys() - {"stale_after", "delete_after"}:
        raise InvalidInput(
            f"{topic}: retention has no {min(unknown)!r}; give stale_after, delete_after or both", field="retention"
        )
    return Retention(**given)


def _template_options(topic: str, chosen: dict[str, Any]) -> dict[str, Any]:
    attempts, rate = chosen.pop("max_attempts", None), chosen.get("rate")
    if chosen.get("retry") is None:
        chosen["retry"] = Retry()
    if attempts is not None:
        chosen["retry"] = replace(chosen["retry"], max_attempts=attempts)
    if isinstance(rate, tuple):
        chosen["rate"] = Rate(*rate)
    if isinstance(chosen.get("retention"), Mapping):
        chosen["retention"] = _retention(topic, chosen["retention"])
    if chosen.get("cancel") is None:
        chosen.pop("cancel", None)
    if chosen.pop("idempotent", False):
        if chosen.get("idempotency_key"):
            raise InvalidInput(f"{topic}: give idempotent or idempotency_key, not both", field="idempotent")
        chosen["idempotency_key"] = WHOLE_PAYLOAD
    return chosen
