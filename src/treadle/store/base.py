"""The contract between Treadle and a database: about thirty verbs, all taking batches.

Words used here: `n` is a job's number inside its store, `id` its public UUID. A `lease` is a
worker's time-limited right to run what it claimed; a `token` is one number per claim that rises.
Every write by an owner names (n, token) and a lease, and matches all three with a live lease in the
same statement; what does not match is reported as lost, and nothing else changes for it.

All times are milliseconds since the epoch by the database's clock. Callers pass delays and ages,
never their own idea of now, except where a user named an instant (`run_at`, `expires_at`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from treadle.errors import Refused
from treadle.events import Event
from treadle.job import Job, from_ms
from treadle.lifecycle import LIVE, Status, Transition, retries
from treadle.rules import Condition, SortKey

# What a job drags along. Only jobs with a flag pay for the statements it needs when they move.
DEDUPE = 1
"""A row in `keys` that must go when the job ends."""
GATED = 2
"""Counts against a concurrency limit while it is ready or running."""
EXPIRES = 4
"""Has a row in `deadlines`."""
ONCE = 8
"""Not repeatable: its dedupe key stays after it completed."""


NOBODY = 0
"""The number of no job: a line of `events` that is about many has it."""


class Gate(NamedTuple):
    """A concurrency limit that a job is under."""

    key: str
    policy: str
    limit: int


class NewJob(NamedTuple):
    """A job to insert; everything already checked and written as the store keeps it."""

    id: str
    topic: str
    payload: str
    priority: int = 50
    capability: str = ""
    max_attempts: int = 3
    run_at: int | None = None
    """An instant that the user named. None: `delay_ms` from now."""
    delay_ms: int = 0
    expires_at: int | None = None
    expires_in_ms: int | None = None
    scope: str | None = None
    scope_id: str | None = None
    created_by: str | None = None
    idempotency_key: str | None = None
    dedupe_key: str | None = None
    repeatable: bool = True
    gate: Gate | None = None
    template_version: int | None = None
    trace: str | None = None
    """W3C traceparent of the enqueue, where somebody traces."""

    @property
    def flags(self) -> int:
        return (
            (DEDUPE if self.dedupe_key is not None else 0)
            | (GATED if self.gate else 0)
            | (EXPIRES if self.expires_at is not None or self.expires_in_ms is not None else 0)
            | (0 if self.repeatable else ONCE)
        )

    @property
    def plain(self) -> bool:
        """No key, gate or deadline: it may take the short way."""
        return self.flags == 0 and self.idempotency_key is None

    @property
    def shape(self) -> tuple[Any, ...]:
        """All but id, payload and trace."""
        return (self[1], *self[3:-1])


class Inserted(NamedTuple):
    """The answer for one new job: it was made at `at`, or an older one stands for it."""

    at: int
    existing_id: str | None = None


class Claimed(NamedTuple):
    """A job in a worker's hands."""

    n: int
    id: str
    topic: str
    payload: str
    attempt: int
    max_attempts: int
    flags: int
    created_by: str | None
    scope: str | None
    scope_id: str | None
    token: int
    lease: int
    due: int = 0
    """Since when it could have been claimed."""
    trace: str | None = None

    @property
    def status(self) -> Status:
        return Status.PROCESSING


class Claim(NamedTuple):
    """What a claim brought, and when to come again if it did not bring enough."""

    jobs: list[Claimed]
    next_at_ms: int | None = None
    """In how many ms a job that is there already may be claimed (a rate limit's window); None: unknown."""
    overdue: bool = False
    """Jobs past their deadline stood in the way; `expire_overdue` clears them."""
    at: int | None = None
    """When, by the database's clock, if the claim read it."""


class Settlement(NamedTuple):
    """The end of an attempt, as its owner reports it."""

    job: Claimed
    transition: Transition
    ran_ms: int | None
    """How long the handler has run; None: it never started."""


class Touch(NamedTuple):
    """News of a running job: when it started, how far it is."""

    n: int
    token: int
    ran_ms: int
    progress: int | None
    message: str | None


class Holding(NamedTuple):
    """A running job as whoever holds it needs to know it."""

    job: Claimed
    ran_ms: int
    cancel_requested: bool


class CancelRequest(NamedTuple):
    n: int
    token: int
    reason: str


class Moved(NamedTuple):
    """A job that maintenance moved, for logs and metrics."""

    id: str
    topic: str
    status: Status
    event: str


