"""The child's side of a process handler: it makes one call at a time and reports to its worker over a socket.

The main thread runs the handler, as signals and many libraries require; another thread reads messages from the worker.
The child leads a separate process group: Ctrl-C in a terminal is for the worker to handle, and a kill reaches every
process that the handler started.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import itertools
import logging
import os
import pickle
import queue
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pydantic_core import from_json

from treadle.model.errors import InvalidInput, LeaseLost, Suspend
from treadle.model.handler import Handler, ResultType, result_type
from treadle.model.payload import MAX_BYTES
from treadle.model.template import Template
from treadle.policy.judgement import CallResult, Cause, Interrupt, Returned
from treadle.queue.handlers.children import ChildRequest
from treadle.queue.handlers.context import Context
from treadle.queue.handlers.flows import Results
from treadle.queue.handlers.hooks import is_async
from treadle.queue.handlers.mapped import MapStart, set_item, without_item
from treadle.queue.handlers.steps import TURNS, Known, StepRecord, Wait, Waited, item_key, set_outer_steps
from treadle.queue.listeners import silence
from treadle.store.values import Claimed, UserDatabase
from treadle.telemetry import tracing
from treadle.telemetry.log_context import running_job
from treadle.worker.call import Function, perform, result_of
from treadle.worker.callers.loop import LoopCaller
from treadle.worker.child import wire
from treadle.worker.child.resources import CONNECTIONS, ChildResources
from treadle.worker.child.time_limit import time_limit
from treadle.worker.errors import describe
from treadle.worker.resources import Resources, close_connection
from treadle.worker.threads import PLACES, Threads

# How often an idle child checks whether its worker is still alive.
PARENT_CHECK_S = 1.0
# What a call knows besides its job.
_ABOUT_A_CALL = ("step", "results", "types", "step_result_bytes")
# The worker gives the reason before it sends SIGTERM, but another thread has to read it first.
TOLD_WITHIN_S = 0.2


def main(connection: socket.socket, parent: int, log_level: int) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = WorkerLine(connection)
    signal.signal(signal.SIGTERM, lambda *_: line.terminated())
    _forward_logs(line, log_level)
    silence()
    threading.Thread(target=line.listen, args=(parent,), name="treadle-line", daemon=True).start()
    line.send({"is": "ready"})
    while (work := line.work.get()) is not None:
        result = _work(*work)
        line.call = None
        line.send(_report(result))
    line.resources.close()


class WorkerLine:
    """The socket to the worker, shared by the main thread, which works, and the listener."""

    def __init__(self, connection: socket.socket) -> None:
        self.work: queue.SimpleQueue[tuple[ChildCall, wire.Message] | None] = queue.SimpleQueue()
        self.call: ChildCall | None = None
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._connection = connection
        self._sending = threading.Lock()
        self._database: UserDatabase | None = None
        self.resources = ChildResources(self.database)

    def send(self, message: wire.Message) -> None:
        with self._sending:
            self._connection.sendall(wire.encode(message))

    def ask(self, request: wire.Message) -> Future[Any]:
        """The worker's answer, or the error that it sends. Several requests may be in progress."""
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        self.send({"is": "ask", "id": number, **request})
        return answer

    def database(self) -> UserDatabase:
        """Where `ctx.db` goes, as the worker knows it: the queue in the handler's module may name another."""
        if self._database is None:
            self._database = UserDatabase(*self.ask({"for": "database"}).result())
        return self._database

    def listen(self, parent: int) -> None:
        """Runs until the worker disconnects or is gone; then there is no more work."""
        with contextlib.suppress(OSError):
            while os.getppid() == parent:
                readable, _, _ = select.select([self._connection], [], [], PARENT_CHECK_S)
                if readable and not self._hear(wire.receive(self._connection)):
                    break
        if self.call is not None:
            os.killpg(0, signal.SIGKILL)
        self.work.put(None)

    def terminated(self) -> None:
        """SIGTERM. From the worker, which has given the reason, it ends the call; from elsewhere, the process."""
        call = self.call
        if call is not None and call.told.wait(TOLD_WITHIN_S):
            return call.terminate()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _hear(self, message: wire.Message | None) -> bool:
        if message is None:
            return False
        match message:
            case {"is": "run", "job": job}:
                about = {
                    name: message[name]
                    for name in ("step", "results", "types", "key", "lists", "step_result_bytes", "inside")
                    if name in message
                }
                self.call = ChildCall(Claimed(*job), self, **about)
                self.work.put((self.call, message))
            case {"is": "interrupt", "cause": cause, "reason": reason}:
                if self.call:
                    self.call.stop(Interrupt(Cause(cause), reason))
            case {"is": "when idle", "id": number}:
                self._tell_when_idle({"is": "idle", "id": number})
            case {"is": "answer", "id": number}:
                self._answered(self._asked.pop(number), message)
        return True

    def _tell_when_idle(self, idle: wire.Message) -> None:
        """The coroutines of the handler have some turns first, to do what follows from the answers before."""
        loop = self.call.loop if self.call else None
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._turn, loop, TURNS, idle)
                return
        except RuntimeError:  # its loop has just ended
            pass
        self.send(idle)

    def _turn(self, loop: asyncio.AbstractEventLoop, left: int, idle: wire.Message) -> None:
        if left:
            loop.call_soon(self._turn, loop, left - 1, idle)
        else:
            self.send(idle)

    def _answered(self, asked: Future[Any], answer: wire.Message) -> None:
        if not asked.set_running_or_notify_cancel():
            return  # the handler no longer waits for it
        if "error" in answer:
            asked.set_exception(wire.error_from(answer["error"]))
        else:
            asked.set_result(answer["value"])


