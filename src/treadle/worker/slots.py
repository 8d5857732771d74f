"""Runs claimed jobs in slots: claimed → attempt → outcome → settlement.

A slot is a long-lived task. It takes the next job from the inbox, runs its handler in place and passes the outcome to
the settler, without a task, timer or lock per job. A slot continues with job after job until one has to wait; before
that, it wakes the next slot. So quick handlers run one after the other without task switches, and slow ones run
concurrently. Handlers in threads and processes also occupy a slot, so "ten slots" means ten running jobs of any kind.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CoroutineType

from treadle.model.raised import is_ctrl_c, not_ctrl_c
from treadle.model.status import Status
from treadle.policy.judgement import STOPPED, judge
from treadle.policy.lifecycle import (
    CancelAcknowledged,
    Completed,
    Failed,
    Outcome,
    Released,
    RowState,
    Transition,
    decide,
)
from treadle.store.values import Claimed, Effects, Settlement
from treadle.telemetry.log_context import facts_of, running_job
from treadle.worker.attempt import Attempt
from treadle.worker.errors import describe
from treadle.worker.inbox import Inbox
from treadle.worker.job_log import JobLog
from treadle.worker.lease_keeper import Lease
from treadle.worker.recipe import Recipe
from treadle.worker.settler import Settler
from treadle.worker.stray_cancels import absorb_cancel, uncancel

log = logging.getLogger("treadle.worker")

# How long slots may run without yielding to the loop, which claims and settles need too.
TURN_S = 0.001


class Slot:
    __slots__ = ("attempt", "task", "wake")

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self.task: asyncio.Task[None] | None = None
        self.wake: asyncio.Future[None] | None = None


class Slots:
    def __init__(self, slots: int, lease: Lease, settler: Settler, job_log: JobLog) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self.inbox = Inbox()
        self.lease = lease
        self.recipes: Mapping[str, Recipe] = {}
        self._start_by: dict[int, float] = {}
        """By token, for jobs under a rate limit."""
        self._pauses: dict[str, float] = {}
        """Topics that a handler has paused, with the time when that was stored. A claim sent before then may still
        bring jobs of them.
        """
        self.low_water = 0
        """`on_room` is called when at most this many jobs wait."""
        self.on_room: Callable[[], None] = lambda: None
        self.finished = 0
        self.clock_gap_s = 0.0
        """Our monotonic clock minus the database's, at the last claim; 0: unknown."""
        self.active = asyncio.Event()
        self.idle = asyncio.Event()
        self._settler = settler
        self._job_log = job_log
        self._starts_to_tell = 0
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

    def feed(self, jobs: Sequence[Claimed], asked: float = math.inf) -> None:
        """Add jobs from a claim that was sent at this time."""
        if self._pauses:
            jobs = self._without_paused(jobs, asked)
        if self._start_by and not self.inbox.jobs:
            self._start_by.clear()
        for job in jobs:
            if job.start_within_ms is not None:
                self._start_by[job.token] = asked + job.start_within_ms / 1000
        self.inbox.add(jobs, time.monotonic())
        self._starts_to_tell = self._job_log.starts(len(self.inbox))
        self.active.set()
        self.idle.clear()
        self._pass_on()

    @property
    def free(self) -> int:
        """Slots that would start a job now; none while jobs wait, because those come first."""
        return 0 if self.inbox.jobs else len(self._parked)

    @property
    def parked(self) -> int:
        """Slots without a job."""
        return len(self._parked)

    def running(self) -> Iterator[Attempt]:
        return (slot.attempt for slot in self.slots if slot.attempt is not None)

    def release(self, jobs: Iterable[Claimed], reason: str) -> None:
        """Give back jobs that were never started, without using up their attempts."""
        for job in jobs:
            self._settler.add(Settlement(job, decide(job, Released(reason)), None))

    def _pause(self, topic: str) -> None:
        """A handler asked for a pause of its topic: give back the claimed jobs of it that have not started."""
        self._pauses[topic] = math.inf
        self.release(self.inbox.take_topic(topic), f"topic {topic} is paused")

    def pause_written(self, topic: str) -> None:
        """Later claims bring no jobs of it, unless it was resumed."""
        self._pauses[topic] = time.monotonic()

    def _without_paused(self, jobs: Sequence[Claimed], asked: float) -> Sequence[Claimed]:
        self._pauses = {topic: stored for topic, stored in self._pauses.items() if asked <= stored}
        for topic in self._pauses:
            self.release([job for job in jobs if job.topic == topic], f"topic {topic} is paused")
        return [job for job in jobs if job.topic not in self._pauses]

    def acknowledge_cancel(self, job: Claimed, reason: str) -> None:
        self._settler.add(Settlement(job, _cancelled(job, reason), None))

    def abandon(self, attempt: Attempt) -> None:
        """Give back a job with a handler that won't stop; nothing more is reported about it."""
        if not attempt.abandoned and not attempt.lost:
            attempt.abandoned = True
            transition = decide(attempt.job, Released("the worker stopped"))
            ran_ms = attempt.ran_ms(time.monotonic())
            self._settler.add(Settlement(attempt.job, transition, ran_ms, _with_output(attempt, None)))

    def close(self) -> list[asyncio.Task[None]]:
        """Take no more jobs; the slots' tasks end, except where a handler won't stop."""
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
            except BaseException as error:
                thrown_away = isinstance(error, GeneratorExit) and not self._loop.is_running()
                if self._closed or thrown_away or is_ctrl_c(error):
                    raise
                self._go_on(slot, error)

    def _go_on(self, slot: Slot, error: BaseException) -> None:
        """Whatever reaches a slot, it lives on, and its job gets an outcome: its lease is renewed with the others'."""
        uncancel(slot.task)
        if slot in self._parked:
            self._parked.remove(slot)
        attempt, slot.attempt = slot.attempt, None
        if attempt is None:
            # Something left behind by a handler may cancel the task that it once ran in.
            if not isinstance(error, asyncio.CancelledError):
                log.error("a slot was interrupted; it goes on\n%s", describe(error).text)
            return
        job, self.finished, attempt.ended = attempt.job, self.finished + 1, True
        outcome = _unforeseen(attempt, self.recipes[job.topic], error)
        if outcome is not None and not attempt.abandoned:
            effects = _with_output(attempt, None if attempt.steps is None else Effects())
            ran_ms = attempt.ran_ms(time.monotonic())
            self._settler.add(Settlement(job, _decided(job, outcome), ran_ms, effects))
        text = describe(error).text
        log.error("could not decide the outcome of job %s\n%s", job.id, text, extra=facts_of(job))

    async def _serve(self, slot: Slot) -> None:
        jobs, recipes, clock = self.inbox.jobs, self.recipes, time.monotonic
        task = slot.task
        assert task
        now = clock()
        while not self._closed:
            if not jobs:
                await self._park(slot)
                now = clock()
                continue
            job = jobs.popleft()
            if len(jobs) <= self.low_water:
                self.on_room()
            if job.start_within_ms is not None and self._too_late(job):
                continue
            slot.attempt = attempt = Attempt(job, self.lease, now)
            recipe = recipes[job.topic]
            running_job.set(job)
            if self._starts_to_tell:
                self._tell_start(job)
            outcome = recipe.run(attempt)
            if outcome.__class__ is CoroutineType:
                self._pass_on()
                outcome = await outcome
            if self._closed:
                return
            now = clock()
            self._report(attempt, recipe, outcome, now)  # type: ignore[arg-type]
            slot.attempt = None
            if task.cancelling():
                await absorb_cancel(task)  # it was meant for the job that is over
                now = clock()
            if now >= self._turn_ends:
                await self._next_turn()
                now = clock()

    def _report(self, attempt: Attempt, recipe: Recipe, outcome: Outcome | None, now: float) -> None:
        self.finished += 1
        attempt.ended = True
        job, started = attempt.job, attempt.started
        recipe.note_start(started - job.due / 1000)
        recipe.note_run(now - started)
        if outcome is None or attempt.abandoned:
            return
        transition = _completed(job, outcome.result) if outcome.__class__ is Completed else _decided(job, outcome)
        # Completing sets progress to 100: only a message is worth keeping.
        if attempt.news and (attempt.message or transition.to is not Status.COMPLETED):
            self._settler.add_touch(job.lease, attempt.touch(now))
        gap = self.clock_gap_s
        waited_ms = int((started - gap) * 1000) - job.due if gap else None
        effects = _effects(attempt, outcome) if attempt.has_effects else None
        self._settler.add(Settlement(job, transition, int((now - started) * 1000), effects, waited_ms))
        if transition.pauses_topic:
            self._pause(job.topic)  # after its settlement: jobs that are given back earlier could be claimed again

    def _too_late(self, job: Claimed) -> bool:
        """Give back a rate-limited job if its handler would start so late that the next window could be full."""
        if time.monotonic() <= self._start_by.get(job.token, math.inf):
            return False
        log.warning("job %s is given back: it could not start in time for its rate limit", job.id, extra=facts_of(job))
        self.release([job], "it could not start in time for its rate limit")
        return True

    def _tell_start(self, job: Claimed) -> None:
        self._starts_to_tell -= 1
        self._job_log.started(job)

    # -- taking turns ----------------------------------------------------------------------------

    async def _park(self, slot: Slot) -> None:
        running_job.set(None)
        slot.wake = self._loop.create_future()
        self._parked.append(slot)
        if len(self._parked) == len(self.slots):
            self.active.clear()
            self.idle.set()
        self.on_room()
        await slot.wake

    def _pass_on(self) -> None:
        """Wake the next slot if there is a job for it."""
        if self._parked and self.inbox.jobs:
            wake = self._parked.pop().wake
            if wake and not wake.done():
                wake.set_result(None)

    async def _next_turn(self) -> None:
        """All slots share one turn: the first one to use it up lets the loop restart the clock."""
        if not self._turn_over:
            self._turn_over = True
            self._loop.call_soon(self._begin_turn)
        await asyncio.sleep(0)

    def _begin_turn(self) -> None:
        self._turn_over = False
        self._turn_ends = time.monotonic() + TURN_S


