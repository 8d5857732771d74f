"""The `ctx` that a handler gets: facts about its job, and requests to the worker that runs it.

Every kind of handler gets this class. The differences between a coroutine, a thread and a process (how a heartbeat is
written, how an enqueue is awaited) are behind `HandlerServices`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, overload

from typing_extensions import Unpack

from treadle.model.handler import HandlerContext
from treadle.queue.new_jobs import EnqueueOptions
from treadle.queue.tasks import ArgumentsTask, PayloadT, PayloadTask, ResultT, Task, topic_of
from treadle.telemetry.log_context import facts_of

if TYPE_CHECKING:
    from treadle.model.job import Job
    from treadle.store.values import Claimed

    class AwaitableJob(Job[ResultT], Awaitable[Job[ResultT]]):
        """The return value of `ctx.enqueue`: the job, or in a coroutine an awaitable for it."""


class RunningCall(Protocol):
    """The parts of the running call that a context needs."""

    @property
    def job(self) -> Claimed: ...
    @property
    def cancelled(self) -> bool: ...
    def report(self, percent: int, message: str) -> None: ...
    def check(self) -> None: ...


class HandlerServices(Protocol):
    """Requests that need the store. Awaitable in coroutines, blocking elsewhere."""

    def heartbeat(self, call: Any) -> Any: ...
    def enqueue(self, topic: str, payload: Any, options: dict[str, Any]) -> Any: ...
    def database(self) -> Any: ...
    def close_database(self, database: Any, context: Context) -> None: ...
    def http(self) -> Any: ...


class Checkpoint:
    """Already done, so it may be ignored. Awaiting it lets the event loop run once, so that a cancel can arrive."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


CHECKPOINT = Checkpoint()


class Context(HandlerContext):
    """The running job, seen from its handler."""

    __slots__ = ("_call", "_database", "_services", "payload")

    def __init__(self, call: RunningCall, services: HandlerServices, payload: Any) -> None:
        self._call = call
        self._services = services
        self._database: Any = None
        self.payload = payload

    def __repr__(self) -> str:
        return f"<Context of {self.topic} {self.job_id}, attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        return self._call.job.id

    @property
    def topic(self) -> str:
        return self._call.job.topic

    @property
    def attempt(self) -> int:
        """From 1."""
        return self._call.job.attempt

    @property
    def max_attempts(self) -> int:
        return self._call.job.max_attempts

    @property
    def is_retry(self) -> bool:
        return self.attempt > 1

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def auth(self) -> dict[str, str | None]:
        """Who enqueued the job, and the scope it belongs to."""
        job = self._call.job
        return {"createdBy": job.created_by, "scope": job.scope, "scopeId": job.scope_id}

    @property
    def cancelled(self) -> bool:
        """True once a cancel has been requested."""
        return self._call.cancelled

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that knows the job: every record has `job_id`, `topic` and `attempt`."""
        job = self._call.job
        return logging.LoggerAdapter(logging.getLogger(f"treadle.jobs.{job.topic}"), facts_of(job))

    @property
    def db(self) -> Any:
        """The queue's database, for the handler's own statements.

        SQLite: a sqlite3 connection for this call alone. PostgreSQL: asyncpg's pool, or in threads and processes the
        same methods blocking.
        """
        if self._database is None:
            self._database = self._services.database()
        return self._database

    @property
    def http(self) -> Any:
        """An HTTP client that all handlers share: aiohttp's, or in threads and processes the same methods blocking."""
        return self._services.http()

    def _close(self) -> None:
        """The call is over."""
        if self._database is not None:
            self._services.close_database(self._database, self)

    def progress(self, percent: float, message: str = "") -> Checkpoint:
        """Report progress from 0 to 100. This is cheap: the worker writes it in batches, a few times a second."""
        self._call.report(max(0, min(100, int(percent))), message)
        return CHECKPOINT

    def check_cancelled(self) -> Checkpoint:
        """Stop here if the job should stop: raises JobCancelled, TimeoutError or LeaseLost."""
        self._call.check()
        return CHECKPOINT

    def heartbeat(self) -> Any:
        """Renew the lease now; LeaseLost if another worker may have the job. `await` it in a coroutine.

        Workers renew leases automatically. Call this to be sure of the lease right before a side effect.
        """
        self._call.check()
        return self._services.heartbeat(self._call)

    @overload
    def enqueue(self, topic: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> AwaitableJob[Any]: ...
    @overload
    def enqueue(
        self,
        topic: PayloadTask[..., PayloadT, Any, ResultT],
        payload: PayloadT | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> AwaitableJob[ResultT]: ...
    @overload
    def enqueue(
        self,
        topic: ArgumentsTask[..., ..., Any, ResultT],
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> AwaitableJob[ResultT]: ...
    def enqueue(self, topic: str | Task[..., Any, Any], payload: Any = None, **options: Unpack[EnqueueOptions]) -> Any:
        """`queue.enqueue` with this job's creator and scope as defaults. `await` it in a coroutine."""
        job = self._call.job
        inherited = {"created_by": job.created_by, "scope": job.scope, "scope_id": job.scope_id}
        return self._services.enqueue(topic_of(topic), payload, {**inherited, **options})
