"""What reads ask a store for, and what they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.output import ChannelState
from treadle.policy.rules import Condition, SortKey
from treadle.store.values import DutyReport


@dataclass(frozen=True, slots=True)
class Listing:
    """Which jobs to list, newest first unless `sort` says otherwise."""

    topic: str | None = None
    status: Status | None = None
    stale: bool = False
    scope: str | None = None
    scope_id: str | None = None
    parent_id: str | None = None
    limit: int = 30
    offset: int = 0
    condition: Condition | None = None
    """What else must hold of a job."""
    sort: tuple[SortKey, ...] = ()
    ended_since: int | None = None
    """With the status of an ending: only jobs that ended then or later. If there are more than `limit`, which of them
    are listed is the store's choice."""
    below: int | None = None
    """Only jobs with a smaller number, to go on after the last one that `select` returned."""
    newest: int | None = None
    """Of a condition over documents and of `text`: asked only of so many jobs, the newest that the rest of it lets
    through."""
    text: Condition | None = None
    """What else must hold of the newest jobs: a search for words, which no index serves."""


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
    worker: str | None = None
    """The worker whose attempt it ended; None: it ended none, or that is not known."""
    keyed: bool = False
    """It is about one of the many runs of a step."""


class Changes(NamedTuple):
    """What happened between two looks, in the order in which it happened to each job."""

    events: list[Change]
    cursor: Any
    """Where the next look begins. The old cursor stays valid, so a failed look can be repeated."""
    now: int
    more: bool = False
    """There was more than a page: look again immediately."""
    lost: bool = False
    """Something may be missing: a listener that counts on every event must read all jobs again."""
    busy: bool = False
    """Jobs are running."""
    jobs: list[Job] | None = None
    """The requested jobs, as they are after all these changes. None: not requested, or there is more to read first."""


@dataclass(frozen=True, slots=True)
class Topic:
    topic: str
    paused_until: int | None
    """None: not paused; FOREVER: until it is resumed."""
    pending: int = 0
    processing: int = 0
    backlog: Sequence[Backlog] = ()
    """Its pending jobs by capability, if that was asked for."""
    busy_keys: Sequence[BusyKey] = ()
    """Concurrency keys under which its jobs wait, some of them if there are many; if that was asked for."""
    rate: RateUsed | None = None
    """Its rate limit; if that was asked for."""


FOREVER = 2**62


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker with a live lease."""

    name: str
    topics: Sequence[str]
    capabilities: Sequence[str]
    slots: int
    locked_until: int
    running: int
    renewed_at: int
    """Its last heartbeat."""
    draining: bool = False
    host: str = ""
    """The machine; empty for an external worker."""
    version: str = ""
    """Of Treadle, on that machine."""


class ProcessId(NamedTuple):
    """A process of a worker."""

    home: str
    """Where its pid means this process: the boot of the machine and the namespaces."""
    pid: int
    started: int
    """When it started, to tell it from a later process with its pid."""


class LimitReached(NamedTuple):
    """A pending job waits because its concurrency key runs as many jobs as it may."""

    most: int
    running: Sequence[str]
    """Ids of running jobs of the key, three at most."""
    ahead: int
    """Jobs of the key that start before this one."""


class RateReached(NamedTuple):
    """A pending job waits because its topic has started as many jobs as it may within the window."""

    most: int
    window_ms: int


class RateUsed(NamedTuple):
    """A topic's rate limit, and how many jobs it has started within the window."""

    most: int
    window_ms: int
    used: int


Obstacle = LimitReached | RateReached


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
    """Summed over completed jobs, from the tally."""
    topics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Mapping[str, Mapping[str, int]], run_ms: int = 0) -> Stats:
        totals = {status.value: sum(counts[status] for counts in topics.values()) for status in Status}
        return cls(totals, run_ms, {name: {s.value: counts[s] for s in Status} for name, counts in topics.items()})


class EndedCount(NamedTuple):
    """How many jobs of a topic ended in one way within one span of time.

    The status `retrying` counts attempts that failed and are tried again; they ended no job.
    """

    at: int
    """Where the span begins."""
    topic: str
    status: str
    jobs: int
    run_ms: int


class FailedGroup(NamedTuple):
    """Failed jobs with one error group, of the newest that were looked at."""

    group: str
    """Empty: failures without one."""
    newest_id: str
    ended: Sequence[int]
    """When they failed, in any order."""


TIME_BUCKETS = 24


class Times(NamedTuple):
    """How many jobs of a topic waited or ran for a time between 2**(bucket-1) and 2**bucket ms, within one span."""

    at: int
    """Where the span begins."""
    topic: str
    kind: str
    """`wait` or `run`."""
    bucket: int
    jobs: int


class History(NamedTuple):
    """What ended since a time, from the roll-ups, oldest span first."""

    ended: Sequence[EndedCount]
    times: Sequence[Times]
    """Minutes are kept for two hours, half hours for a day, then hours."""


class Backlog(NamedTuple):
    """Pending jobs of one topic and capability."""

    topic: str
    capability: str
    due: bool
    """False: they wait for their time."""
    jobs: int
    first: int
    """The earliest `run_at` among them."""
    held: int = 0
    """How many of them wait for their concurrency key."""


class BusyKey(NamedTuple):
    """A concurrency key under which jobs wait."""

    key: str
    """JSON: the topic and the values of the key; or a hash, if they are long."""
    running: int
    most: int


class Wait(NamedTuple):
    """Jobs of one topic that wait for an answer to one step."""

    topic: str
    step: str
    jobs: int
    since: int
    """When the first of them began to wait."""
    until: int | None
    """When the first of them gives up; None: never."""
    oldest_id: str


MAINTENANCE = "maintenance"
"""The office of the worker that does the maintenance."""


class Leadership(NamedTuple):
    name: str
    holder: str
    """The worker's name and a unique suffix, because two workers may have the same name."""
    until: int
    since: int | None = None
    """None: elected by a version that did not store it."""
    reported_at: int | None = None
    duties: Sequence[DutyReport] = ()
    """What the leader said then."""

    @property
    def worker(self) -> str:
        return self.holder.rpartition(" ")[0] or self.holder


class AppliedMigration(NamedTuple):
    name: str
    applied_at: int


# More than any result has.
ANY_SIZE = 2**40


class StepPage(NamedTuple):
    """The runs of one step, in the order of their keys' first use."""

    items: list[dict[str, Any]]
    total: int


class OutputState(NamedTuple):
    """What a job has emitted so far."""

    status: Status | None
    """None: it has not ended."""
    channels: Mapping[str, ChannelState]


class OutputPiece(NamedTuple):
    """Values that follow each other in a channel."""

    first: int
    """The number of the first one."""
    attempt: int
    resets: bool
    """The values before it, from other attempts, are out of date."""
    values: Sequence[Any]


class OutputPage(NamedTuple):
    """A part of a channel."""

    pieces: Sequence[OutputPiece]
    last: int
    """The number of the channel's newest value; 0: there is none."""
    status: Status | None
    """Of a job that has ended. All its output was stored by then."""
