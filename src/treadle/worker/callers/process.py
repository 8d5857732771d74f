"""Calls functions in child processes: one child per running call, kept for later calls.

Only a process can really be stopped. After a cancel the child is told first, and a handler that checks
(`ctx.check_cancelled()`) stops by itself. Halfway through the grace it gets SIGTERM, at the end SIGKILL. At its time
limit it is told and gets SIGTERM, and SIGKILL soon after, because the grace is for cancels. If a child dies in any way,
its caller sees the socket close, and the call gets a result.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
import pickle
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from treadle.model.errors import InvalidInput, JobCancelled
from treadle.model.handler import Handler
from treadle.policy.judgement import STOPPED, CallResult, Cause, Interrupt, Raised, Returned
from treadle.queue.handlers.flows import FlowHandler, FlowStep
from treadle.queue.handlers.hooks import Middleware
from treadle.queue.handlers.steps import StepRecord, Wait
from treadle.telemetry import tracing
from treadle.telemetry.log_context import facts_of
from treadle.worker.call import Begun, Call, Function
from treadle.worker.child import wire
from treadle.worker.child.handle import START_S, Child, ProcessDied
from treadle.worker.errors import describe
from treadle.worker.services import LoopServices

# Between SIGTERM at a call's time limit and SIGKILL, so that the call ends within a second.
KILL_AFTER_S = 0.8
_numbers = itertools.count(1)

Inside = tuple[tuple[str, str], ...]
"""Steps with their keys, from the outermost."""


def check_findable(handler: Handler, middleware: list[Middleware]) -> None:
    if handler.kind != "process":
        return
    for function in (handler.function, *middleware):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        if "<" in name or not hasattr(function, "__qualname__"):
            raise InvalidInput(
                f"{handler.topic}: {name} can't run in a process, which imports it by name; "
                "move it to the top level of its module"
            )
    check_main()


def check_main() -> None:
    """A process imports the program's script again, and without a guard the script would run a second time there."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None or getattr(sys.modules["__main__"], "__spec__", None) is not None:
        return
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if script.endswith(".py") and "__main__" not in text:
        raise InvalidInput(
            f"process=True starts a process that imports {Path(script).name} again, and would run it from its start; "
            'put what it does under: if __name__ == "__main__":'
        )