class Refusal(NamedTuple):
    """Why one job of a batch could not be changed; `error` is ready to be raised."""

    id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Listing:
    """Which jobs to list, newest first unless `sort` says otherwise."""

    topic: str | None = None
    status: Status | None = None
    stale: bool = False
    scope: str | None = None
    scope_id: str | None = None
    limit: int = 30
    offset: int = 0
    condition: Condition | None = None
    """What else must hold of a job."""
    sort: tuple[SortKey, ...] = ()
    ended_since: int | None = None
    """With the status of an ending: only jobs that ended then or later. If there are more than `limit`, which of them
    are listed is the store's choice."""


class Change(NamedTuple):
    """Something that happened to a job, read after it was stored."""

    event: str
    at: int
    job: Job | None
    """As it was when this was read, which may be more than this change left. None: it was deleted."""
    to: Status | None = None
    """The status that this change left; None: it did not change it."""
    attempt: int | None = None
    """The attempts that this change left; None: unknown."""
    progress: int | None = None
    message: str | None = None
    gone: Mapping[str, Any] | None = None
    """What is known of a deleted job: id, topic, scope, scopeId, createdBy."""


class Changes(NamedTuple):
    """What happened between two looks, in the order in which it happened to each job."""

    events: list[Change]
    cursor: Any
    """Where the next look begins; the old one stays good for asking once more."""
    now: int
    more: bool = False
    """There was more than a page: look again at once."""
    lost: bool = False
    """Something may be missing: whoever counts on every event must look at all jobs again."""
    busy: bool = False
    """Jobs are running."""
    jobs: list[Job] | None = None
    """Those that were asked for, as they are after all of this; None: not asked for, or there is more to tell first."""


@dataclass(frozen=True, slots=True)
class Topic:
    topic: str
    paused_until: int | None
    """None: not paused; FOREVER: until it is resumed."""
    pending: int = 0
    processing: int = 0


FOREVER = 2**62


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker whose lease is live."""

    name: str
    topics: Sequence[str]
    capabilities: Sequence[str]
    slots: int
    locked_until: int
    running: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`: a check, how it went (`ok`, `warn`, `fail`) and what to do about it."""

    check: str
    level: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    counts: Mapping[str, int]
    """Every status; ended ones from the per-minute tally."""
    run_ms: int
    """Summed over completed jobs."""
    topics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Record(NamedTuple):
    """A small thing that the server keeps, such as an account: found by id or by its key, both unique in its kind."""

    kind: str
    id: str
    key: str
    body: str
    """JSON text; the store does not look into it."""
    version: int
    """1, then one more with each change."""
    created_at: int
    updated_at: int


