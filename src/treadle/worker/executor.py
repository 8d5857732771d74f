"""Runs claimed jobs in slots: resolve, perform, record, report.

A slot is a long-lived task. It takes the next job from the inbox, awaits its handler in place and
hands the outcome to the settler: no task, timer or lock per job. Handlers in threads and processes
take a slot too, which waits for them, so "ten slots" means ten running jobs of whatever kind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from treadle.context import Context, Desk
from treadle.lifecycle import CancelAcknowledged, Completed, Outcome, Released
from treadle.store.base import Claimed, Settlement
from treadle.telemetry.context import running_job
from treadle.worker import outcomes
from treadle.worker.inbox import Inbox
from treadle.worker.isolation import isolated
from treadle.worker.lease import Lease
from treadle.worker.run import Interrupt, Recipe, Run
from treadle.worker.settler import Settler

log = logging.getLogger("treadle.worker")

# How long slots may run without giving the loop a turn: claims and settles need it too.
TURN_S = 0.001


class Slot:
    __slots__ = ("run", "task", "wake")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.task: asyncio.Task[None] | None = None
        self.wake: asyncio.Future[None] | None = None

    def interrupt(self, cause: Interrupt, reason: str) -> bool:
        """Ask the running handler to stop; False: it was asked before.

        A thread can't be stopped: it sees the mark at its next checkpoint.
        """
        run, task = self.run, self.task
        if run is None or task is None or not run.mark(cause, reason, time.monotonic()):
            return False
        if run.recipe.handler.kind != "thread":
            task.cancel()
        return True


class Executor:
    def __init__(self, slots: int, lease: Lease, settler: Settler, desk: Desk, on_room: Callable[[], None]) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self.inbox = Inbox()
        self.lease = lease
        self.recipes: Mapping[str, Recipe] = {}
        self.low_water = 0
        """`on_room` is called when no more than this many jobs wait."""
        self.finished = 0
        self.active = asyncio.Event()
        self.idle = asyncio.Event()
        self._settler = settler
        self._desk = desk
        self._on_room = on_room
        self._parked: list[Slot] = []
        self._loop = asyncio.get_running_loop()
        self._turn_ends = 0.0
        self._turn_over = False
        self._closed = False

    # -- from outside ----------------------------------------------------------------------------

    def start(self, recipes: Mapping[str, Recipe]) -> None:
        self.recipes = recipes
        for number, slot in enumerate(self.slots):
            slot.task = asyncio.create_task(self._live(slot), name=f"treadle-slot-{number}")

    def feed(self, jobs: Sequence[Claimed]) -> None:
        self.inbox.add(jobs, time.monotonic())
        self.active.set()
        self.idle.clear()
        for _ in range(min(len(jobs), len(self._parked))):
            self._wake(self._parked.pop())

    @property
    def free(self) -> int:
        return len(self._parked)

    def running(self) -> Iterator[tuple[Slot, Run]]:
        return ((slot, slot.run) for slot in self.slots if slot.run is not None)

    def release(self, jobs: Iterable[Claimed], reason: str) -> None:
        """Give back jobs that were never started; their attempt is not spent."""
        for job in jobs:
            self._record(job, Released(reason), None)

    def acknowledge_cancel(self, job: Claimed, reason: str) -> None:
        self._record(job, CancelAcknowledged(reason), None)

    def abandon(self, run: Run) -> None:
        """Give back a job whose handler won't stop; what it still does is not reported."""
        if not run.abandoned and not run.lost:
            run.abandoned = True
            self._record(run.job, Released("the worker stopped"), run.ran_ms(time.monotonic()))

    def close(self) -> list[asyncio.Task[None]]:
        """No more jobs; the slots' tasks end, but one whose handler won't."""
        self._closed = True
        tasks = [slot.task for slot in self.slots if slot.task]
        for task in tasks:
            task.cancel()
        return tasks

    # -- a slot ----------------------------------------------------------------------------------

    async def _live(self, slot: Slot) -> None:
        while not self._closed:
            try:
                await self._serve(slot)
            except asyncio.CancelledError:
                if self._closed:
                    raise
                # Not ours: something that a handler left behind cancelled the task it once ran in.
                _uncancel(slot.task)
                if slot in self._parked:
                    self._parked.remove(slot)

    async def _serve(self, slot: Slot) -> None:
        jobs, recipes, clock = self.inbox.jobs, self.recipes, time.monotonic
        task = slot.task
        assert task
        while not self._closed:
            if not jobs:
                await self._park(slot)
                continue
            job = jobs.popleft()
            if len(jobs) <= self.low_water:
                self._on_room()
            recipe = recipes[job.topic]
            running_job.set(job)
            slot.run = run = Run(job, recipe, self.lease, clock())
            try:
                outcome = await recipe.perform(run)
            except Exception as error:  # a retry policy of the user's that raises, or a mistake of ours
                log.exception("job %s could not be judged", job.id)
                outcome = outcomes.final(error)
            slot.run = None
            now = clock()
            self._report(run, outcome, now)
            if task.cancelling():
                await self._absorb_cancel(task)
            if now >= self._turn_ends:
                await self._next_turn()

    async def perform(self, run: Run) -> Outcome | None:
        """A coroutine handler, right here."""
        handler = run.recipe.handler
        try:
            payload = handler.payload(run.job.payload)
        except Exception as error:  # whatever the payload's type raises
            return outcomes.final(error)
        try:
            context = Context(run, self._desk, payload) if handler.wants_context else None
            result = await isolated(handler.function(*handler.arguments(context, payload)))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # cancels and exits of a handler end there
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise
            return outcomes.of_error(run, error)
        return outcomes.of_return(run, outcomes.stored(handler, result))

    def _report(self, run: Run, outcome: Outcome | None, now: float) -> None:
        self.finished += 1
        recipe, started = run.recipe, run.started
        recipe.note_start(started - run.job.due / 1000)
        recipe.note_run(now - started)
        if outcome is None or run.abandoned:
            return
        if run.news and (run.message or not isinstance(outcome, Completed)):
            self._settler.add_touch(run.job.lease, run.touch(now))
        self._record(run.job, outcome, int((now - started) * 1000))

    def _record(self, job: Claimed, outcome: Outcome, ran_ms: int | None) -> None:
        self._settler.add(Settlement(job, outcomes.transition_for(job, outcome), ran_ms))

    async def _absorb_cancel(self, task: asyncio.Task[None]) -> None:
        """A cancel was for the job that is over, ours or its own; the next one must not feel it."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        _uncancel(task)

    # -- taking turns ----------------------------------------------------------------------------

    async def _park(self, slot: Slot) -> None:
        running_job.set(None)
        slot.wake = self._loop.create_future()
        self._parked.append(slot)
        if len(self._parked) == len(self.slots):
            self.active.clear()
            self.idle.set()
        self._on_room()
        await slot.wake

    def _wake(self, slot: Slot) -> None:
        if slot.wake and not slot.wake.done():
            slot.wake.set_result(None)

    async def _next_turn(self) -> None:
        """All slots share one turn: the first whose time is up has the clock set again by the loop itself."""
        if not self._turn_over:
            self._turn_over = True
            self._loop.call_soon(self._begin_turn)
        await asyncio.sleep(0)

    def _begin_turn(self) -> None:
        self._turn_over = False
        self._turn_ends = time.monotonic() + TURN_S


def _uncancel(task: asyncio.Task[None] | None) -> None:
    while task and task.cancelling():
        task.uncancel()