class ProcessCaller:
    def __init__(self, services: LoopServices) -> None:
        self.services = services
        self.closed = False
        self._idle: list[Child] = []
        self._children: set[Child] = set()

    def begin(self, call: Call) -> Begun:
        return Conversation(call, self).hold()

    async def call_step(
        self, outer: Call, inside: Inside, handler: Handler, payload: str, timeout_s: float, finish_ms: int | None
    ) -> CallResult | TimeoutError:
        """Call a task's function as a step of another handler, whose call waits for it."""
        check_findable(handler, [])
        call = StepInProcess(outer, inside, handler, payload, timeout_s, finish_ms)
        outer.attempt.open(call)
        try:
            result = await _held(call, Conversation(call, self).hold())
        finally:
            outer.attempt.close(call)
        interrupt = call.interruption()
        if interrupt is not None and interrupt.cause is Cause.TIMEOUT:
            return TimeoutError(interrupt.reason)
        if interrupt is not None and isinstance(result, Raised):
            raise interrupt.error()
        return result

    async def borrow(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.reusable:
                return child
            await self._dismiss(child)
        child = await Child.start()
        if self.closed:
            child.signal(signal.SIGKILL)
            await child.dismiss()
            raise ProcessDied("the worker has exited and no longer renews its lease")
        self._children.add(child)
        return child

    def give_back(self, child: Child) -> None:
        self._idle.append(child)

    def forget(self, child: Child) -> None:
        self._children.discard(child)

    async def _dismiss(self, child: Child) -> None:
        self.forget(child)
        await child.dismiss()

    async def close(self) -> None:
        """Idle children exit when their socket closes; busy ones are killed by their listener thread."""
        self.closed = True
        children, self._children, self._idle = self._children, set(), []
        await asyncio.gather(*(child.dismiss() for child in children))

    def abandon(self) -> None:
        self.closed = True
        for child in self._children:
            child.signal(signal.SIGKILL)


class StepInProcess(Call):
    """A step that its handler runs in a process, because its task says so."""

    def __init__(
        self, outer: Call, inside: Inside, handler: Handler, payload: str, timeout_s: float, finish_ms: int | None
    ) -> None:
        function = Function(handler)
        function.timeout_s = timeout_s
        super().__init__(outer.attempt, function, payload, time.monotonic() + timeout_s)
        self.parent, self.inside = outer, inside
        self.step, self.key = inside[-1]
        self.finishes_by = None if finish_ms is None else time.monotonic() + finish_ms / 1000

    def begin(self, now: float) -> None:
        """Its handler began before."""
        self.deadline = now + self.function.timeout_s


async def _held(call: Call, conversation: Coroutine[Any, Any, CallResult]) -> CallResult:
    """The result. A handler that stops waiting for the step, as at its own time limit, ends its process."""
    holding = asyncio.ensure_future(conversation)
    try:
        return await asyncio.shield(holding)
    except asyncio.CancelledError:
        call.stop(Interrupt(Cause.SHUTDOWN, "nothing waits for the step any more"))
        while not holding.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({holding})
        raise


class Conversation:
    """One call in one child: its reports, its requests and its result."""

    def __init__(self, call: Call, caller: ProcessCaller) -> None:
        self._call = call
        self._caller = caller
        self._child: Child | None = None
        self._over: asyncio.Task[CallResult] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._until_idle: dict[int, asyncio.Future[None]] = {}
        self._insisting: asyncio.Task[None] | None = None

    async def hold(self) -> CallResult:
        """The call's result. Cancelling the task that waits here has no effect; interrupts arrive separately."""
        self._call.on_interrupt = self._interrupted
        self._call.when_idle = self._idle
        self._over = asyncio.create_task(self._converse())
        try:
            while True:
                try:
                    return await asyncio.shield(self._over)
                except asyncio.CancelledError:
                    if self._caller.closed:
                        raise
        finally:
            self._call.on_interrupt = self._call.when_idle = None

    async def _converse(self) -> CallResult:
        call = self._call
        call.deadline += START_S  # the limit counts from the start of the handler and excludes imports
        try:
            self._child = child = await self._caller.borrow()
            if call.interrupt is not None:  # while the child was starting
                self._caller.give_back(child)
                return STOPPED
            result = await self._listen(child)
        except ProcessDied as died:
            if self._child:
                self._caller.forget(self._child)
            return STOPPED if call.interrupt else describe(died)
        finally:
            for task in self._answering:
                task.cancel()
        self._caller.give_back(child)
        return result

    # -- stopping it -------------------------------------------------------------------------------

    def _interrupted(self) -> None:
        """Tell, terminate, kill; the result arrives over the socket as usual."""
        interrupt = self._call.interrupt
        assert interrupt
        kills = interrupt.cause is Cause.CANCEL and self._call.function.kills
        if kills or interrupt.cause in (Cause.SHUTDOWN, Cause.LOST):
            self._signal(signal.SIGKILL)
        else:
            self._insisting = asyncio.create_task(self._insist())

    async def _insist(self) -> None:
        interrupt, half_s = self._call.interrupt, self._call.function.grace_s / 2
        assert interrupt
        assert self._over
        if self._child:
            self._child.send({"is": "interrupt", "cause": interrupt.cause.value, "reason": interrupt.reason})
        timed_out = interrupt.cause is Cause.TIMEOUT
        for number, pause_s in (
            (signal.SIGTERM, 0.0 if timed_out else half_s),
            (signal.SIGKILL, KILL_AFTER_S if timed_out else half_s),
        ):
            done, _ = await asyncio.wait({self._over}, timeout=pause_s)
            if done:
                return
            self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        if self._child:
            self._child.signal(number)

    # -- what comes over the line ------------------------------------------------------------------

    async def _listen(self, child: Child) -> CallResult:
        call = self._call
        functions = [_place(one) for one in (call.function.handler.function, *call.function.middleware)]
        job = list(call.job._replace(steps=None, payload=call.payload))
        steps = call.attempt.steps
        results = steps.results() if steps is not None else {}
        child.send(
            {
                "is": "run",
                "job": job,
                "span": tracing.current(),
                "functions": functions,
                "step": call.step,
                "key": call.key,
                "item": call.item,
                "inside": call.inside,
                "results": results,
                "lists": steps.lists() if steps is not None else {},
                "types": _types(call.function.handler, results),
                "step_result_bytes": call.step_result_bytes,
            }
        )
        while True:
            match await child.next():
                case {"is": "returned", "text": text}:
                    return Returned(text)
                case {"is": "raised", "raised": [kind, text, type_name, delay_ms, families]}:
                    return Raised(kind, text, type_name, delay_ms, tuple(families))
                case message:
                    self._hear(child, message)

    def _hear(self, child: Child, message: wire.Message) -> None:
        match message:
            case {"is": "begun"}:
                self._call.begin(time.monotonic())
            case {"is": "progress", "percent": percent, "message": text}:
                self._call.report(percent, text)
            case {"is": "log", "level": level, "message": text}:
                job = self._call.job
                logging.getLogger(f"treadle.jobs.{job.topic}").log(level, "%s", text, extra=facts_of(job))
            case {"is": "idle", "id": number}:
                waiting = self._until_idle.pop(number, None)  # None: the call before asked for it
                if waiting and not waiting.done():
                    waiting.set_result(None)
            case {"is": "ask"}:
                # In a task, because one answer may take long while progress, logs and other requests continue.
                task = asyncio.create_task(self._answer(child, message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    async def _idle(self) -> None:
        """A branch that heard of its step's end may ask for the next one first: requests and this answer keep order."""
        if self._over is None or self._over.done():
            return
        assert self._child
        number = next(_numbers)
        idle = self._until_idle[number] = asyncio.get_running_loop().create_future()
        self._child.send({"is": "when idle", "id": number})
        await idle

    async def _answer(self, child: Child, request: wire.Message) -> None:
        answer: wire.Message
        try:
            answer = {"value": await self._asked(request)}
        except (Exception, JobCancelled) as error:  # it belongs to the handler
            answer = {"error": wire.error_message(error)}
        child.send({"is": "answer", "id": request["id"], **answer})

    async def _asked(self, request: wire.Message) -> Any:
        match request:
            case {"for": "heartbeat", "lease_ms": lease_ms}:
                return await self._caller.services.heartbeat(self._call, lease_ms)
            case {"for": "emit", "channel": channel, "text": text}:
                return await self._caller.services.emit(self._call, channel, text)
            case {"for": "enqueue", "topic": topic, "payload": payload}:
                options = wire.enqueue_options(request)
                return wire.job_message(await self._caller.services.enqueue(topic, payload, options))
            case {"for": "enqueue with outcome", "topic": topic, "payload": payload, "step": step}:
                options = wire.enqueue_options(request)
                services = self._caller.services
                return wire.job_message(await services.enqueue_with_outcome(self._call, topic, payload, options, step))
            case {"for": "children", "request": asked}:
                return await self._caller.services.children(self._call, wire.child_request(asked))
            case {"for": "database"}:
                return list(self._caller.services.resources.database)
            case {"for": "recall", "name": name, "key": key, "finish_ms": finish_ms, "item": item}:
                return list(await self._caller.services.recall_step(self._call, name, key, finish_ms, item))
            case {"for": "begin map", "name": name, "total": total, "declared": declared}:
                return list(await self._caller.services.begin_map(self._call, name, total, declared))
            case {"for": "record map", "record": record, "name": name, "declared": declared}:
                done = StepRecord(*record) if record else None
                return await self._caller.services.record_map(self._call, done, name, declared)
            case {"for": "items", "name": name, "first": first, "last": last}:
                return [list(one) for one in await self._caller.services.item_results(self._call, name, first, last)]
            case {"for": "record", "record": record, "name": name, "key": key}:
                done = StepRecord(*record) if record else None
                return await self._caller.services.record_step(self._call, done, name, key)
            case {"for": "wait", "wait": wait}:
                return list(await self._caller.services.wait_step(self._call, Wait(*wait)))
        raise InvalidInput(f"the worker does not know what a child asks for: {request['for']}")


def _types(handler: Handler, results: Iterable[str]) -> wire.Message:
    """By step, where the child finds the function that returned the result, or the result's type."""
    flow = handler.flow
    steps = [flow.step(name) for name in results] if isinstance(flow, FlowHandler) else []
    return {step.name: _type_of(step) for step in steps if step and step.result}


def _type_of(step: FlowStep[..., Any]) -> wire.Message:
    function = step.__wrapped__
    if function is not None and "<" not in getattr(function, "__qualname__", "<"):
        return _place(function)
    assert step.result
    try:
        return {"pickled": base64.b64encode(pickle.dumps(step.result.annotation)).decode()}
    except (pickle.PicklingError, AttributeError, TypeError):  # a class inside a function
        return {}


def _place(function: Callable[..., Any]) -> wire.Message:
    return {"module": function.__module__, "qualname": function.__qualname__}
