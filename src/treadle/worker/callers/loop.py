"""Calls coroutine functions on the running loop, with separate context variables and without a task.

A handler runs immediately up to its first wait; most quick handlers never wait. Slots are long-lived tasks, so a
context variable set by one handler (a request id, a trace span, a session) would leak into the next job. A task per job
prevents that for 8 µs, a copied context for 0.5 µs (measured on Python 3.11).
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

from treadle.model.errors import Suspend
from treadle.model.raised import not_ctrl_c
from treadle.policy.judgement import CallResult
from treadle.queue.handlers.context import Context, HandlerServices, running_handler
from treadle.worker.call import Begun, ServedCall


class LoopCaller:
    def __init__(self, services: HandlerServices) -> None:
        self._services = services

    def begin(self, call: ServedCall) -> Begun:
        function = call.function
        try:
            payload = function.payload(call.payload)
        except BaseException as error:  # the payload's type may raise anything
            return function.refused(call, not_ctrl_c(error))
        context = Context(call, self._services, payload) if function.wants_context else None
        try:
            coroutine = function.invoke(context, payload)
            variables = copy_context()
            variables.run(running_handler.set, (call, self._services, payload, context))
            waits_for = variables.run(coroutine.send, None)
        except StopIteration as returned:
            value = returned.value
        except BaseException as error:  # cancels and exits of a handler end the job, not the worker
            if made := context or call.asked_context:
                made._close()
            return function.raised(call, not_ctrl_c(error))
        else:
            return self._rest(call, context, variables, coroutine, waits_for)
        # Outside of `except`: the error of a result that can't be stored would show the whole StopIteration.
        if made := context or call.asked_context:
            made._close()
        return function.returned(call, value)

    async def _rest(
        self,
        call: ServedCall,
        context: Context | None,
        variables: Variables,
        coroutine: Coroutine[Any, Any, Any],
        waits_for: Any,
    ) -> CallResult:
        task = asyncio.current_task()
        assert task
        call.task, call.on_interrupt = task, task.cancel
        try:
            value = await _go_on(call, variables, coroutine, waits_for)
        except GeneratorExit:
            raise
        except _Exited as exited:
            return call.function.raised(call, exited.error)
        except BaseException as error:
            return call.function.raised(call, not_ctrl_c(error))
        finally:
            call.on_interrupt = None
            if made := context or call.asked_context:
                made._close()
        return call.function.returned(call, value)


class _Exited(Exception):
    """A handler raised GeneratorExit, which in this place would mean that the loop throws the slot away."""

    def __init__(self, error: GeneratorExit) -> None:
        super().__init__("the handler raised GeneratorExit")
        self.error = error


@types.coroutine
def _go_on(
    call: ServedCall, variables: Variables, coroutine: Coroutine[Any, Any, Any], waits_for: Any
) -> Generator[Any, Any, Any]:
    """Pass what the coroutine waits for up to the loop, and pass the loop's answers down to it."""
    resume: Callable[[Any], Any]
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:  # usually a cancel, which belongs to the handler
            if isinstance(error, GeneratorExit) and not _raised_by(waits_for, error):
                variables.run(coroutine.close)
                raise
            resume, value = coroutine.throw, error
        else:
            resume, value = coroutine.send, sent
            if call.suspended is not None and _collected(waits_for):
                resume, value = coroutine.throw, call.suspended
        try:
            waits_for = variables.run(resume, value)
        except StopIteration as returned:
            return returned.value
        except GeneratorExit as error:
            raise _Exited(error) from None


def _raised_by(future: Any, error: BaseException) -> bool:
    """Whether a task of the handler's own has raised it, and not the loop, which throws the slot away."""
    done = isinstance(future, asyncio.Future) and future.done() and not future.cancelled()
    return done and future.exception() is error


def _collected(future: Any) -> bool:
    """Whether `asyncio.gather(…, return_exceptions=True)` would return a Suspend as if it were a result."""
    if not isinstance(future, asyncio.Future) or not future.done() or future.cancelled() or future.exception():
        return False
    results = future.result()
    return isinstance(results, list) and any(isinstance(one, Suspend) for one in results)
