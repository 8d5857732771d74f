"""One function call for a job: a plain job makes one, a flow makes one per step.

The steps payload text → payload → function → result text are the same in a coroutine, a thread and a child process. The
callers (`worker/callers`) differ only in where they run them and how they stop them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from treadle.model.durations import duration_ms, format_ms
from treadle.model.errors import Suspend
from treadle.model.handler import Handler
from treadle.model.raised import not_ctrl_c
from treadle.policy.judgement import NOTHING, CallResult, Cause, Interrupt, Returned
from treadle.queue.handlers.context import Context, HandlerServices, RunningCall, running_handler
from treadle.queue.handlers.flows import Results
from treadle.queue.handlers.hooks import Middleware, wrapped
from treadle.worker.errors import describe, refused

if TYPE_CHECKING:
    import asyncio

    from treadle.store.values import Claimed
    from treadle.worker.attempt import Attempt
    from treadle.worker.steps.journal import StepJournal

Begun = CallResult | Coroutine[Any, Any, CallResult]
"""The result of a call that ended without waiting, or a coroutine that returns it."""


async def result_of(begun: Begun) -> CallResult:
    return begun if isinstance(begun, tuple) else await begun


class HandlerCaller(Protocol):
    def begin(self, call: Call) -> Begun: ...


class Function:
    """A handler with everything needed to call it, computed once."""

    __slots__ = (
        "grace_s",
        "handler",
        "invoke",
        "keeps_errors",
        "kills",
        "middleware",
        "payload",
        "result_text",
        "timeout_s",
        "wants_context",
    )

    def __init__(self, handler: Handler, middleware: Sequence[Middleware] = (), keeps_errors: bool = False) -> None:
        template = handler.template
        self.handler = handler
        self.middleware = middleware
        self.keeps_errors = keeps_errors
        """Whether hooks need the exception object. It keeps the handler's frames alive, so otherwise it is dropped."""
        self.payload = handler.payload
        self.result_text = handler.result_text
        self.invoke: Callable[[Any, Any], Any] = wrapped(handler, middleware)
        """Called with the context and the payload; in a coroutine handler it returns the coroutine."""
        self.wants_context = handler.wants_context or bool(middleware)
        self.timeout_s = duration_ms(template.timeout) / 1000
        self.grace_s = duration_ms(template.cancel.grace) / 1000
        self.kills = template.cancel.mode == "kill"

    def raised(self, call: ServedCall, error: BaseException) -> CallResult:
        if self.keeps_errors:
            call.error = error
        return describe(error)

    def refused(self, call: ServedCall, error: BaseException) -> CallResult:
        if self.keeps_errors:
            call.error = error
        return refused(error)

    def returned(self, call: ServedCall, value: Any) -> CallResult:
        if value is None:
            return NOTHING
        try:
            return Returned(self.result_text(value))
        except BaseException as error:  # a user's serializer may raise anything
            return self.refused(call, not_ctrl_c(error))


class ServedCall(RunningCall, Protocol):
    """A call as seen by the code that makes it, in the worker or in a child process."""

    payload: str
    function: Function
    on_interrupt: Callable[[], object] | None
    error: BaseException | None


def perform(call: ServedCall, services: HandlerServices) -> CallResult:
    """Call a plain function in the current thread."""
    function = call.function
    try:
        payload = function.payload(call.payload)
    except BaseException as error:  # the payload's type may raise anything
        return function.refused(call, error)
    context = Context(call, services, payload)
    running_handler.set((call, services, payload, context))  # a thread works in a copy of its slot's variables
    try:
        value = function.invoke(context, payload)
    except BaseException as error:  # an exit in a handler ends the job, not the worker
        return function.raised(call, error)
    finally:
        context._close()
    return function.returned(call, value)


def results_of(steps: StepJournal | None, handler: Handler) -> Mapping[str, Any]:
    if steps is None:
        return Results({}, handler)
    return Results(steps.results(), handler, lists=steps.lists(), read=steps.read_items)


class Call:
    """Fields are set on the loop and read from the handler's thread; each is a simple value that needs no lock.

    Defaults are on the class because most calls end before any of them changes, and setting them takes time.
    """

    parent: Call | None = None
    """The call that waits for this one, if a step runs inside a handler."""
    finishes_by: float | None = None
    """Until when a cancel has to wait for it; None: not at all."""
    inside: tuple[tuple[str, str], ...] = ()
    """The steps around it, from the outermost, if it is one that a handler makes in another process."""
    step = ""
    key = ""
    """The step that it runs; empty for a plain handler."""
    item: str | None = None
    """The item of a mapped step that it runs for, as JSON text."""
    interrupt: Interrupt | None = None
    interrupted_at = 0.0
    on_interrupt: Callable[[], object] | None = None
    """How to stop it; set by its caller while it can be stopped. Called on the loop."""
    when_idle: Callable[[], Awaitable[None]] | None = None
    """If it runs in a child process: returns when its branches there have gone as far as they can for now."""
    stuck = False
    over = False
    """Its handler has ended: nothing can begin in it."""
    side_by_side = False
    """It runs a branch of a graph while others run, too."""
    error: BaseException | None = None
    """The handler's exception, if it was raised in this process."""
    suspended: Suspend | None = None
    task: asyncio.Task[Any] | None = None
    asked_context: Context | None = None

    def __init__(self, attempt: Attempt, function: Function, payload: str, deadline: float) -> None:
        self.attempt = attempt
        self.function = function
        self.payload = payload
        self.deadline = deadline

    # -- what a handler says and asks, from any thread -------------------------------------------

    @property
    def job(self) -> Claimed:
        return self.attempt.job

    @property
    def step_result_bytes(self) -> int:
        return self.function.handler.template.step_result_bytes

    @property
    def cancelled(self) -> bool:
        interrupt = self.attempt.interrupt
        return interrupt is not None and interrupt.cause is Cause.CANCEL

    @property
    def results(self) -> Mapping[str, Any]:
        return results_of(self.attempt.steps, self.function.handler)

    def report(self, percent: int, message: str) -> None:
        self.attempt.report(percent, message)

    def check(self) -> None:
        interrupt = self.interruption()
        if interrupt is not None:
            raise interrupt.error()

    def interruption(self) -> Interrupt | None:
        """Why it should stop. The keeper's thread marks a lost lease before the loop hears about it."""
        if self.attempt.lease.lost and (self.interrupt is None or self.interrupt.cause is not Cause.LOST):
            return self.attempt.lost_interrupt()
        return self.interrupt

    # -- what the worker does with it, on the loop -----------------------------------------------

    def begin(self, now: float) -> None:
        """The function starts only now; preparation is over."""
        self.attempt.started = now
        self.deadline = now + self.function.timeout_s

    def stop(self, interrupt: Interrupt) -> bool:
        """Ask the function to stop; False if it has already been asked or must finish first."""
        if not interrupt.beats(self.interrupt) or (interrupt.cause is Cause.CANCEL and self.attempt.must_finish(self)):
            return False
        self.interrupt = interrupt
        self.interrupted_at = time.monotonic()
        if self.on_interrupt:
            self.on_interrupt()
        return True

    def time_out(self) -> bool:
        limit = format_ms(round(self.function.timeout_s * 1000))
        what = f"step {self.step}" if self.step else "the handler"
        return self.stop(Interrupt(Cause.TIMEOUT, f"{what} ran longer than its limit of {limit}"))
