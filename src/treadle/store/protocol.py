"""The contract between Treadle and a database. Every verb takes a batch; a write is one transaction.

`n` is a job's number inside its store, `id` its public UUID. A `lease` is a worker's time-limited right to run the jobs
it claimed. A `token` is a number per claim that only rises. Every write by an owner names (n, token) and a lease, and
matches all three in the same statement. A write that doesn't match is reported as lost and changes nothing. A lease
lives until it is taken back: only a claim checks its time, and a late outcome counts if it arrives before the reaper.

All times are milliseconds since the epoch by the database's clock. Callers pass delays and ages, never their own idea
of now, except for instants that a user named (`run_at`, `expires_at`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from treadle.model.errors import Refused
from treadle.model.events import Event
from treadle.model.job import Job
from treadle.model.steps import StepState
from treadle.model.webhooks import Delivery, DeliveryClaim, DeliveryCount, DeliveryQuery, PolledEvent, SettledDelivery
from treadle.policy.retention import Ages, EndedClass, Rules
from treadle.store.values import (
    NO_CHANGES,
    Advanced,
    Answer,
    Checkpoint,
    ChildResult,
    Claim,
    Claimed,
    ClaimedSteps,
    DutyReport,
    EndedAt,
    EndedJob,
    Graces,
    Holding,
    Inserted,
    Judge,
    MadeChildren,
    NewChildren,
    NewJob,
    OutputWrite,
    Reaped,
    Record,
    RecordWrite,
    Refusal,
    Renewed,
    Settlement,
    StaleJob,
    StepKey,
    TopicOptions,
    Touch,
    UserDatabase,
    Wants,
)
from treadle.store.views import (
    ANY_SIZE,
    FOREVER,
    AppliedMigration,
    Changes,
    FailedGroup,
    Finding,
    History,
    Leadership,
    Listing,
    LiveWorker,
    Obstacle,
    OutputPage,
    OutputState,
    ProcessId,
    Stats,
    StepPage,
    Topic,
    Wait,
)
from treadle.telemetry.outages import OutageLog


class Store(Protocol):
    """Implemented by every database. One call per batch, never per job."""

    retention: Rules
    """By which it says since when a job is stale."""
    outage: OutageLog
    """Where callers that retry report that they could not reach the database."""

    # -- being there ---------------------------------------------------------------------------
    async def open(self, migrate: bool = True) -> None:
        """Connect and bring the schema up to date; with `migrate=False` only check it."""

    async def close(self) -> None: ...

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Apply missing migrations and return their names; safe from any number of processes. A `dry_run` only
        returns the names."""

    async def migrations(self) -> Sequence[AppliedMigration]:
        """The applied migrations, newest first."""

    async def now(self) -> int: ...

    async def examine(self) -> list[Finding]:
        """The store's own part of `doctor`."""

    def user_database(self) -> UserDatabase:
        """The same database for a handler's own statements, opened by `connect.user_connection`."""

    def subscribe(self, wake: Callable[[str], None], *, claims: bool = False) -> Callable[[], None]:
        """Call `wake(hint)` on this loop when there may be work ("ready"), a delayed job ("later"), a cancel ("cancel")
        or an end ("ended"). A hint, never a promise. Returns a function that ends the subscription.

        `claims`: "ready" need only be true for a claim through this store, so it may come before the commit.
        """

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
        """Store the jobs in one transaction. `atomic`: the first refusal is raised and nothing is stored; otherwise
        each refusal is returned in its job's place. `connection`: join that open transaction. `records` are written in
        the same transaction; if one has a different version, VersionConflict and nothing is stored. The call waits up
        to 5 seconds for a key that another transaction has locked (then StoreUnavailable); with `patient=False` it soon
        raises StoreBusy instead."""

    def insert_here(self, jobs: Sequence[NewJob]) -> list[Inserted | Refused] | None:
        """`insert` in the caller's thread, without an event loop and not atomic; None: not possible now."""

    # -- running jobs --------------------------------------------------------------------------
    async def open_lease(self, worker: str, lease_ms: int, serves: Mapping[str, Any] | None = None) -> int:
        """A new lease; `serves` says what the worker can do ({topics, capabilities, slots, host, version})."""

    async def renew(self, lease: int, lease_ms: int | None = None) -> Renewed | None:
        """Prolong a lease, even an expired one, by default for as long as the last time. None: it was taken back or
        given up."""

    async def close_lease(self, lease: int, owner: ProcessId | None = None) -> bool:
        """Give the lease up, so that its jobs can be reclaimed immediately. `owner`: only if it names this process."""

    async def leases_of(self, home: str) -> Sequence[tuple[int, ProcessId]]:
        """The leases that name a process of this home, given to `open_lease` as {home, pid, started}."""

    async def claim(self, lease: int, wants: Wants) -> Claim:
        """Highest priority first, then oldest over all topics. Jobs on their last attempt only go into free slots.
        LeaseLost if the lease is not live."""

    async def settle(
        self, settlements: Sequence[Settlement], *, refused: list[Settlement] | None = None
    ) -> list[Settlement]:
        """Apply the endings, each with its effects. Returns the lost ones (wrong lease or token), which changed
        nothing. If a follow-up job is refused, its settlement becomes a failure (`FollowUpRefused`), which is added to
        `refused`. If one needs a key that another transaction has locked, FollowUpsBusy names the settlements to report
        again."""

    async def touch(self, lease: int, touches: Sequence[Touch]) -> list[tuple[int, int]]:
        """Write start and progress of running jobs; returns (n, token) of lost ones."""

    async def checkpoint(self, lease: int, checkpoints: Sequence[Checkpoint]) -> list[tuple[int, int]]:
        """Write what the steps of running jobs have done, with their events; returns (n, token) of lost jobs, for which
        nothing was written. StepEnded if one says that nobody answered a step in time, and an answer was accepted: then
        nothing is written at all.

        One with follow-up jobs comes alone. If a job is refused, its Refused is raised; StoreBusy if one needs a key
        that another transaction has locked. Nothing is written then. Told again, jobs that are there are not made
        again.
        """

    async def write_output(self, lease: int, writes: Sequence[OutputWrite]) -> list[tuple[int, int]]:
        """Append what running jobs have emitted; returns (n, token) of lost jobs, for which nothing was written. A
        chunk that has its number is stored once, even if it is written again."""

    async def claimed_steps(self, ns: Sequence[int]) -> dict[int, ClaimedSteps]:
        """What the steps of claimed jobs have done before, in one read."""

    async def step_results(self, n: int, steps: Sequence[StepKey]) -> dict[StepKey, str]:
        """Results as JSON text, however large."""

    async def step_items(self, n: int, step: str) -> list[tuple[str, StepState, int]]:
        """The key, state and attempt of each item of a mapped step."""

    async def item_results(self, n: int, step: str, first: int, last: int) -> list[tuple[int, str | None]]:
        """The results of completed items, as JSON text, from place `first` to before `last` of the list."""

    async def make_children(self, lease: int, wanted: NewChildren) -> MadeChildren | None:
        """Make the children that a step of a running job waits for, or find the ones that it has; None: its owner has
        lost the job, and nothing was made. A child that is refused fails for the step and makes no job.

        TooDeep if too many jobs would wait for each other. StoreBusy if a child needs a key that another transaction
        has locked; nothing was made. Told again, children that are there are not made again.
        """

    async def child_results(self, n: int, step: str, after: int = -1, limit: int = 1000) -> Sequence[ChildResult]:
        """The children of a step that waits for many, in the order of its list, from behind this place."""

    async def held_by(self, ids: Sequence[str]) -> list[Holding | None]:
        """The running jobs among these, for owners that know them by id; None for the others."""

    async def split_lease(self, lease: int, jobs: Sequence[Claimed], lease_ms: int) -> list[int]:
        """Move these jobs, claimed under this lease, to one new lease each; for external workers, which report on every
        job alone. LeaseLost if the lease was taken back."""

    async def release_unknown(self, lease: int, tokens: Sequence[int]) -> int:
        """Release jobs under this lease with any other token: claims that the worker never got an answer to."""

    # -- moving jobs ---------------------------------------------------------------------------
    async def advance(self, limit: int = 1000) -> Advanced:
        """Process everything that is due by time: delayed jobs, ends of waits, deadlines, jobs that a freed concurrency
        key lets in. Never waits for a lock."""

    async def reap(self, graces: Graces, limit: int = 1000) -> Reaped:
        """Take back jobs of expired leases, and mark jobs as cancelled that kept running past their topic's grace after
        a cancel request. About `limit` jobs at a time."""

    async def steer(
        self, ids: Sequence[str], judge: Judge, *, dry_run: bool = False, changed: Mapping[str, NewJob] = NO_CHANGES
    ) -> Sequence[Job | Refusal | None]:
        """Change jobs as `judge` says, all in one transaction: lock each one, judge it, move it.

        `changed`: the jobs, by id, that are requeued with another payload. They are admitted anew, with their new keys.

        Returns the changed job, None if it was deleted, or the refusal. A `dry_run` returns the same answers with
        unchanged jobs and changes nothing. Waits up to 5 seconds for a job or key that another transaction has locked
        (then StoreUnavailable).
        """

    async def answer(self, answers: Sequence[Answer]) -> list[Refusal | None]:
        """Answer steps that wait, or will; the first answer counts. A job that waits for one goes on in the same
        transaction. For each: None, or why it was refused (UnknownStep, StepEnded, WrongState, JobNotFound)."""

    # -- looking -------------------------------------------------------------------------------
    async def get(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        """`connection`: as seen by the transaction that is open there."""

    async def list(self, listing: Listing) -> list[Job]: ...

    async def select(self, listing: Listing) -> Sequence[tuple[int, str]]:
        """Number and id of the jobs that `list` would return, without reading the jobs."""

    async def count(self, listing: Listing, cap: int = 10_000) -> int:
        """The number of jobs in the listing, at most cap + 1."""

    async def events(self, id: str) -> Sequence[Event] | None:
        """The stored events, oldest first; None: no such job."""

    async def steps(
        self,
        id: str,
        step: str,
        offset: int = 0,
        limit: int = 100,
        max_result_bytes: int = ANY_SIZE,
        *,
        failing_first: bool = False,
    ) -> StepPage | None:
        """The runs of one step in the order in which they began, or the items of a mapped one in the order of its list;
        None: no such step. Results that are larger are left out. `failing_first`: then what waits or runs, and what is
        done at the end.
        """

    async def output(self, id: str, channel: str, after: int = 0, max_bytes: int = 262_144) -> OutputPage | None:
        """The values of a channel after number `after`, up to about this size; None: no such job."""

    async def output_states(self, ids: Sequence[str]) -> dict[str, OutputState]:
        """How far the channels of these jobs are, without the jobs that don't exist."""

    async def changes(
        self, cursor: Any = None, limit: int = 1000, wanted: Listing | Sequence[str] | None = None
    ) -> Changes:
        """The changes since `cursor` (None: no changes, only a cursor to start with), about `limit` at a time: by any
        process, each change once, in order for each job. Progress is only sampled.

        `wanted`: a listing or ids of jobs; returns those jobs as they are between this look and the next.
        """

    async def stats(
        self,
        topic: str | None = None,
        since: int | None = None,
        *,
        live: bool = True,
        among: Listing | None = None,
        cap: int = 10_000,
    ) -> Stats:
        """Jobs by topic and status, ended ones from the roll-ups since then. `live=False`: only those, which costs next
        to nothing. `among`: only of the jobs in this listing, each status counted up to `cap`; how long they ran is not
        known then."""

    async def history(self, since: int, step_minutes: int) -> History:
        """Endings since then by spans of `step_minutes`, topic and status, and histograms of how long jobs waited and
        ran; from the roll-ups."""

    async def failed_groups(self, newest: int) -> Sequence[FailedGroup]:
        """The newest failed jobs, by error group."""

    async def waits(self, most: int) -> Sequence[Wait]:
        """Steps that wait for an answer, by topic and step, the longest wait first; of `most` waiting jobs, the oldest.
        Sleeping jobs wait for nobody."""

    async def obstacles(self, id: str) -> Sequence[Obstacle]:
        """The limits that keep this pending job from starting."""

    async def workers(self, named: str | None = None) -> Sequence[LiveWorker]:
        """Those with a live lease, or only those with this name."""

    async def drain(self, worker: str, draining: bool = True) -> bool:
        """Ask a worker to drain, or to go on; its next heartbeat tells it. False: no worker with slots has this name
        and a live lease."""

    # -- webhooks ------------------------------------------------------------------------------
    # A delivery is written in the transaction that stores its event, by every verb that moves jobs.
    async def claim_deliveries(self, holder: str, lease_ms: int, limit: int = 64, per_host: int = 4) -> DeliveryClaim:
        """Take deliveries that are due, for this long: at most `per_host` at once to one host, counting those that are
        under way, and fewer while its circuit is open. Deliveries to endpoints that are gone or disabled are given
        up."""

    async def settle_deliveries(self, settled: Sequence[SettledDelivery]) -> Sequence[SettledDelivery]:
        """Write what came of tries: the delivery, `webhookSent`, the endpoint's state, the host's circuit, and the
        events job:webhook:delivered and job:webhook:failed. Returns the lost ones: claimed again since, or deleted with
        their job. They changed nothing."""

    async def deliveries(self, query: DeliveryQuery) -> Sequence[Delivery]:
        """Newest first, without their bodies; the one with an id comes with its body."""

    async def delivery_counts(self, endpoints: Sequence[str], age_ms: int) -> Sequence[DeliveryCount]:
        """Of the deliveries that were made since then: of each endpoint at most the newest 1,000."""

    async def redeliver(self, ids: Sequence[int]) -> Sequence[int]:
        """Send these again, with the same webhook-id and all tries. Returns the ids of the ones that exist; one that is
        under way is left to its sender."""

    async def test_delivery(self, endpoint: str, body: str) -> int:
        """A delivery that belongs to no job; returns its id."""

    async def poll(self, endpoint: str, after: int, limit: int = 100) -> Sequence[PolledEvent]:
        """The events of an endpoint that are read, not sent, in the order of their numbers; the ones up to `after`
        count as delivered."""

    # -- topics, leadership, retention ---------------------------------------------------------
    async def pause(self, topic: str, until: int = FOREVER) -> None:
        """Start no jobs of this topic until then; 0 resumes it. A pattern is kept, for topics that come later."""

    async def topics(self, *, backlog: bool = False) -> Sequence[Topic]:
        """All topics with their live jobs; with `backlog`, pending jobs by capability too, and what they wait for."""

    async def elect(self, name: str, holder: str, ttl_ms: int, duties: Sequence[DutyReport] = ()) -> bool:
        """Become or stay the leader for `ttl_ms`; 0 resigns. False: `holder` does not lead. `duties`: a report on what
        the leader did, stored with its term."""

    async def leaders(self) -> Sequence[Leadership]:
        """The current leaders, with their last reports."""

    async def topic_ages(self) -> Mapping[str, Ages]:
        """How long the jobs of topics are kept, where their templates say so."""

    async def first_ended(self, until: int) -> int | None:
        """When the first job ended, if not later than `until`."""

    async def ended_jobs(self, after: EndedAt, until: int, limit: int = 1000) -> Sequence[EndedJob]:
        """Jobs that ended after this place and not later than `until`, in the order in which they ended."""

    async def count_old(self, ended: EndedClass, age_ms: int, limit: int) -> int:
        """How many jobs of this class ended longer ago than that, at most `limit`."""

    async def stale_marks(self) -> Mapping[tuple[str, str], EndedAt]:
        """For each topic and status, the last job of which was told that it is stale."""

    async def mark_stale(self, jobs: Sequence[StaleJob]) -> int:
        """Tell listeners that these jobs are stale and move the marks there, in one transaction. Leaves out jobs that
        were told before and jobs that were requeued; returns how many were told."""

    async def prune(
        self, ended_before_ms: int, limit: int = 1000, ns: Sequence[int] | None = None, *, dry_run: bool = False
    ) -> int:
        """Delete jobs that ended longer ago than this, with all their rows: those with the numbers `ns`, or the
        oldest. Returns how many there were, except for those in `ns` that were not deleted. A `dry_run` only counts
        them, up to the limit."""

    async def forget(self, age_ms: int) -> None:
        """Drop statistics that are older than any job, and names of workers that no job mentions."""

    async def prune_output(self, ended_before_ms: int, limit: int = 1000) -> int:
        """Delete the output of jobs that ended longer ago than this; returns how many channels it had."""

    async def tidy(self) -> None:
        """The leader's housekeeping: fold the tally, recount concurrency keys, drop old rate-limit entries."""

    # -- records -------------------------------------------------------------------------------
    async def get_records(self, wanted: Sequence[tuple[str, str]]) -> Sequence[Record | None]:
        """The records with these (kind, id), in one statement."""

    async def find_records(
        self,
        kind: str,
        *,
        key: str | None = None,
        due_before: int | None = None,
        newest: bool = False,
        limit: int = 1000,
    ) -> Sequence[Record]:
        """The records of a kind, oldest or `newest` first. `key`: the one with that key. `due_before`: the ones that
        are due before that time, earliest first."""

    async def write_records(
        self, writes: Sequence[RecordWrite], *, atomic: bool = False, topics: Sequence[TopicOptions] = ()
    ) -> Sequence[Record | None]:
        """Create or change records. None: this one was not written, because its id or key is taken, its version is a
        different one, or it is gone; the others are written. `atomic`: all in one transaction, together with
        `topics`; VersionConflict instead of None, and nothing is written. Records and `topics` need `atomic`."""

    async def delete_records(self, wanted: Sequence[tuple[str, str]]) -> int:
        """Delete the records with these (kind, id); returns how many existed."""
