"""One attempt of one job in this worker, from the start of its handler to its settlement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from treadle.errors import JobCancelled, LeaseLost
from treadle.handler import Handler
from treadle.lifecycle import Outcome
from treadle.policy import duration_ms, format_ms
from treadle.store.base import Claimed, Touch
from treadle.worker.lease import Lease
from treadle.worker.metrics import Times

# A job that is over sooner gets its start from its settlement: most jobs cost no extra write.
WORTH_A_TOUCH_S = 0.1


class Interrupt(Enum):
    """Why a running handler was asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST = "lost"


class Recipe:
    """A handler with the numbers of its template worked out once."""

    __slots__ = ("grace_s", "handler", "kills", "note_run", "note_start", "perform", "stuck_after_s", "timeout_s")

    def __init__(self, handler: Handler, perform: Callable[[Run], Awaitable[Outcome | None]], times: Times) -> None:
        template = handler.template
        self.handler = handler
        self.perform = perform
        self.note_start = times.new_starts.append
        self.note_run = times.new_runs.append
        self.timeout_s = duration_ms(template.timeout) / 1000
        self.grace_s = duration_ms(template.cancel.grace) / 1000
        self.kills = template.cancel.mode == "kill"
        # A process is killed when its grace is over, and needs a moment to be gone.
        self.stuck_after_s = self.grace_s + (5.0 if handler.kind == "process" else 0.0)

    def limit(self) -> str:
        return format_ms(round(self.timeout_s * 1000))


class Run:
    """Its fields are set on the loop and read from the handler's thread; each is one plain word."""

    __slots__ = (
        "abandoned",
        "beaten_at",
        "deadline",
        "interrupt",
        "interrupted_at",
        "job",
        "lease",
        "message",
        "news",
        "percent",
        "reason",
        "recipe",
        "started",
        "stuck",
        "touched",
    )

    def __init__(self, job: Claimed, recipe: Recipe, lease: Lease, started: float) -> None:
        self.job = job
        self.recipe = recipe
        self.lease = lease
        self.started = started
        self.deadline = started + recipe.timeout_s
        self.interrupt: Interrupt | None = None
        self.news = False
        self.touched = False
        self.stuck = False
        self.abandoned = False
        self.beaten_at = 0.0
        self.percent: int | None = None
        self.message: str | None = None

    # -- what a handler says and asks, from any thread -------------------------------------------

    @property
    def cancelled(self) -> bool:
        return self.interrupt is Interrupt.CANCEL

    @property
    def lost(self) -> bool:
        return self.lease.lost or self.interrupt is Interrupt.LOST

    def report(self, percent: int, message: str) -> None:
        self.percent = percent
        self.message = message or self.message
        self.news = True

    def check(self) -> None:
        if self.interrupt is not None or self.lease.lost:
            raise self.interruption()

    def interruption(self) -> BaseException:
        """What the handler is told at its next checkpoint."""
        if self.lost:
            return LeaseLost(f"the lease on job {self.job.id} is lost: another worker may run it")
        if self.interrupt is Interrupt.TIMEOUT:
            return TimeoutError(f"the handler ran longer than its limit of {self.recipe.limit()}")
        return JobCancelled(self.reason)

    # -- what the worker does with it, on the loop -----------------------------------------------

    def mark(self, interrupt: Interrupt, reason: str, now: float) -> bool:
        """Remember why it should stop; the first reason stays, but a lost lease beats all. False: told before."""
        if self.interrupt is not None and (self.lost or interrupt is not Interrupt.LOST):
            return False
        self.reason = reason
        self.interrupted_at = now
        self.interrupt = interrupt
        return True

    def begin(self, now: float) -> None:
        """The handler starts only now: what came before was preparation."""
        self.started = now
        self.deadline = now + self.recipe.timeout_s

    def ran_ms(self, now: float) -> int:
        return int((now - self.started) * 1000)

    def worth_a_touch(self, now: float) -> bool:
        return (self.news or not self.touched) and now - self.started > WORTH_A_TOUCH_S

    def touch(self, now: float) -> Touch:
        """News for the store; from here on there are none."""
        self.news = False
        self.touched = True
        return Touch(self.job.n, self.job.token, self.ran_ms(now), self.percent, self.message)
