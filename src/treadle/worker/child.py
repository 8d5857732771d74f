"""The child's side of a process handler: it runs one job at a time and reports to its worker over a socket.

The main thread runs the handler (signals and many libraries insist on it), another reads what the
worker says. The child leads a process group of its own: Ctrl-C in a terminal is for the worker to
handle, and a kill reaches whatever the handler started.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import queue
import select
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from treadle.context import Context
from treadle.errors import JobCancelled, LeaseLost
from treadle.handler import Handler
from treadle.lifecycle import Completed, Failed
from treadle.store.base import Claimed
from treadle.telemetry import tracing
from treadle.telemetry.context import running_job
from treadle.template import Template
from treadle.worker import outcomes, wire

# How often a child that hears nothing asks itself whether its worker is still there.
PARENT_CHECK_S = 1.0


def main(connection: socket.socket, parent: int, log_level: int) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = Link(connection)
    signal.signal(signal.SIGTERM, lambda *_: link.terminated())
    _forward_logs(link, log_level)
    threading.Thread(target=link.listen, args=(parent,), name="treadle-link", daemon=True).start()
    link.send({"is": "ready"})
    while (work := link.work.get()) is not None:
        report = _work(*work)
        link.attempt = None
        link.send(report)


class Link:
    """The line to the worker, shared by the main thread, which works, and the listener."""

    def __init__(self, connection: socket.socket) -> None:
        self.work: queue.SimpleQueue[tuple[Attempt, wire.Message] | None] = queue.SimpleQueue()
        self.attempt: Attempt | None = None
        self._answers: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
        self._connection = connection
        self._sending = threading.Lock()
        self._asking = threading.Lock()

    def send(self, message: wire.Message) -> None:
        with self._sending:
            self._connection.sendall(wire.encode(message))

    def ask(self, request: wire.Message) -> Any:
        """The worker's answer; an error of its is raised here."""
        with self._asking:
            self.send(request)
            answer = self._answers.get()
        if "error" in answer:
            raise wire.error_from(answer["error"])
        return answer["value"]

    def listen(self, parent: int) -> None:
        """Until the worker hangs up or is gone; then there is nobody to work for."""
        with contextlib.suppress(OSError):
            while os.getppid() == parent:
                readable, _, _ = select.select([self._connection], [], [], PARENT_CHECK_S)
                if readable and not self._hear(wire.receive(self._connection)):
                    break
        if self.attempt is not None:
            os.killpg(0, signal.SIGKILL)
        self.work.put(None)

    def terminated(self) -> None:
        """SIGTERM. From the worker, who said why before, it ends the job; from anybody else, the process."""
        if self.attempt is not None:
            self.attempt.check()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _hear(self, message: wire.Message | None) -> bool:
        if message is None:
            return False
        match message:
            case {"is": "run", "job": job}:
                self.attempt = Attempt(Claimed(*job), self)
                self.work.put((self.attempt, message))
            case {"is": "interrupt", "cause": cause, "reason": reason}:
                if self.attempt:
                    self.attempt.interrupt(cause, reason)
            case {"is": "answer"}:
                self._answers.put(message)
        return True


class Attempt:
    """The attempt as the child knows it. The listener interrupts it; its next checkpoint raises."""

    def __init__(self, job: Claimed, link: Link) -> None:
        self.job = job
        self.link = link
        self.cancelled = False
        self.interruption: BaseException | None = None
        self.stop: Callable[[], object] | None = None

    @property
    def over(self) -> bool:
        """True when a thread that the handler left behind still talks."""
        return self.link.attempt is not self

    def report(self, percent: int, message: str) -> None:
        if not self.over:
            self.link.send({"is": "progress", "percent": percent, "message": message})

    def check(self) -> None:
        if self.interruption is not None:
            raise self.interruption

    def interrupt(self, cause: str, reason: str) -> None:
        kinds: dict[str, type[BaseException]] = {"timeout": TimeoutError, "lost": LeaseLost}
        self.cancelled = cause == "cancel"
        self.interruption = kinds.get(cause, JobCancelled)(reason)
        if self.stop:
            self.stop()


class ChildDesk:
    """Asks the worker over the line."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def heartbeat(self, attempt: Attempt) -> None:
        self._ask({"is": "heartbeat"})

    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        return wire.job_from(self._ask(wire.enqueue_request(topic, payload, options)))

    def _ask(self, request: wire.Message) -> Any:
        if self._attempt.over:
            raise LeaseLost(f"job {self._attempt.job.id} is over")
        return self._attempt.link.ask(request)


class ChildLoopDesk(ChildDesk):
    """The same for a coroutine: the line blocks a thread, not its loop."""

    async def heartbeat(self, attempt: Attempt) -> None:  # type: ignore[override]
        await asyncio.to_thread(super().heartbeat, attempt)

    async def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any:
        return await asyncio.to_thread(super().enqueue, topic, payload, options)


def _work(attempt: Attempt, message: wire.Message) -> wire.Message:
    """One job, from its payload to the message that reports its outcome."""
    try:
        handler = find_handler(message["module"], message["qualname"], attempt.job.topic)
    except Exception as error:  # a module of the user's may raise anything
        return _raised(outcomes.describe(error))
    try:
        payload = handler.payload(attempt.job.payload)
    except Exception as error:  # whatever the payload's type raises
        return _returned(outcomes.final(error))
    attempt.link.send({"is": "begun"})
    running_job.set(attempt.job)
    try:
        with tracing.continuing(message["span"]):
            result = _call(handler, attempt, payload)
    except BaseException as error:  # an exit in a handler ends the job, not the child
        return _raised(outcomes.describe(error))
    return _returned(outcomes.stored(handler, result))


def find_handler(module: str, qualname: str, topic: str) -> Handler:
    """The handler behind a function's name; the name may stand for what `@queue.job` made of the function."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    handler = getattr(found, "handler", None)
    return handler if isinstance(handler, Handler) else Handler(found, Template(topic), process=True)


def _call(handler: Handler, attempt: Attempt, payload: Any) -> Any:
    if not inspect.iscoroutinefunction(handler.function):
        context = Context(attempt, ChildDesk(attempt), payload)
        return handler.function(*handler.arguments(context, payload))
    return asyncio.run(_await(handler, attempt, payload))


async def _await(handler: Handler, attempt: Attempt, payload: Any) -> Any:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    attempt.stop = lambda: loop.call_soon_threadsafe(task.cancel)
    attempt.check()
    try:
        context = Context(attempt, ChildLoopDesk(attempt), payload)
        return await handler.function(*handler.arguments(context, payload))
    finally:
        attempt.stop = None


def _returned(outcome: Completed | Failed) -> wire.Message:
    if isinstance(outcome, Completed):
        return {"is": "completed", "result": outcome.result}
    return {"is": "refused", "error": outcome.error, "type": outcome.error_type}


def _raised(raised: outcomes.Raised) -> wire.Message:
    return {"is": "raised", "raised": list(raised)}


def _forward_logs(link: Link, level: int) -> None:
    """`ctx.log` belongs to the worker's logs, with the worker's settings."""
    logger = logging.getLogger("treadle.jobs")
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Forward(link))


class _Forward(logging.Handler):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        if self._link.attempt is not None:
            self._link.send({"is": "log", "level": record.levelno, "message": self.format(record)})