class Store(Protocol):
    """Implemented by every database. One call per batch, never per job."""

    stale_after_ms: int

    # -- being there ---------------------------------------------------------------------------
    async def open(self, migrate: bool = True) -> None:
        """Connect; bring the schema up to date, or with `migrate=False` only check that it is."""

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        """Apply what is missing, safe from any number of processes; the names of what was applied."""

    async def pending_migrations(self) -> list[str]: ...

    async def now(self) -> int: ...

    async def examine(self) -> list[Finding]:
        """The store's own part of `doctor`."""

    def subscribe(self, wake: Callable[[str], None], *, claims: bool = False) -> Callable[[], None]:
        """Call `wake(hint)` on this loop when there may be work ("ready"), a delayed job ("later"), a cancel
        ("cancel") or an end ("ended"). A hint, never a promise. Returns what ends the subscription.

        `claims`: "ready" only has to be true for a claim through this store, which may be before the commit."""

    # -- making jobs ---------------------------------------------------------------------------
    async def insert(
        self, jobs: Sequence[NewJob], *, atomic: bool = True, connection: Any = None
    ) -> list[Inserted | Refused]:
        """Store the jobs in one transaction. `atomic`: the first refusal is raised and nothing is stored;
        otherwise each refusal stands in its job's place. `connection`: join that open transaction."""

    # -- running jobs --------------------------------------------------------------------------
    async def open_lease(self, worker: str, lease_ms: int, serves: Mapping[str, Any] | None = None) -> int:
        """A new lease; `serves` says what the worker can do ({topics, capabilities, slots})."""

    async def extend(self, lease: int, lease_ms: int) -> bool:
        """Renew a live lease; False: it has run out."""

    async def close_lease(self, lease: int) -> None:
        """Give the lease up; jobs still under it can be reclaimed at once."""

    async def claim(
        self, lease: int, topics: Sequence[str], capabilities: Sequence[str], limit: int, free: int
    ) -> Claim:
        """Up to `limit` jobs, highest priority first, then oldest; those on their last attempt only among the
        first `free`. LeaseLost if the lease is not live."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Apply the endings; returns those whose lease or token did not match (they changed nothing)."""

    async def touch(self, lease: int, touches: Sequence[Touch]) -> list[int]:
        """Write start and progress of running jobs; returns the n of those that are lost."""

    async def holdings(self, ids: Sequence[str]) -> list[Holding | None]:
        """The running jobs among these, for owners that know them by id; None for the others."""

    async def cancel_requests(self, lease: int) -> list[CancelRequest]: ...

    async def release_unknown(self, lease: int, tokens: Sequence[int]) -> int:
        """Give back what runs under this lease with any other token: claims whose answer was lost."""

    # -- moving jobs ---------------------------------------------------------------------------
    async def promote(self, limit: int = 1000) -> tuple[int, int | None]:
        """Move due jobs to the queue; how many, and in how many ms the next one is due (None: there is none)."""

    async def reclaim(self, limit: int = 1000) -> list[Moved]:
        """Take back jobs whose lease has run out."""

    async def end_overdue_cancels(self, grace_ms: Mapping[str, int], default_ms: int) -> list[Moved]:
        """Mark as cancelled what was asked to stop longer ago than its topic's grace."""

    async def expire_overdue(self, limit: int = 1000) -> list[Moved]:
        """End pending jobs whose deadline has passed."""

    async def cancel(self, ids: Sequence[str], reason: str, uncancelable: Collection[str] = ()) -> list[Job | Refusal]:
        """Cancel pending jobs, ask running ones to stop unless their topic is among `uncancelable`."""

    async def requeue(self, ids: Sequence[str], force: bool = False) -> list[Job | Refusal]: ...

    async def release(self, ids: Sequence[str]) -> list[Job | Refusal]:
        """Take running jobs from their workers and put them back, unspent; their owners are told LeaseLost."""

    async def reschedule(
        self, id: str, *, run_at: int | None, priority: int | None, max_attempts: int | None
    ) -> Job | Refusal:
        """Change a pending job."""

    async def delete(self, ids: Sequence[str], force: bool = False) -> list[str | Refusal]: ...

    # -- looking -------------------------------------------------------------------------------
    async def get(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        """`connection`: as the transaction that is open there sees them."""

    async def list(self, listing: Listing) -> list[Job]: ...

    async def count(self, listing: Listing, cap: int = 10_000) -> int:
        """How many the listing has in all, at most cap + 1."""

    async def events(self, id: str) -> Sequence[Event] | None:
        """The stored events, oldest first; None: no such job."""

    async def changes(self, cursor: Any = None, limit: int = 1000, wanted: Listing | str | None = None) -> Changes:
        """What happened since `cursor` (None: nothing yet, only a cursor to begin with), about `limit` at a time:
        by any process, each thing once, for each job in order. Progress is only sampled.

        `wanted`: a listing or a job's id; those jobs at the very moment between this look and the next."""

    async def stats(self, topic: str | None = None, since: int | None = None) -> Stats: ...

    async def obstacles(self, id: str) -> Sequence[str]:
        """What keeps this pending job from starting: a concurrency limit, a rate limit."""

    async def workers(self) -> Sequence[LiveWorker]: ...

    # -- topics, templates, leadership, retention ----------------------------------------------
    async def pause(self, topic: str, until: int = FOREVER) -> None: ...

    async def resume(self, topic: str) -> None: ...

    async def topics(self) -> Sequence[Topic]: ...

    async def save_templates(self, definitions: Mapping[str, tuple[str, int | None]]) -> dict[str, int]:
        """topic -> (JSON, fixed version or None); the version that each now has."""

    async def templates(self) -> dict[str, tuple[str, int]]: ...

    async def elect(self, name: str, holder: str, ttl_ms: int) -> bool:
        """Become or stay the leader for `ttl_ms`; False: somebody else is."""

    async def resign(self, name: str, holder: str) -> None: ...

    async def prune(self, ended_before_ms: int, limit: int = 1000) -> int:
        """Delete jobs that ended longer ago than this, and all that hangs on them."""

    async def tidy(self) -> None:
        """The leader's housekeeping: fold the tally, drop empty gates and dead rate marks."""

    # -- records -------------------------------------------------------------------------------
    async def records(self, wanted: Sequence[tuple[str, str]]) -> Sequence[Record | None]:
        """The records with these (kind, id), in one statement."""

    async def find_record(self, kind: str, key: str) -> Record | None: ...

    async def list_records(self, kind: str, limit: int = 1000) -> Sequence[Record]:
        """Oldest first."""

    async def put_record(self, kind: str, id: str, key: str, body: str, version: int | None = None) -> Record | None:
        """Make a record, or with `version` change the one that still has it. None: nothing was changed, because the
        id or the key is taken, the version is another one, or the record is gone."""

    async def delete_record(self, kind: str, id: str) -> bool:
        """False: there was none."""


# The columns of the `view` query, in its order: what every store returns for a job.
class JobRow(NamedTuple):
    now: int
    n: int
    id: str
    topic: str
    priority: int
    capability: str
    payload: str
    run_at: int
    created_at: int
    expires_at: int | None
    max_attempts: int
    flags: int
    scope: str | None
    scope_id: str | None
    created_by: str | None
    idempotency_key: str | None
    template_version: int | None
    place: str
    attempt: int
    token: int | None
    status: str | None
    """Of an ended job."""
    claimed_at: int | None
    started_at: int | None
    ended_at: int | None
    cancel_at: int | None
    cancel_reason: str | None
    progress: int | None
    message: str | None
    result: str | None
    error: str | None
    error_type: str | None
    worker: str | None
    locked_until: int | None
    renewed_at: int | None
    events_count: int
    """The stored ones, and the starts and completions that they tell of."""
    last_event_at: int | None

    @property
    def job_status(self) -> Status:
        if self.status is not None:
            return Status(self.status)
        if self.place == "running":
            return Status.PROCESSING if self.cancel_at is None else Status.CANCELLING
        return Status.WAITING if self.place == "parked" else Status.PENDING


class RowState(NamedTuple):
    """What `lifecycle.decide` needs to know of a row."""

    status: Status
    attempt: int
    max_attempts: int


def job_from_row(row: JobRow, stale_after_ms: int, loads: Callable[[str], Any]) -> Job:
    status = row.job_status
    ended = row.ended_at
    stale = ended is not None and ended + stale_after_ms <= row.now
    # Enqueued always; started and completed are read from the job's own timestamps, unless its end is a stored event.
    completed = status is Status.COMPLETED
    plain_events = 1 + (row.started_at is not None and (completed or status in LIVE)) + completed
    updated = max(
        row.created_at,
        *(x for x in (row.claimed_at, row.started_at, ended, row.cancel_at, row.last_event_at) if x),
        0,
    )
    return Job(
        id=row.id,
        topic=row.topic,
        status=status,
        payload=loads(row.payload),
        run_at=_time(row.run_at),
        created_at=_time(row.created_at),
        updated_at=_time(updated),
        stale_at=from_ms(ended + stale_after_ms) if stale and ended is not None else None,
        priority=row.priority,
        result_value=None if row.result is None else loads(row.result),
        last_error=row.error,
        error_type=row.error_type,
        progress=100 if status is Status.COMPLETED else row.progress or 0,
        progress_message=row.message,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        retries=retries(status, row.attempt),
        expires_at=from_ms(row.expires_at),
        claimed_at=from_ms(row.claimed_at),
        started_at=from_ms(row.started_at),
        completed_at=from_ms(ended) if status is Status.COMPLETED else None,
        failed_at=from_ms(ended) if status is Status.FAILED else None,
        cancelled_at=from_ms(ended) if status is Status.CANCELLED else None,
        last_heartbeat_at=from_ms(row.renewed_at) if status in LIVE else None,
        locked_by=row.worker,
        locked_until=from_ms(row.locked_until),
        events_count=row.events_count + plain_events,
        cancel_requested_at=from_ms(row.cancel_at),
        cancel_reason=row.cancel_reason,
        scope=row.scope,
        scope_id=row.scope_id,
        created_by=row.created_by,
        idempotency_key=row.idempotency_key,
        capability=row.capability or None,
        template_version=row.template_version,
    )


def _time(ms: int) -> Any:
    return from_ms(ms)