class ChildCall:
    """The call on the child's side. The listener interrupts it, and its next checkpoint raises."""

    function: Function
    error: BaseException | None = None
    suspended: Suspend | None = None
    task: asyncio.Task[Any] | None = None
    asked_context: Context | None = None

    def __init__(
        self,
        job: Claimed,
        line: WorkerLine,
        step: str = "",
        results: Mapping[str, str | None] | None = None,
        types: Mapping[str, wire.Message] | None = None,
        key: str = "",
        lists: Mapping[str, int] | None = None,
        step_result_bytes: int = MAX_BYTES,
        inside: Sequence[Sequence[str]] = (),
    ) -> None:
        self.job = job
        self.step_result_bytes = step_result_bytes
        self.inside = inside
        self.step = step
        self.key = key
        self._lists = lists or {}
        self._results = results or {}
        self._types = types or {}
        self.payload = job.payload
        self.line = line
        self.told = threading.Event()
        self.interrupt: Interrupt | None = None
        self.on_interrupt: Callable[[], object] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def results(self) -> Mapping[str, Any]:
        return Results(self._results, self.function.handler, self._find_type, self._lists, self._read_items)

    def _read_items(self, name: str, first: int, last: int) -> list[tuple[int, str | None]]:
        return [(place, text) for place, text in self.line.ask(wire.items_request(name, first, last)).result()]

    def _find_type(self, step: str) -> ResultType | None:
        match self._types.get(step):
            case None:
                return None
            case {"pickled": annotation}:
                # Safe: it comes from this process's own worker.
                return ResultType(pickle.loads(base64.b64decode(annotation)), step)  # noqa: S301
            case {"module": module, "qualname": qualname}:
                return result_type(_find(module, qualname))
        raise InvalidInput(
            f"step {step}: a process can't find the type of its result; move the class to the top level of its module"
        )

    @property
    def over(self) -> bool:
        """True if a thread left behind by the handler is still sending."""
        return self.line.call is not self

    @property
    def cancelled(self) -> bool:
        return self.interrupt is not None and self.interrupt.cause is Cause.CANCEL

    def report(self, percent: int, message: str) -> None:
        if not self.over:
            self.line.send({"is": "progress", "percent": percent, "message": message})

    def check(self) -> None:
        if self.interrupt is not None:
            raise self.interrupt.error()

    def stop(self, interrupt: Interrupt) -> None:
        """In the listener's thread."""
        self.interrupt = interrupt
        self.told.set()
        if self.loop:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                self.loop.call_soon_threadsafe(self._stop_task)

    def _stop_task(self) -> None:
        if self.on_interrupt:
            self.on_interrupt()

    def terminate(self) -> None:
        """In the main thread, in the middle of the handler. A waiting coroutine is already being cancelled."""
        task = asyncio.current_task(self.loop) if self.loop else None
        if self.loop is None or (task and not task.cancelling()):
            self.check()


