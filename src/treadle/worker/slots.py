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

from treadle.model.status import Status
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
from treadle.worker.errors import error_text, type_name
from treadle.worker.inbox import Inbox
from treadle.worker.job_log import JobLog
from treadle.worker.lease_keeper import Lease
from treadle.worker.recipe import Recipe
from treadle.worker.settler import Settler

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
            rest = attempt.output.close() if attempt.output is not None else ()
            effects = Effects(output=rest) if rest else None
            self._settler.add(Settlement(attempt.job, transition, attempt.ran_ms(time.monotonic()), effects))

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
            except asyncio.CancelledError:
                if self._closed:
                    raise
                # Not from us: something left behind by a handler cancelled the task that it once ran in.
                _uncancel(slot.task)
                if slot in self._parked:
                    self._parked.remove(slot)

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
            recipe = recipes[job.topic]
            running_job.set(job)
            if self._starts_to_tell:
                self._tell_start(job)
            slot.attempt = attempt = Attempt(job, self.lease, now)
            try:
                outcome = recipe.run(attempt)
                if outcome.__class__ is CoroutineType:
                    self._pass_on()
                    outcome = await outcome
            except Exception as error:  # a user's retry policy that raises, or a bug
                log.exception("could not decide the outcome of job %s", job.id, extra=facts_of(job))
                outcome = Failed(error_text(error), type_name(type(error)))
            if self._closed:
                return
            slot.attempt = None
            now = clock()
            self._report(attempt, recipe, outcome, now)  # type: ignore[arg-type]
            if task.cancelling():
                await self._absorb_cancel(task)
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
        if outcome.__class__ is Completed:
            transition = _completed(job, outcome.result)
        elif isinstance(outcome, CancelAcknowledged):
            transition = _cancelled(job, outcome.reason)
        else:
            transition = decide(job, outcome)
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

    async def _absorb_cancel(self, task: asyncio.Task[None]) -> None:
        """The cancel was meant for the job that is over and must not reach the next one."""
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


def _effects(attempt: Attempt, outcome: Outcome) -> Effects | None:
    effects = attempt.steps.effects(outcome) if attempt.steps is not None else None
    if attempt.follow_ups and isinstance(outcome, Completed):
        effects = (effects or Effects())._replace(jobs=attempt.follow_ups)
    if attempt.output is not None and (rest := attempt.output.close()):
        effects = (effects or Effects())._replace(output=rest)
    return effects


def _cancelled(job: Claimed, reason: str) -> Transition:
    """The worker knows about the cancel, which was requested after the claim."""
    return decide(RowState(Status.CANCELLING, job.attempt, job.max_attempts), CancelAcknowledged(reason))


def _uncancel(task: asyncio.Task[None] | None) -> None:
    while task and task.cancelling():
        task.uncancel()
