"""The worker's side of process handlers: a child for each that runs, kept for the next one.

Only a process can really be stopped. After a cancel or a timeout the child is told first; a handler
that looks (`ctx.check_cancelled()`) leaves by itself. Halfway through the grace it gets SIGTERM, at its
end SIGKILL. Whatever way a child dies, its slot sees the end of the line and the job gets an outcome.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from treadle.errors import InvalidInput, JobCancelled
from treadle.handler import Handler
from treadle.lifecycle import Completed, Failed, Outcome
from treadle.policy import Retry
from treadle.telemetry import tracing
from treadle.telemetry.context import facts_of
from treadle.worker import outcomes, wire
from treadle.worker.child_process import START_S, Child, ProcessDied
from treadle.worker.desk import LoopDesk
from treadle.worker.outcomes import Raised
from treadle.worker.run import Interrupt, Run

_STOPPED = Raised("stop", "the process was stopped", "JobCancelled")


def check_findable(handler: Handler) -> None:
    name = handler.function.__qualname__
    if handler.kind == "process" and "<" in name:
        raise InvalidInput(
            f"{handler.topic}: {name} can't run in a process, which has to find it by its name; "
            "move it to the top level of its module"
        )


class Processes:
    def __init__(self, desk: LoopDesk) -> None:
        self._desk = desk
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._closed = False

    async def perform(self, run: Run) -> Outcome | None:
        talk = Conversation(run, self, self._desk)
        over = asyncio.create_task(talk.hold())
        try:
            return await asyncio.shield(over)
        except asyncio.CancelledError:
            return await talk.stop(over)

    async def borrow(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.reusable:
                return child
            await self._dismiss(child)
        child = await Child.start()
        if self._closed:
            child.signal(signal.SIGKILL)
            await child.dismiss()
            raise ProcessDied("the worker has left meanwhile, and nobody keeps the lease")
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
        """Idle children leave when their line ends; busy ones are killed by their own listener."""
        self._closed = True
        children, self._children, self._idle = self._children, set(), []
        await asyncio.gather(*(child.dismiss() for child in children))

    def abandon(self) -> None:
        self._closed = True
        for child in self._children:
            child.signal(signal.SIGKILL)


class Conversation:
    """One job in one child: what it reports, asks and ends with."""

    def __init__(self, run: Run, processes: Processes, desk: LoopDesk) -> None:
        self._run = run
        self._processes = processes
        self._desk = desk
        self._child: Child | None = None

    async def hold(self) -> Outcome | None:
        run = self._run
        run.deadline += START_S  # its time counts from when its handler begins, not while modules are imported
        try:
            self._child = child = await self._processes.borrow()
            if run.interrupt is not None:  # while the child was starting
                self._processes.give_back(child)
                return outcomes.judge(run, _STOPPED, JobCancelled())
            outcome = await self._listen(child)
        except ProcessDied as died:
            if self._child:
                self._processes.forget(self._child)
            raised = _STOPPED if run.interrupt else outcomes.describe(died)
            return outcomes.judge(run, raised, died)
        self._processes.give_back(child)
        return outcome

    async def stop(self, over: asyncio.Task[Outcome | None]) -> Outcome | None:
        """Tell, terminate, kill; the outcome comes from the line as always."""
        run = self._run
        try:
            if run.interrupt in (None, Interrupt.SHUTDOWN) or run.recipe.kills:
                self._signal(signal.SIGKILL)
            else:
                await self._insist(over)
            return await asyncio.shield(over)
        except asyncio.CancelledError:
            # Told again: the lease is lost meanwhile, or the worker leaves.
            self._signal(signal.SIGKILL)
            if run.interrupt is Interrupt.LOST:
                return None
            raise

    async def _insist(self, over: asyncio.Task[Outcome | None]) -> None:
        run = self._run
        cause = run.interrupt.value if run.interrupt else ""
        if self._child:
            self._child.send({"is": "interrupt", "cause": cause, "reason": str(run.interruption())})
        for number in (signal.SIGTERM, signal.SIGKILL):
            done, _ = await asyncio.wait({over}, timeout=run.recipe.grace_s / 2)
            if done:
                return
            self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        if self._child:
            self._child.signal(number)

    # -- what comes over the line ------------------------------------------------------------------

    async def _listen(self, child: Child) -> Outcome | None:
        run, function = self._run, self._run.recipe.handler.function
        where = {"module": function.__module__, "qualname": function.__qualname__}
        child.send({"is": "run", "job": list(run.job), "span": tracing.current(), **where})
        while True:
            match await child.next():
                case {"is": "completed", "result": result}:
                    return outcomes.of_return(run, Completed(result))
                case {"is": "refused", "error": error, "type": kind}:
                    return outcomes.of_return(run, Failed(error, kind))
                case {"is": "raised", "raised": fields}:
                    raised = Raised(*fields)
                    return outcomes.judge(run, raised, stand_in(raised, run.recipe.handler.template.retry))
                case message:
                    await self._hear(child, message)

    async def _hear(self, child: Child, message: wire.Message) -> None:
        match message:
            case {"is": "begun"}:
                self._run.begin(time.monotonic())
            case {"is": "progress", "percent": percent, "message": text}:
                self._run.report(percent, text)
            case {"is": "log", "level": level, "message": text}:
                job = self._run.job
                logging.getLogger(f"treadle.jobs.{job.topic}").log(level, "%s", text, extra=facts_of(job))
            case {"is": "heartbeat" | "enqueue"}:
                child.send(await self._answer(message))

    async def _answer(self, message: wire.Message) -> wire.Message:
        try:
            if message["is"] == "heartbeat":
                await self._desk.heartbeat(self._run)
                return {"is": "answer", "value": None}
            options = wire.enqueue_options(message)
            job = await self._desk.enqueue(message["topic"], message["payload"], options)
            return {"is": "answer", "value": wire.job_message(job)}
        except (Exception, JobCancelled) as error:  # it belongs to the handler
            return {"is": "answer", "error": wire.error_message(error)}


def stand_in(raised: Raised, retry: Retry) -> BaseException:
    """An exception that a retry policy treats like the child's, which could not come over."""
    known = {outcomes.full_name(kind): kind for kind in retry.on or ()}
    for name in raised.families:
        if kind := known.get(name):
            return kind.__new__(kind)
    return Exception()
