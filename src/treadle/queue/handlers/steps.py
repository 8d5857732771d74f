"""`ctx.step`, `ctx.wait_external` and `ctx.sleep`, seen from the handler: awaited in coroutines, blocking elsewhere.

A step's result always goes through JSON and the function's return annotation, on its first run too: a handler that is
called again sees the same values.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic import TypeAdapter
from pydantic_core import to_json

from treadle.model.durations import Duration, duration_ms, format_ms
from treadle.model.errors import Fail, InvalidAnswer, InvalidInput, StepExited, StepFailed, Suspend
from treadle.model.handler import ResultType, is_async, result_type
from treadle.model.retry import Retry
from treadle.model.steps import (
    STEP_TIMEOUT_MS,
    WAIT_IN_PLACE_MS,
    StepState,
    checked_key,
    checked_name,
    checked_path,
    escaped,
    is_sleep,
    shown_step,
)
from treadle.model.typed_dicts import understood
from treadle.policy.flow import RetryInPlace, StepChange, StepEnd, Tries, after_call, ended, tried, wait_error
from treadle.policy.judgement import CallResult, Raised, Returned
from treadle.policy.lifecycle import Snoozed
from treadle.queue.handlers.task_steps import TaskCall
from treadle.queue.handlers.tasks import Task

if TYPE_CHECKING:
    from treadle.queue.handlers.context import AwaitedServices, Context, HandlerServices

_inside: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("treadle_step", default=())
"""The steps that run here, with their keys, from the outermost: steps that the last one makes are nested in it."""
deadline: ContextVar[tuple[float, Callable[[], BaseException]] | None] = ContextVar("treadle_deadline", default=None)
"""Until when the step that runs here may take, and what its function hears after that."""
item_key: ContextVar[str] = ContextVar("treadle_item", default="")
"""The key of the item of a map that runs here: steps that it makes have it in their keys, too."""
# How often a blocking step that waits for its next try looks whether it should stop.
LOOK_EVERY_S = 0.2
# How many turns of the loop a branch of a handler has to begin its next step: each group of tasks around it takes two.
TURNS = 20


class Known(NamedTuple):
    """What a worker knows of a step that is about to run."""

    done: bool
    result: str | None
    tries: int


class StepRecord(NamedTuple):
    """What a run of a step did, for its worker."""

    state: str
    attempt: int
    ran_ms: int
    result: str | None
    error: str | None
    error_type: str | None
    input_hash: str | None
    again: bool = False
    """The next try follows in place."""

    @property
    def change(self) -> StepChange:
        return StepChange(StepState(self.state), self.attempt, self.result, self.error, self.error_type)


class Wait(NamedTuple):
    name: str
    key: str
    timeout_ms: int | None
    schema: str | None
    sleeps: bool
    inside: Sequence[Sequence[str]] = ()
    """The steps around it, with their keys: they can't go on before it is over."""
    refused: str | None = None
    """What is wrong with the answer that it has: it waits for another one."""
    retries: bool = False
    """Not a separate wait: the step's next try is due after this time."""


class Waited(NamedTuple):
    """`done`, `failed`, or `waits`: then the job is set aside."""

    state: str
    result: str | None = None
    error: str | None = None
    error_type: str | None = None
    delay_ms: int | None = None
    child: str | None = None
    """The job that it was for."""


