"""Runs the program's hooks: at the start of a job, and when its outcome is stored.

A hook runs at most once per outcome: if the worker dies between the two, it does not run. A hook that raises is logged
and changes nothing. Sync hooks run in a thread, so that they don't block the worker.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic_core import from_json

from treadle.model.errors import JobFailed, RemoteError
from treadle.model.raised import is_ctrl_c, not_ctrl_c
from treadle.model.status import Status
from treadle.policy.judgement import STOPPED, CallResult, Cause, Raised, Returned
from treadle.policy.lifecycle import Transition
from treadle.queue.handlers.context import Context, HandlerServices
from treadle.queue.handlers.hooks import Hook, Hooks, Moment, is_async
from treadle.store.values import Settlement
from treadle.telemetry.log_context import facts_of, running_job
from treadle.worker.call import Call
from treadle.worker.errors import describe
from treadle.worker.stray_cancels import absorb_cancel
from treadle.worker.threads import Threads, ended

log = logging.getLogger("treadle.worker")


class HookRunner:
    def __init__(
        self, hooks: Hooks, services: HandlerServices, thread_services: HandlerServices, threads: Threads
    ) -> None:
        self._hooks = hooks
        self._services = services
        self._thread_services = thread_services
        self._threads = threads
        self.on_done: Callable[[], None] = lambda: None
        self._unstored: dict[tuple[int, int], tuple[TopicHooks, Call, CallResult]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def of(self, topic: str) -> TopicHooks | None:
        found = self._hooks.of(topic)
        return TopicHooks(found, self) if found else None

    def expect(self, hooks: TopicHooks, call: Call, result: CallResult) -> None:
        self._unstored[call.job.n, call.job.token] = hooks, call, result

    def stored(self, settlements: Iterable[Settlement]) -> None:
        """Called by the settler when outcomes have been stored."""
        if not self._unstored:
            return
        for one in settlements:
            if found := self._unstored.pop((one.job.n, one.job.token), None):
                hooks, call, result = found
                task = asyncio.create_task(hooks.ended(call, result, one.transition))
                self._running.add(task)
                task.add_done_callback(self._finished)

    def forget(self, settlements: Iterable[Settlement]) -> None:
        for one in settlements:
            self._unstored.pop((one.job.n, one.job.token), None)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.on_done()

    async def finish(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def run(self, hooks: Sequence[Hook], call: Call, *values: Any) -> None:
        running_job.set(call.job)
        for hook in hooks:
            services = self._services if is_async(hook) else self._thread_services
            context = Context(call, services, _payload(call))
            try:
                try:
                    await self._call(hook, context, *values)
                finally:
                    context._close()
            except BaseException as error:  # even an exit: a hook must not harm the worker
                if is_ctrl_c(error) or (isinstance(error, asyncio.CancelledError) and _is_meant(call)):
                    raise
                text = describe(error).text
                log.error("the hook %s of job %s failed\n%s", _name(hook), call.job.id, text, extra=facts_of(call.job))

    async def _call(self, hook: Hook, *arguments: Any) -> None:
        if is_async(hook):
            await hook(*arguments)
        else:
            await self._threads.run(partial(hook, *arguments))


class TopicHooks:
    """The hooks of one topic."""

    def __init__(self, hooks: Mapping[Moment, Sequence[Hook]], runner: HookRunner) -> None:
        self._hooks = hooks
        self._runner = runner
        self.wants_errors = "on_failure" in hooks or "on_retry" in hooks

    async def start(self, call: Call) -> CallResult | None:
        """Run the start hooks; returns a result if the call has to stop before it begins."""
        task = asyncio.current_task()
        assert task
        if hooks := self._hooks.get("on_start"):
            call.on_interrupt = task.cancel
            try:
                await self._runner.run(hooks, call)
            except asyncio.CancelledError as error:
                return describe(error)
            finally:
                call.on_interrupt = None
            if task.cancelling():
                await absorb_cancel(task)  # a hook has cancelled the task that it runs in, not its job
            call.begin(time.monotonic())
        return STOPPED if call.interrupt else None

    def expect(self, call: Call, result: CallResult) -> None:
        self._runner.expect(self, call, result)

    async def ended(self, call: Call, result: CallResult, transition: Transition) -> None:
        moment = _moment(transition)
        hooks = self._hooks.get(moment) if moment else None
        if not hooks:
            return
        try:
            value = _value(call, result) if moment == "on_success" else _error(call, result, transition)
        except BaseException as error:  # the result's type may raise anything
            not_ctrl_c(error)
            text = describe(error).text
            log.error("job %s can't be shown to its hooks\n%s", call.job.id, text, extra=facts_of(call.job))
        else:
            await self._runner.run(hooks, call, value)


async def run_worker_hooks(hooks: Sequence[Hook], worker: object) -> None:
    """Run `on_worker_start` or `on_worker_stop` hooks, which take the worker or nothing."""
    for hook in hooks:
        arguments = [worker] if inspect.signature(hook).parameters else []
        if is_async(hook):
            await hook(*arguments)
        else:
            (await asyncio.to_thread(ended, partial(hook, *arguments))).result()


def _is_meant(call: Call) -> bool:
    """Whether a cancel comes from outside of the hook: its job should stop, or the program ends."""
    task = asyncio.current_task()
    return call.interrupt is not None or (call.attempt.ended and task is not None and task.cancelling() > 0)


def _moment(transition: Transition) -> Moment | None:
    if transition.to is Status.COMPLETED:
        return "on_success"
    if transition.to is Status.FAILED:
        return "on_failure"
    return "on_retry" if transition.event == "job:retrying" else None


def _payload(call: Call) -> Any:
    try:
        return call.function.payload(call.payload)
    except BaseException as error:  # the payload does not match its type, which is why the job failed
        not_ctrl_c(error)
        return from_json(call.payload)


def _value(call: Call, result: CallResult) -> Any:
    """The result as `job.result()` returns it: through JSON, in the handler's return type."""
    text = result.text if isinstance(result, Returned) else None
    return None if text is None else call.function.handler.result(from_json(text))


def _error(call: Call, result: CallResult, transition: Transition) -> BaseException:
    interrupt = call.interruption()
    if interrupt and interrupt.cause is Cause.TIMEOUT:
        return interrupt.error()
    if isinstance(result, Raised):
        return RemoteError(result.type, result.text) if call.error is None else call.error
    return JobFailed(transition.error or "the job failed", status=transition.to.value)


def _name(hook: Hook) -> str:
    return getattr(hook, "__qualname__", type(hook).__qualname__)