class ChildServices:
    """Sends requests to the worker over the socket."""

    blocking = True
    call_in_process = None
    describe = staticmethod(describe)
    time_limit = staticmethod(time_limit)

    def __init__(self, call: ChildCall) -> None:
        self._call = call

    def heartbeat(self, call: ChildCall, lease_ms: int | None = None) -> Any:
        return self._ask({"for": "heartbeat", "lease_ms": lease_ms}).result()

    def emit(self, call: ChildCall, channel: str, text: str) -> Any:
        return self._ask({"for": "emit", "channel": channel, "text": text}).result()

    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        return wire.job_from(self._ask(wire.enqueue_request(topic, payload, options)).result())

    def enqueue_with_outcome(
        self, call: ChildCall, topic: str, payload: Any, options: dict[str, Any], step: tuple[str, str] | None
    ) -> Any:
        request = wire.enqueue_with_outcome_request(topic, payload, options, step)
        return wire.job_from(self._ask(request).result())

    def database(self) -> Any:
        return self._call.line.resources.database()

    def close_database(self, database: Any, context: Context) -> None:
        close_connection(database, context)

    def http(self) -> Any:
        return self._call.line.resources.http()

    def turn(self, call: ChildCall) -> None:
        """Its worker takes them in turns."""

    def recall_step(self, call: ChildCall, name: str, key: str, finish_ms: int | None, item: int | None = None) -> Any:
        return Known(*self._ask(wire.recall_request(name, key, finish_ms, item)).result())

    def begin_map(self, call: ChildCall, name: str, total: int, declared: bool) -> Any:
        return MapStart(*self._ask(wire.begin_map_request(name, total, declared)).result())

    def record_map(self, call: ChildCall, record: StepRecord | None, name: str, declared: bool) -> Any:
        return self._ask(wire.record_map_request(record, name, declared)).result()

    def read_items(self, call: ChildCall, name: str, first: int, last: int) -> list[tuple[int, str | None]]:
        return call._read_items(name, first, last)

    def record_step(self, call: ChildCall, record: StepRecord | None, name: str, key: str) -> Any:
        return self._ask(wire.record_request(record, name, key)).result()

    def wait_step(self, call: ChildCall, wait: Wait) -> Any:
        return Waited(*self._ask({"for": "wait", "wait": list(wait)}).result())

    def children(self, call: ChildCall, request: ChildRequest) -> Any:
        return self._ask(wire.children_request(request)).result()

    def _ask(self, request: wire.Message) -> Future[Any]:
        if self._call.over:
            raise LeaseLost(f"job {self._call.job.id} is over")
        return self._call.line.ask(request)