class Run:
    """One call of `ctx.step`."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        key: str | int,
        timeout: Duration | None,
        retry: Retry | None,
        cancelable: bool,
        *,
        item: int | None = None,
    ) -> None:
        """`item`: its place in the list of a map."""
        ctx._check()
        task = self._task = TaskCall(ctx, str(name), function, args) if isinstance(function, Task) else None
        if task is not None:
            function, retry = task.function, retry or task.retry
            timeout = task.timeout_ms / 1000 if timeout is None else timeout
        if not callable(function):
            raise InvalidInput(f"step {str(name)[:100]}: {function!r} is not a function", field="function")
        self._ctx = ctx
        self.name, self.key = self._placed(ctx, name, key)
        self._item = item
        self.failed = False
        """Its last try has failed, and that is stored."""
        self._cancelable = cancelable
        self._function = function
        self._args = args
        self._retry = retry
        self._timeout_ms = STEP_TIMEOUT_MS if timeout is None else duration_ms(timeout, "timeout")
        self._type = result_type(function)
        self._hash = _hash(args) if task is None else input_hash(task.payload.encode())
        self._tries = 0
        self._ran_ms = 0
        self._error: BaseException | None = None
        self._late_cancel: asyncio.CancelledError | None = None
        """It came while the function ran in a thread."""

    def _placed(self, ctx: Context, name: str, key: str | int) -> tuple[str, str]:
        """Its whole name and key."""
        return nested(ctx, name), keyed(key)

    # -- in a coroutine --------------------------------------------------------------------------

    async def awaited(self) -> Any:
        if is_async(self._function) or self._runs_in_process:
            return await self._awaited()
        services = cast("AwaitedServices", self._ctx._services)
        async with services.thread_place(self._ctx._call):  # before it begins: waiting takes none of its time
            return await self._awaited()

    async def _awaited(self) -> Any:
        services, call = self._ctx._services, self._ctx._call
        known = await services.recall_step(call, self.name, self.key, self._finish_ms(), self._item)
        if known.done:
            return self._type.value(known.result)
        self._tries = known.tries
        recorded = False
        try:
            while isinstance(end := self._ended(await self._tried()), RetryInPlace):
                await services.record_step(call, self._record(end), self.name, self.key)
                await asyncio.sleep(end.delay_ms / 1000)
            recorded = True
            await services.record_step(call, self._record(end), self.name, self.key)
        finally:
            if not recorded:
                await services.record_step(call, None, self.name, self.key)
        if self._pauses(end):
            await services.wait_step(call, self._pause_of(end))
        return self._outcome(end)

    async def _tried(self) -> CallResult:
        self._begin()
        inside = _inside.set((*_inside.get(), (self.name, self.key)))
        began = time.monotonic()
        try:
            value = await self._called()
        except BaseException as error:
            return self._raised(error)
        finally:
            if self._task is not None:
                self._task.close()
            _inside.reset(inside)
            self._ran_ms += int((time.monotonic() - began) * 1000)
        return self._returned(value)

    async def _called(self) -> Any:
        services = cast("AwaitedServices", self._ctx._services)
        if self._runs_in_process:
            return self._in_process(await self._asked_for_process(services))
        if is_async(self._function):
            return await self._on_loop(partial(self._function, *self._arguments(services)), self._timeout_ms / 1000)
        return await self._in_thread(services)

    async def _on_loop(self, function: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await function()
        except TimeoutError:
            if limit.expired():
                raise self._too_long() from None
            raise

    async def _in_thread(self, services: AwaitedServices) -> Any:
        """Until the function has ended: a thread can't be stopped, and must not run a second time beside itself."""
        ends = time.monotonic() + self._timeout_ms / 1000
        before = deadline.set((ends, self._too_long))
        try:
            arguments = self._arguments(services.for_threads(self._ctx._call))
            ended, self._late_cancel = await services.in_thread(partial(self._function, *arguments))
        finally:
            deadline.reset(before)
        value = ended.result()
        if asyncio.iscoroutine(value):  # of a lambda around a coroutine
            value = await self._on_loop(lambda: value, ends - time.monotonic())
        if time.monotonic() > ends:
            raise self._too_long()
        return value

    # -- in a thread or a process ----------------------------------------------------------------

    def blocking(self) -> Any:
        services, call = self._ctx._services, self._ctx._call
        known = services.recall_step(call, self.name, self.key, self._finish_ms(), self._item)
        if known.done:
            return self._type.value(known.result)
        self._tries = known.tries
        recorded = False
        try:
            while isinstance(end := self._ended(self._tried_here()), RetryInPlace):
                services.record_step(call, self._record(end), self.name, self.key)
                self._pause(end.delay_ms / 1000)
            recorded = True
            services.record_step(call, self._record(end), self.name, self.key)
        finally:
            if not recorded:
                services.record_step(call, None, self.name, self.key)
        if self._pauses(end):
            services.wait_step(call, self._pause_of(end))
        return self._outcome(end)

    def _tried_here(self) -> CallResult:
        self._begin()
        inside = _inside.set((*_inside.get(), (self.name, self.key)))
        began = time.monotonic()
        ends = began + self._timeout_ms / 1000
        outer = deadline.set((ends, self._too_long))
        try:
            with self._ctx._services.time_limit(self._timeout_ms / 1000, self._too_long):
                value = self._called_here()
                if asyncio.iscoroutine(value):
                    value = asyncio.run(value)
            if time.monotonic() > ends:
                raise self._too_long()
        except BaseException as error:
            return self._raised(error)
        finally:
            if self._task is not None:
                self._task.close()
            deadline.reset(outer)
            _inside.reset(inside)
            self._ran_ms += int((time.monotonic() - began) * 1000)
        return self._returned(value)

    def _called_here(self) -> Any:
        services = self._ctx._services
        if self._runs_in_process:
            return self._in_process(self._asked_for_process(services))
        return self._function(*self._arguments(services))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._ctx._call.check()
            time.sleep(min(left, LOOK_EVERY_S))

    # -- both ------------------------------------------------------------------------------------

    def _finish_ms(self) -> int | None:
        """How long a cancel has to wait for it at most, with all its tries; None: it doesn't wait."""
        if self._cancelable:
            return None
        retries = self._retry.max_attempts - 1 if self._retry else 0
        return self._timeout_ms + retries * (self._timeout_ms + WAIT_IN_PLACE_MS)

    def _arguments(self, services: HandlerServices) -> Sequence[Any]:
        return self._args if self._task is None else self._task.arguments(services)

    @property
    def _runs_in_process(self) -> bool:
        return self._task is not None and self._task.in_process

    def _asked_for_process(self, services: HandlerServices) -> Any:
        task = self._task
        assert task
        assert services.call_in_process
        about = self._ctx._call, _inside.get(), task.handler, task.payload
        return services.call_in_process(*about, self._timeout_ms / 1000, self._finish_ms())

    def _in_process(self, result: CallResult | TimeoutError) -> Any:
        """What a function in a process returned, or what it raised there."""
        if isinstance(result, TimeoutError):
            raise self._too_long()
        if isinstance(result, Returned):
            return self._type.value(result.text)
        if result.type == Suspend.__name__ and result.kind in ("park", "snooze"):
            self._ctx._leave(Suspend(cast(Any, result.kind), result.text, result.delay_ms))
        raise StepFailed(result)

    def _begin(self) -> None:
        self._tries += 1
        self._error = None

    def _raised(self, error: BaseException) -> CallResult:
        self._error = error
        return self._ctx._services.describe(error)

    def _returned(self, value: Any) -> CallResult:
        try:
            return Returned(self._type.text(value, self._ctx._call.step_result_bytes))
        except Exception as error:  # a user's serializer may raise anything
            self._error = Fail(f"the result of step {shown_step(self.name, self.key)} can't be stored: {error}")
            return self._ctx._services.describe(error)._replace(kind="refused")

    def _too_long(self) -> TimeoutError:
        step = shown_step(self.name, self.key)
        return TimeoutError(f"step {step} ran longer than its limit of {format_ms(self._timeout_ms)}")

    def _ended(self, result: CallResult) -> StepEnd | RetryInPlace:
        if self._late_cancel is not None and isinstance(result, Raised):
            raise self._late_cancel
        if isinstance(result, Raised) and result.kind == "stop":
            assert self._error
            raise self._error
        return after_call(self.name, result, None, Tries(self._tries, self._retry, 1, Retry()))

    def _record(self, end: StepEnd | RetryInPlace) -> StepRecord:
        ran_ms, self._ran_ms = self._ran_ms, 0
        again = isinstance(end, RetryInPlace)
        change = tried(end, self._tries) if isinstance(end, RetryInPlace) else ended(end, self._tries)
        state, attempt, result, error, error_type, *_ = change
        return StepRecord(state, attempt, ran_ms, result, error, error_type, self._hash, again)

    def _pauses(self, end: StepEnd) -> bool:
        """Its next try is too far off to wait for it here."""
        return isinstance(end.outcome, Snoozed) and end.error is not None

    def _pause_of(self, end: StepEnd) -> Wait:
        assert isinstance(end.outcome, Snoozed)
        return Wait(self.name, self.key, end.outcome.delay_ms, None, True, _inside.get(), retries=True)

    def _outcome(self, end: StepEnd) -> Any:
        self.failed = end.state is StepState.FAILED
        if self._late_cancel is not None:
            raise self._late_cancel  # the step has ended and is stored; its handler goes no further
        if self._error is None:
            return self._type.value(end.result)
        if self._pauses(end):
            assert isinstance(end.outcome, Snoozed)
            self._ctx._leave(Suspend("snooze", end.outcome.reason, end.outcome.delay_ms))
        if isinstance(self._error, SystemExit | KeyboardInterrupt) and self._in_another_task():
            step = shown_step(self.name, self.key)
            raise StepExited(f"step {step} raised {type(self._error).__name__}: {self._error}") from self._error
        raise self._error

    def _in_another_task(self) -> bool:
        """Not the handler's own: there, these errors would end the event loop, and with it the worker."""
        return not self._ctx._services.blocking and asyncio.current_task() is not self._ctx._call.task


