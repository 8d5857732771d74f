"""The contract between Treadle and a database. Every verb takes a batch; a write is one transaction.

Words used here: `n` is a job's number inside its store, `id` its public UUID. A `lease` is a
worker's time-limited right to run what it claimed; a `token` is one number per claim that rises.
Every write by an owner names (n, token) and a lease, and matches all three in the same statement;
what does not match is reported as lost, and nothing else changes for it. A lease lives until it is taken
back: only a claim asks for its time, an outcome that comes late but before the reaper counts.

All times are milliseconds since the epoch by the database's clock. Callers pass delays and ages,
never their own idea of now, except where a user named an instant (`run_at`, `expires_at`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from treadle.model.errors import Refused
from treadle.model.events import Event
from treadle.model.job import Job
from treadle.store.values import (
    FOREVER,
    Advanced,
    Backlog,
    Changes,
    Claim,
    Ended,
    Finding,
    Graces,
    Holding,
    Inserted,
    Judge,
    Leader,
    Listing,
    LiveWorker,
    NewJob,
    Reaped,
    Record,
    RecordWrite,
    Refusal,
    Renewed,
    Settlement,
    Stats,
    Topic,
    Touch,
    Wants,
)
from treadle.telemetry.outages import OutageLog


class Store(Protocol):
    """Implemented by every database. One call per batch, never per job."""

    stale_after_ms: int
    outage: OutageLog
    """Where callers that try again report that they could not reach it."""

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
        self,
        jobs: Sequence[NewJob],
        *,
        atomic: bool = True,
        patient: bool = True,
        connection: Any = None,
        records: Sequence[RecordWrite] = (),
    ) -> list[Inserted | Refused]:
        """Store the jobs in one transaction. `atomic`: the first refusal is raised and nothing is stored;
        otherwise each refusal stands in its job's place. `connection`: join that open transaction. `records` are
        changed in the same transaction; if one of them has another version, VersionConflict and nothing is stored.
        A key that another transaction has locked is waited for, for 5 seconds at most (StoreUnavailable), unless
        `patient` is False: then StoreBusy soon says so."""

    def insert_here(self, jobs: Sequence[NewJob]) -> list[Inserted | Refused] | None:
        """`insert` in the caller's own thread, without an event loop and not atomic; None: not possible (just now)."""

    # -- running jobs --------------------------------------------------------------------------
    async def open_lease(self, worker: str, lease_ms: int, serves: Mapping[str, Any] | None = None) -> int:
        """A new lease; `serves` says what the worker can do ({topics, capabilities, slots})."""

    async def renew(self, lease: int, lease_ms: int) -> Renewed | None:
        """Prolong a lease that was not taken back, even after its time; None: it was taken back or given up."""

    async def close_lease(self, lease: int) -> None:
        """Give the lease up; jobs still under it can be reclaimed at once."""

    async def claim(self, lease: int, wants: Wants) -> Claim:
        """Highest priority first, then oldest over all topics. Those on their last attempt only into free slots.
        LeaseLost if the lease is not live."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Apply the endings, each with its effects; returns those whose lease or token did not match (they changed
        nothing). A follow-up job that is refused makes its settlement a failure (`FollowUpRefused`)."""

    async def touch(self, lease: int, touches: Sequence[Touch]) -> list[tuple[int, int]]:
        """Write start and progress of running jobs; returns (n, token) of those that are lost."""

    async def held_by(self, ids: Sequence[str]) -> list[Holding | None]:
        """The running jobs among these, for owners that know them by id; None for the others."""

    async def release_unknown(self, lease: int, tokens: Sequence[int]) -> int:
        """Give back what runs under this lease with any other token: claims whose answer was lost."""

    # -- moving jobs ---------------------------------------------------------------------------
    async def advance(self, limit: int = 1000) -> Advanced:
        """Everything that is due by time: delayed jobs, deadlines, jobs that a freed concurrency key lets in.
        Never waits for a lock."""

    async def reap(self, graces: Graces, limit: int = 1000) -> Reaped:
        """Take back jobs whose lease ran out, and mark as cancelled those that were asked to stop longer ago than
        their topic's grace. About `limit` jobs at a time."""

    async def steer(self, ids: Sequence[str], judge: Judge, *, dry_run: bool = False) -> Sequence[Job | Refusal | None]:
        """Change jobs as `judge` says, all in one transaction: each is locked where it is, judged, and moved.

        For each the job as it is afterwards, None if it was deleted, or why it stays as it was. A `dry_run` gives
        the same answers (jobs as they are) and changes nothing."""

    # -- looking -------------------------------------------------------------------------------
    async def get(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        """`connection`: as the transaction that is open there sees them."""

    async def list(self, listing: Listing) -> list[Job]: ...

    async def count(self, listing: Listing, cap: int = 10_000) -> int:
        """How many the listing has in all, at most cap + 1."""

    async def count_by_topic(self, listing: Listing, cap: int = 10_000) -> dict[str, int]:
        """The same for each topic, `cap` in all."""

    async def events(self, id: str) -> Sequence[Event] | None:
        """The stored events, oldest first; None: no such job."""

    async def changes(self, cursor: Any = None, limit: int = 1000, wanted: Listing | str | None = None) -> Changes:
        """What happened since `cursor` (None: nothing yet, only a cursor to begin with), about `limit` at a time:
        by any process, each thing once, for each job in order. Progress is only sampled.

        `wanted`: a listing or a job's id; those jobs at the very moment between this look and the next."""

    async def stats(self, topic: str | None = None, since: int | None = None) -> Stats: ...

    async def history(self, since: int, step_minutes: int) -> Sequence[Ended]:
        """Endings since then, by spans of so many minutes, topic and status, oldest first; from the roll-ups."""

    async def backlog(self) -> Sequence[Backlog]:
        """What waits, by topic and capability."""

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

    async def leaders(self) -> Sequence[Leader]:
        """Who leads just now."""

    async def resign(self, name: str, holder: str) -> None: ...

    async def prune(self, ended_before_ms: int, limit: int = 1000) -> int:
        """Delete jobs that ended longer ago than this, and all that hangs on them."""

    async def tidy(self) -> None:
        """The leader's housekeeping: fold the tally, recount concurrency keys, drop dead rate marks."""

    async def vacuum(self) -> None:
        """Remove the remains of jobs that moved on, if there are so many that claims become slower."""

    # -- records -------------------------------------------------------------------------------
    async def records(self, wanted: Sequence[tuple[str, str]]) -> Sequence[Record | None]:
        """The records with these (kind, id), in one statement."""

    async def find_record(self, kind: str, key: str) -> Record | None: ...

    async def list_records(self, kind: str, limit: int = 1000, *, newest: bool = False) -> Sequence[Record]:
        """Oldest first; `newest`: the last ones, newest first."""

    async def find_records(self, kind: str, *, due_before: int, limit: int = 1000) -> Sequence[Record]:
        """Those that want to be looked at before this time, the earliest first."""

    async def put_record(
        self, kind: str, id: str, key: str, body: str, version: int | None = None, due: int | None = None
    ) -> Record | None:
        """Make a record, or with `version` change the one that still has it. None: nothing was changed, because the
        id or the key is taken, the version is another one, or the record is gone."""

    async def delete_record(self, kind: str, id: str) -> bool:
        """False: there was none."""
