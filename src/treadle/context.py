"""What a handler gets as `ctx`: facts about its job, and a line to the worker that runs it.

One class for every kind of handler. What differs between a coroutine, a thread and a process (who
writes the heartbeat, how an enqueue is awaited) is behind `Desk`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

from treadle.telemetry.context import facts_of

if TYPE_CHECKING:
    from treadle.store.base import Claimed


class Attempt(Protocol):
    """The attempt that is running, as far as a context needs it."""

    @property
    def job(self) -> Claimed: ...
    @property
    def cancelled(self) -> bool: ...
    def report(self, percent: int, message: str) -> None: ...
    def check(self) -> None: ...


class Desk(Protocol):
    """Whom a handler asks for things that need the store. Awaitable in coroutines, blocking elsewhere."""

    def heartbeat(self, attempt: Any) -> Any: ...
    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any: ...


class Checkpoint:
    """Already done, so it may be ignored; awaited, it lets the loop turn once, so that a cancel can arrive."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


CHECKPOINT = Checkpoint()


class Context:
    """The running job, seen from its handler."""

    __slots__ = ("_attempt", "_desk", "payload")

    def __init__(self, attempt: Attempt, desk: Desk, payload: Any) -> None:
        self._attempt = attempt
        self._desk = desk
        self.payload = payload

    def __repr__(self) -> str:
        return f"<Context of {self.topic} {self.job_id}, attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        return self._attempt.job.id

    @property
    def topic(self) -> str:
        return self._attempt.job.topic

    @property
    def attempt(self) -> int:
        """From 1."""
        return self._attempt.job.attempt

    @property
    def max_attempts(self) -> int:
        return self._attempt.job.max_attempts

    @property
    def is_retry(self) -> bool:
        return self.attempt > 1

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def auth(self) -> dict[str, str | None]:
        """Who asked for the job, and whose it is."""
        job = self._attempt.job
        return {"createdBy": job.created_by, "scope": job.scope, "scopeId": job.scope_id}

    @property
    def cancelled(self) -> bool:
        """True once somebody asked the job to stop."""
        return self._attempt.cancelled

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that knows the job: every record has `job_id`, `topic` and `attempt`."""
        job = self._attempt.job
        return logging.LoggerAdapter(logging.getLogger(f"treadle.jobs.{job.topic}"), facts_of(job))

    def progress(self, percent: float, message: str = "") -> Checkpoint:
        """Say how far the job is (0 to 100). Costs nothing: written in batches, a few times a second."""
        self._attempt.report(max(0, min(100, int(percent))), message)
        return CHECKPOINT

    def check_cancelled(self) -> Checkpoint:
        """Stop here if the job should stop: raises JobCancelled, TimeoutError or LeaseLost."""
        self._attempt.check()
        return CHECKPOINT

    def heartbeat(self) -> Any:
        """Renew the lease now; LeaseLost if another worker may have the job. `await` it in a coroutine.

        Workers renew leases by themselves: this is for those who want to be sure before an effect.
        """
        self._attempt.check()
        return self._desk.heartbeat(self._attempt)

    def enqueue(self, topic: str, payload: Any = None, **options: Any) -> Any:
        """`queue.enqueue` for the same person and scope, unless told otherwise. `await` it in a coroutine."""
        job = self._attempt.job
        inherited = {"created_by": job.created_by, "scope": job.scope, "scope_id": job.scope_id}
        return self._desk.enqueue(topic, payload, {**inherited, **options})