async def awaited_step(ctx: Context, *given: Any) -> Any:
    """`ctx.step` in a coroutine. Thousands may be gathered, so all work waits for its turn."""
    if (turn := ctx._services.turn(ctx._call)) is not None:
        await turn
    return await Run(ctx, *given).awaited()


async def awaited_wait(
    ctx: Context, name: str, key: str | int, answer: Any, timeout: Duration | None, sleeps: bool = False
) -> Any:
    if (turn := ctx._services.turn(ctx._call)) is not None:
        await turn
    return await Waiting(ctx, name, key, answer, timeout, sleeps).awaited()


def innermost_step() -> tuple[str, str] | None:
    """The step whose function runs here, by name and key, if a handler made one."""
    inside = _inside.get()
    return inside[-1] if inside else None


def steps_around() -> tuple[tuple[str, str], ...]:
    """The steps whose functions run here, from the outermost, by name and key."""
    return _inside.get()


def set_outer_steps(outer: Sequence[Sequence[str]]) -> None:
    """In a process that runs a step of another one's handler."""
    _inside.set(tuple((name, key) for name, key in outer))


def nested(ctx: Context, name: str) -> str:
    inside = _inside.get()
    outer = inside[-1][0] if inside else ctx._call.step
    own = escaped(checked_name(name))
    return checked_path(f"{outer}/{own}" if outer else own)