class ChildLoopServices(ChildServices):
    """The same for a coroutine: every answer is awaited. Its loop ends with it, and so does what is open there."""

    def __init__(self, call: ChildCall) -> None:
        super().__init__(call)
        self.resources = Resources(call.line.database, CONNECTIONS)
        self.threads = Threads()
        self.in_thread = self.threads.wait
        self._places = asyncio.Semaphore(PLACES)

    def thread_place(self, call: ChildCall) -> asyncio.Semaphore:
        return self._places

    def for_threads(self, call: ChildCall) -> ChildServices:
        return ChildServices(call)

    def database(self) -> Any:
        return self.resources.connection() or self.resources.pool()

    def http(self) -> Any:
        return self.resources.http()

    blocking = False

    async def recall_step(
        self, call: ChildCall, name: str, key: str, finish_ms: int | None, item: int | None = None
    ) -> Any:
        return Known(*await asyncio.wrap_future(self._ask(wire.recall_request(name, key, finish_ms, item))))

    async def begin_map(self, call: ChildCall, name: str, total: int, declared: bool) -> Any:
        return MapStart(*await asyncio.wrap_future(self._ask(wire.begin_map_request(name, total, declared))))

    async def record_map(self, call: ChildCall, record: StepRecord | None, name: str, declared: bool) -> Any:
        return await asyncio.wrap_future(self._ask(wire.record_map_request(record, name, declared)))

    async def record_step(self, call: ChildCall, record: StepRecord | None, name: str, key: str) -> Any:
        return await asyncio.wrap_future(self._ask(wire.record_request(record, name, key)))

    async def wait_step(self, call: ChildCall, wait: Wait) -> Any:
        return Waited(*await asyncio.wrap_future(self._ask({"for": "wait", "wait": list(wait)})))

    async def children(self, call: ChildCall, request: ChildRequest) -> Any:
        return await asyncio.wrap_future(self._ask(wire.children_request(request)))

    async def heartbeat(self, call: ChildCall, lease_ms: int | None = None) -> Any:
        return await asyncio.wrap_future(self._ask({"for": "heartbeat", "lease_ms": lease_ms}))

    async def emit(self, call: ChildCall, channel: str, text: str) -> Any:
        return await asyncio.wrap_future(self._ask({"for": "emit", "channel": channel, "text": text}))

    async def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        return wire.job_from(await asyncio.wrap_future(self._ask(wire.enqueue_request(topic, payload, options))))

    async def enqueue_with_outcome(
        self, call: ChildCall, topic: str, payload: Any, options: dict[str, Any], step: tuple[str, str] | None
    ) -> Any:
        request = wire.enqueue_with_outcome_request(topic, payload, options, step)
        return wire.job_from(await asyncio.wrap_future(self._ask(request)))


def _work(call: ChildCall, message: wire.Message) -> CallResult:
    try:
        item_text = message.get("item")
        item_key.set(call.key if item_text is not None else "")
        call.function = find_function(message["functions"], call.job.topic, item_text)
    except Exception as error:  # a user's module may raise anything
        return describe(error)
    call.line.send({"is": "begun"})
    running_job.set(call.job)
    set_outer_steps(call.inside)
    try:
        with tracing.continuing(message["span"]):
            if is_async(call.function.handler.function):
                return asyncio.run(_await(call))
            return perform(call, ChildServices(call))
    except BaseException as error:  # SIGTERM can raise at any point of the call; it ends the call, not the child
        return describe(error)


async def _await(call: ChildCall) -> CallResult:
    call.loop = asyncio.get_running_loop()
    services = ChildLoopServices(call)
    try:
        call.check()
        return await result_of(LoopCaller(services).begin(call))
    finally:
        call.loop = None
        services.threads.close()
        await services.resources.close()


def find_function(places: list[wire.Message], topic: str, item_text: str | None = None) -> Function:
    """The handler behind a function's name, wrapped in its middleware. `item_text`: what a mapped step gets."""
    found, *middleware = [_find(**place) for place in places]
    if item_text is not None:
        found, type_ = without_item(getattr(found, "__wrapped__", None) or found)
        set_item(from_json(item_text), type_)
    return Function(_handler(found, topic), middleware)


def _find(module: str, qualname: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _handler(found: Any, topic: str) -> Handler:
    """The name may refer to the task that `@queue.job` made from the function."""
    handler = getattr(found, "handler", None)
    return handler if isinstance(handler, Handler) else Handler(found, Template(topic), process=True)


def _report(result: CallResult) -> wire.Message:
    if isinstance(result, Returned):
        return {"is": "returned", "text": result.text}
    return {"is": "raised", "raised": list(result)}


def _forward_logs(line: WorkerLine, level: int) -> None:
    """`ctx.log` goes to the worker's logs, with the worker's settings."""
    logger = logging.getLogger("treadle.jobs")
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Forward(line))


class _Forward(logging.Handler):
    def __init__(self, line: WorkerLine) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        if self._line.call is not None:
            self._line.send({"is": "log", "level": record.levelno, "message": self.format(record)})