def _completed(job: Claimed, result: str | None) -> Transition:
    """The lifecycle's decision, cached because nearly every job ends this way."""
    if job.attempt >= len(_DONE):
        return decide(job, Completed(result))
    before, after = _DONE[job.attempt]
    return _new(Transition, (*before, result, *after))  # a quarter of the time that `_replace` takes


_new = tuple.__new__
_RESULT = Transition._fields.index("result")
_DONE = [
    (done[:_RESULT], done[_RESULT + 1 :])
    for attempt in range(64)
    for done in [decide(RowState(Status.PROCESSING, attempt, attempt), Completed())]
]


def _decided(job: Claimed, outcome: Outcome) -> Transition:
    return _cancelled(job, outcome.reason) if isinstance(outcome, CancelAcknowledged) else decide(job, outcome)


def _unforeseen(attempt: Attempt, recipe: Recipe, error: BaseException) -> Outcome | None:
    """The outcome of an attempt that raised outside of its handler; None if the lease is lost."""
    raised = describe(error)
    interrupt = attempt.lost_interrupt() if attempt.lost else attempt.interrupt
    if interrupt is not None:
        raised = STOPPED
    try:
        return judge(raised, interrupt, recipe.retry, attempt.job.attempt)
    except BaseException as again:  # a user's retry policy may raise anything, and may have been what raised before
        not_ctrl_c(again)
        return Failed(raised.text, raised.type)


def _effects(attempt: Attempt, outcome: Outcome) -> Effects | None:
    effects = attempt.steps.effects(outcome) if attempt.steps is not None else None
    if attempt.follow_ups and isinstance(outcome, Completed):
        effects = (effects or Effects())._replace(jobs=attempt.follow_ups)
    return _with_output(attempt, effects)


def _with_output(attempt: Attempt, effects: Effects | None) -> Effects | None:
    """What the handler has emitted and the store does not have yet; it can emit nothing more."""
    rest = attempt.output.close() if attempt.output is not None else ()
    return (effects or Effects())._replace(output=rest) if rest else effects


def _cancelled(job: Claimed, reason: str) -> Transition:
    """The worker knows about the cancel, which was requested after the claim."""
    return decide(RowState(Status.CANCELLING, job.attempt, job.max_attempts), CancelAcknowledged(reason))