def keyed(key: str | int) -> str:
    """A key, which says in an item of a map which item it is, too."""
    own, item = checked_key(key), item_key.get()
    return checked_key(f"{item}/{own}" if item and own else item or own)


def input_hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _hash(args: Sequence[Any]) -> str | None:
    try:
        return input_hash(to_json(args, fallback=repr))
    except ValueError:
        return None


# -- waits -----------------------------------------------------------------------------------------


class Waiting:
    """One call of `ctx.wait_external` or `ctx.sleep`."""

    def __init__(
        self, ctx: Context, name: str, key: str | int, answer: Any, timeout: Duration | None, sleeps: bool = False
    ) -> None:
        ctx._check()
        if not sleeps and isinstance(name, str) and is_sleep(name):
            raise InvalidInput(f"step: {name!r} is the name of ctx.sleep's steps; use another one", field="step")
        self._ctx = ctx
        self._type = None if answer is None else ResultType(answer, f"the answer to {str(name)[:100]}")
        schema = None if self._type is None or self._type.schema is None else to_json(self._type.schema).decode()
        limit = None if timeout is None else duration_ms(timeout, "timeout")
        self._wait = Wait(nested(ctx, name), keyed(key), limit, schema, sleeps, _inside.get())

    async def awaited(self) -> Any:
        services, call = self._ctx._services, self._ctx._call
        try:
            return self._value(await services.wait_step(call, self._wait))
        except InvalidAnswer as error:
            refused = str(error)
        return self._value(await services.wait_step(call, self._wait._replace(refused=refused)))

    def blocking(self) -> Any:
        services, call = self._ctx._services, self._ctx._call
        try:
            return self._value(services.wait_step(call, self._wait))
        except InvalidAnswer as error:
            refused = str(error)
        return self._value(services.wait_step(call, self._wait._replace(refused=refused)))

    def _value(self, waited: Waited) -> Any:
        step = shown_step(self._wait.name, self._wait.key)
        if waited.state == "waits":
            self._ctx._leave(Suspend("snooze" if self._wait.sleeps else "park", step, waited.delay_ms))
        if waited.state == "failed":
            raise wait_error(waited.error or f"step {step} failed", waited.error_type)
        if self._wait.sleeps:
            return None
        return from_answer(self._type, waited.result, step)


def from_answer(type_: ResultType | None, text: str | None, step: str) -> Any:
    if type_ is None:
        return ResultType(None, step).value(text)
    try:
        return type_.value(text)
    except InvalidInput as error:
        raise InvalidAnswer(str(error), field="result") from None


def answer_schema(answer: Any) -> dict[str, Any] | None:
    return None if answer is None else TypeAdapter(understood(answer)).json_schema()
