"""One attempt of one job in this worker, from start to settlement. It makes one call or many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.policy.judgement import Cause, Interrupt
from treadle.policy.lifecycle import Parked, Snoozed
from treadle.store.values import Claimed, NewJob, Touch
from treadle.worker.call import Call
from treadle.worker.lease_keeper import Lease

if TYPE_CHECKING:
    from treadle.worker.output import JobOutput
    from treadle.worker.steps.journal import StepJournal

# A job that ends sooner gets its start time from its settlement, so most jobs cost no extra write.
WORTH_A_TOUCH_S = 0.1


class Attempt:
    """Fields are set on the loop and read from the handler's thread; each is a simple value that needs no lock.

    Defaults are on the class because most attempts end before any of them changes, and setting them takes time.
    """

    calls: tuple[Call, ...] = ()
    """The calls in progress."""
    interrupt: Interrupt | None = None
    """Why the whole attempt should stop; a call can also be stopped alone."""
    abandoned = False
    """Given back while its handler still runs; nothing more is reported about it."""
    news = False
    touched = False
    percent: int | None = None
    message: str | None = None
    beaten_at = 0.0
    steps: StepJournal | None = None
    """What its steps have done; None: it has none, or they were not read."""
    follow_ups: tuple[NewJob, ...] = ()
    """Jobs to store together with its completion."""
    output: JobOutput | None = None
    """What it has emitted; None: nothing."""
    delays_cancel = False
    """The store was told to wait for a call that must finish."""
    ended = False
    """Its outcome is on its way to the store; nothing can be added to it."""

    def __init__(self, job: Claimed, lease: Lease, started: float) -> None:
        self.job = job
        self.lease = lease
        self.started = started

    # -- what a handler says and asks, from any thread -------------------------------------------

    @property
    def lost(self) -> bool:
        return self.lease.lost or (self.interrupt is not None and self.interrupt.cause is Cause.LOST)

    @property
    def suspended(self) -> Parked | Snoozed | None:
        """How it ends if its handler was told to wait."""
        return None if self.steps is None else self.steps.suspended

    @property
    def has_effects(self) -> bool:
        """Whether more than its outcome may have to be stored."""
        return self.steps is not None or bool(self.follow_ups) or self.output is not None

    def report(self, percent: int, message: str) -> None:
        self.percent = percent
        self.message = message or self.message
        self.news = True

    def lost_interrupt(self) -> Interrupt:
        return Interrupt(Cause.LOST, f"the lease on job {self.job.id} is lost: another worker may run it")

    # -- its calls, on the loop ------------------------------------------------------------------

    def open(self, call: Call) -> None:
        self.calls += (call,)

    def close(self, call: Call) -> None:
        """The call is over. A cancel that had to wait for it now reaches the calls around it."""
        if call in self.calls:
            calls = list(self.calls)
            calls.remove(call)  # thousands of steps may be gathered
            self.calls = tuple(calls)
        if self.interrupt is not None:
            self._stop_calls(self.interrupt)

    def stop(self, cause: Cause, reason: str) -> bool:
        """Ask all calls to stop and start no more; False if already asked. A lost lease overrides other reasons."""
        interrupt = self.lost_interrupt() if cause is Cause.LOST else Interrupt(cause, reason)
        if not interrupt.beats(self.interrupt):
            return False
        self.interrupt = interrupt
        self._stop_calls(interrupt)
        return True

    def _stop_calls(self, interrupt: Interrupt) -> None:
        for call in self.calls:
            call.stop(interrupt)

    def must_finish(self, call: Call) -> bool:
        """Whether a cancel has to wait for this call or for one made inside it."""
        return call.finishes_by is not None or any(
            inner.parent is call and self.must_finish(inner) for inner in self.calls
        )

    # -- its news, on the loop -------------------------------------------------------------------

    def ran_ms(self, now: float) -> int:
        return int((now - self.started) * 1000)

    def worth_a_touch(self, now: float) -> bool:
        return (self.news or not self.touched) and now - self.started > WORTH_A_TOUCH_S

    def touch(self, now: float) -> Touch:
        """The progress to write; resets the mark for new progress."""
        self.news = False
        self.touched = True
        return Touch(self.job.n, self.job.token, self.ran_ms(now), self.percent, self.message, self._grace_ms(now))

    def _grace_ms(self, now: float) -> int | None:
        """How long a cancel has to wait for the calls in progress; 0 when the last of them has ended."""
        bounds = [call.finishes_by for call in self.calls if call.finishes_by is not None]
        if not bounds and not self.delays_cancel:
            return None
        self.delays_cancel = bool(bounds)
        return max(int((max(bounds, default=now) - now) * 1000), 0)
