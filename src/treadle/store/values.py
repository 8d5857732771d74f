"""The data that Treadle and a store exchange when jobs and records are written; `views` has the data for reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from treadle.model.errors import StoreBusy
from treadle.model.fields import NOTHING_GIVEN, PLAIN, Given
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.admission import DEDUPE, IDEMPOTENCY, SLOT, Limit, UniqueKey
from treadle.policy.lifecycle import Outcome, Transition
from treadle.policy.output import Chunk

if TYPE_CHECKING:
    from treadle.policy.rules import Condition

HAS_STEPS = 32
"""In the flags of a claimed job: something is known of its steps, or was answered."""


class NewStep(NamedTuple):
    """A declared step of a new job."""

    name: str
    title: str
    after: tuple[str, ...] | None = None
    """In a graph: the steps that it comes after."""


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
    key_owner: str | None = None
    """The owner of the idempotency key; None: shared by all jobs without one."""
    cancelable: bool = True
    """Whether a job that replaces it may cancel it while it runs."""
    secret: tuple[tuple[str, ...], ...] = ()
    """Where its payload has secrets; two that differ only there are the same for an idempotency key."""
    expires_at: int | None = None
    """From here on: a job that has one of these is not plain."""
    expires_in_ms: int | None = None
    dedupe_key: str | None = None
    repeatable: bool = True
    limit: Limit | None = None
    slot: str | None = None
    """Unique for a schedule and a time: any number of schedulers make one job."""
    steps: tuple[NewStep, ...] = ()
    """Its declared steps, in their order."""
    given: Given = NOTHING_GIVEN
    may_replace: Condition = True
    """Which live jobs it may cancel if its limit says that it replaces some."""
    trace: str | None = None
    """W3C traceparent of the enqueue, if tracing is on."""

    @property
    def plain(self) -> bool:
        """No key, limit, deadline or step, and nothing else out of the ordinary: it may take the short way."""
        return self[_EXTRAS] == _NO_EXTRAS and self.given[PLAIN:] == _NOTHING_MORE

    def due(self, now: int) -> int:
        """When it is to run, if it is made now. Statements that read the clock themselves have it as `{due: …}`."""
        return now + self.delay_ms if self.run_at is None else self.run_at

    @property
    def unique(self) -> tuple[UniqueKey, ...]:
        """The keys that only one job may own."""
        keys = []
        given = self.given
        if given.idempotency_key is not None:
            owner = () if self.key_owner is None else (self.key_owner,)
            key = _joined(self.topic, given.scope, given.scope_id, given.idempotency_key, *owner)
            keys.append(UniqueKey(IDEMPOTENCY, key))
        if self.dedupe_key is not None:
            keys.append(UniqueKey(DEDUPE, self.dedupe_key))
        if self.slot is not None:
            keys.append(UniqueKey(SLOT, self.slot))
        return tuple(keys)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """What other transactions may have locked."""
        return self.unique if self.limit is None else (*self.unique, ("limit", self.limit.key))


# Names and keys of 255 characters each make up to 3 kB of text; an index entry of PostgreSQL has room for 2.7 kB.
LONGEST_KEY = 2_600


def _joined(*parts: str | None) -> str:
    """Joined without ambiguity: ("a", "b:c") and ("a:b", "c") differ."""
    text = to_json(parts)
    return text.decode() if len(text) <= LONGEST_KEY else hashlib.sha256(text).hexdigest()


_EXTRAS = slice(NewJob._fields.index("expires_at"), NewJob._fields.index("given"))
_NO_EXTRAS = NewJob("", "", "")[_EXTRAS]
_NOTHING_MORE = NOTHING_GIVEN[PLAIN:]
# All but id, payload and trace.
_shape = itemgetter(NewJob._fields.index("topic"), slice(NewJob._fields.index("payload") + 1, -1))


def alike(jobs: Sequence[NewJob]) -> list[list[NewJob]]:
    """Runs of jobs that differ only in id, payload and trace, so that the rest is looked at once for each run."""
    return [list(jobs)] if len(jobs) == 1 else [list(run) for _, run in groupby(jobs, _shape)]


NO_CHANGES: Mapping[str, NewJob] = MappingProxyType({})


class Inserted(NamedTuple):
    """The answer for one new job: it was made at `at`, or an older one stands for it."""

    at: int
    existing_id: str | None = None


class ClaimedStep(NamedTuple):
    """What a step has done, as the worker that goes on with its job needs to know it."""

    name: str
    key: str
    place: int
    state: StepState
    attempt: int
    ran_ms: int = 0
    left_ms: int | None = None
    """How long its wait may still last, at the time of the claim."""
    result: str | None = None
    """JSON text; None: there is none, or it is too large to come along."""
    result_size: int | None = None
    input_hash: str | None = None
    error: str | None = None
    error_type: str | None = None
    declared: bool = False
    after: tuple[str, ...] | None = None
    """As its job was made; only read for a requeue."""
    items: int | None = None
    """Of a mapped step: how many there are."""
    child: str | None = None
    """The id of the child that it waits for, or has its result from."""
    made: int | None = None
    """Of a step that waits for many: how many it has made, how many of those have not ended, how many failed."""
    left: int | None = None
    failed: int | None = None


class EarlyAnswer(NamedTuple):
    """An answer that came before its step waited for it."""

    name: str
    key: str
    result: str | None
    error: str | None


class ClaimedSteps(NamedTuple):
    steps: tuple[ClaimedStep, ...] = ()
    answers: tuple[EarlyAnswer, ...] = ()
    version: int | None = None
    """Of the template that the job was made with."""


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
    start_within_ms: int | None = None
    """Under a rate limit: give it back if its handler can't start within this time of asking for it."""
    steps: ClaimedSteps | None = None
    """What its steps have done before; None: nothing is known of them."""

    @property
    def status(self) -> Status:
        return Status.PROCESSING


# How much payload one claim brings: enough for hundreds of small jobs, far from the 1 GB that fits in SQLite's texts.
MAX_CLAIM_BYTES = 16 * 1024 * 1024


class Wants(NamedTuple):
    """What a worker can take."""

    topics: Sequence[str]
    capabilities: Sequence[str] = ()
    limit: int = 1
    free: int = 1
    """Slots that are free now; a job on its last attempt is only claimed into one."""
    worker_types: Sequence[str] = ()
    max_bytes: int = MAX_CLAIM_BYTES
    """Of payloads as stored; the first job comes regardless of size."""


class Claim(NamedTuple):
    """The claimed jobs, and when to claim again."""

    jobs: list[Claimed]
    again_in_ms: int | None = None
    """There may be more: now (0), or when a rate limit or a locked key lets it through. None: unknown."""
    at: int | None = None
    """The time by the database's clock, if the claim read it."""


class Advanced(NamedTuple):
    """What `advance` did."""

    promoted: int
    """Jobs that can be claimed now."""
    moved: list[Moved]
    """Jobs expired by their deadline."""
    next_in_ms: int | None
    """The time until there is more to do; None: nothing waits for its time."""


class NewEvent(NamedTuple):
    """A line for a job's history that changes nothing else."""

    type: str
    message: str = ""
    metadata: Mapping[str, Any] = {}


class StepWrite(NamedTuple):
    """The state of a step, as its job's owner reports it."""

    name: str
    key: str
    state: StepState
    place: int
    attempt: int = 0
    title: str | None = None
    """Of a declared step; None keeps what is stored."""
    progress: int | None = None
    message: str | None = None
    started_ago_ms: int | None = None
    """When it began, counted from now; None keeps what is stored."""
    ran_ms: int = 0
    """How long it was active since it was written last."""
    until_ms: int | None = None
    """How long it waits from now on."""
    error: str | None = None
    error_type: str | None = None
    result: str | None = None
    """JSON text."""
    input_hash: str | None = None
    schema: str | None = None
    """What an answer has to look like, as JSON text."""
    item: int | None = None
    """Of an item of a mapped step: its place in the list. Of the mapped step, which has no key: how many there are."""
    child: str | None = None
    """The child that it waits for; None keeps what is stored."""

    @property
    def told(self) -> bool:
        """Whether its end is an event. Of thousands of items, only the end of all is one."""
        return self.state is StepState.COMPLETED and (self.item is None or not self.key)

    @property
    def result_size(self) -> int | None:
        """In bytes."""
        text = self.result
        return None if text is None else len(text) if text.isascii() else len(text.encode())


class StepKey(NamedTuple):
    name: str
    key: str = ""


class Checkpoint(NamedTuple):
    """What the steps of a running job have done."""

    n: int
    token: int
    ran_ms: int
    steps: tuple[StepWrite, ...] = ()
    consumed: tuple[StepKey, ...] = ()
    """Early answers that were used."""
    progress: int | None = None
    message: str | None = None
    flagged: bool = False
    """The job is known to have steps."""
    grace_ms: int | None = None
    """As in `Touch`."""
    jobs: tuple[NewJob, ...] = ()
    """Follow-up jobs of the steps that end; if one is refused, nothing of this is written."""

    def then(self, later: Checkpoint) -> Checkpoint:
        """Both, of one claim."""
        return later._replace(
            jobs=self.jobs + later.jobs,
            steps=self.steps + later.steps,
            consumed=self.consumed + later.consumed,
            progress=self.progress if later.progress is None else later.progress,
            message=self.message if later.message is None else later.message,
            flagged=self.flagged and later.flagged,
            grace_ms=self.grace_ms if later.grace_ms is None else later.grace_ms,
        )


class Answer(NamedTuple):
    """An answer to a step that waits, or will."""

    id: str
    step: str
    key: str = ""
    result: str | None = None
    """JSON text."""
    error: str | None = None
    answered_by: str | None = None
    unannounced: bool = False
    """Keep it even if the job has no such step yet: its handler may come to wait for it."""


class Effects(NamedTuple):
    """Written together with an outcome, or not at all."""

    jobs: tuple[NewJob, ...] = ()
    """Follow-up jobs; if one is refused, none is made and the attempt ends as failed."""
    events: tuple[NewEvent, ...] = ()
    steps: tuple[StepWrite, ...] = ()
    consumed: tuple[StepKey, ...] = ()
    """Early answers that were used."""
    output: tuple[Chunk, ...] = ()
    """The last values that it emitted; they stay even if a cancel ends the attempt in another way."""
    awaits: tuple[StepKey, ...] = ()
    """Steps with children for which the job is parked: it goes on at once if they have ended since it looked."""


class NewChild(NamedTuple):
    """A child of a running job; its step and key say which one. It is made once in each generation."""

    key: str
    job: NewJob
    place: int = 0
    """In the list of a step that waits for many."""
    as_parent: bool = False
    """It has its parent's priority."""
    refused: str | None = None
    """Why it may not be made, if that is known already."""


class NewChildren(NamedTuple):
    """Children that a step of a running job waits for."""

    n: int
    token: int
    ran_ms: int
    step: str
    place: int
    """Of the step among the job's steps."""
    children: tuple[NewChild, ...]
    total: int | None = None
    """How many it waits for in all; None: the step waits for one, which shares its key."""
    restart: bool = False
    """Look at all of them again: those that have not completed are made again."""


class MadeChild(NamedTuple):
    """What a step knows of its child."""

    state: StepState
    """`waiting`, `completed` or `failed`."""
    child: str | None
    result: str | None = None
    error: str | None = None
    attempt: int = 1


class MadeChildren(NamedTuple):
    children: tuple[MadeChild, ...]
    made: int = 0
    left: int = 0
    failed: int = 0
    """As in `ClaimedStep`."""


class ChildResult(NamedTuple):
    """How a child of a step that waits for many has ended."""

    key: str
    place: int
    state: StepState
    result: str | None
    """JSON text."""
    error: str | None
    child: str | None


class OutputWrite(NamedTuple):
    """What a running job has emitted."""

    n: int
    token: int
    ran_ms: int
    chunks: tuple[Chunk, ...]


class UserDatabase(NamedTuple):
    """Where a handler's own statements go. Plain data, because a child process opens its own connection."""

    url: str
    pooled: bool = False
    """Behind a pooler in transaction mode, which keeps no prepared statements."""


class Settlement(NamedTuple):
    """The end of an attempt, as its owner reports it."""

    job: Claimed
    transition: Transition
    ran_ms: int | None
    """How long the handler has run; None: it never started."""
    effects: Effects | None = None
    """Not applied if a cancel, unknown to the owner, ends the attempt in another way."""
    waited_ms: int | None = None
    """From when it could have been claimed until its handler started, by two clocks, so it may be below 0; None: not
    known."""


class FollowUpsBusy(StoreBusy):
    """Follow-up jobs of these settlements need a key that another transaction has locked. The other settlements of the
    batch were applied or are lost."""

    def __init__(self, left: Sequence[Settlement], lost: Sequence[Settlement]) -> None:
        super().__init__("another transaction has a key of a follow-up job locked; try again")
        self.left = left
        self.lost = lost


class Touch(NamedTuple):
    """News of a running job: when it started, how far it is."""

    n: int
    token: int
    ran_ms: int
    progress: int | None
    message: str | None
    grace_ms: int | None = None
    """How long from now a cancel has to wait for a step that must finish; None keeps what is stored."""

    def then(self, later: Touch) -> Touch:
        """Both, of one claim."""
        return later._replace(
            progress=self.progress if later.progress is None else later.progress,
            message=self.message if later.message is None else later.message,
            grace_ms=self.grace_ms if later.grace_ms is None else later.grace_ms,
        )


class Holding(NamedTuple):
    """A running job with the details its owner needs."""

    job: Claimed
    ran_ms: int
    cancel_requested: bool


class CancelRequest(NamedTuple):
    n: int
    token: int
    reason: str


class Renewed(NamedTuple):
    """A renewed lease, and the cancel requests for its jobs."""

    until: int
    cancels: list[CancelRequest]
    draining: bool = False
    """The worker is asked to claim nothing more, to finish what it runs, and to stop."""


class DutyReport(NamedTuple):
    """What a leader says about one of its duties; its times are relative to the report, because its clock may differ
    from the database's."""

    name: str
    every_ms: int | None
    """None: as it is needed."""
    ended_ms_ago: int | None = None
    """None: this leader has not done it yet."""
    took_ms: int | None = None
    next_in_ms: int | None = None
    outcome: str = ""
    failed: bool = False


class Graces(NamedTuple):
    """How long jobs of a topic may keep running after a cancel request."""

    default_ms: int
    topics: Mapping[str, int] = {}

    def of(self, topic: str) -> int:
        return self.topics.get(topic, self.default_ms)


class Moved(NamedTuple):
    """A job that maintenance moved, for logs and metrics."""

    id: str
    topic: str
    status: Status
    event: str


class Reaped(NamedTuple):
    """What the reaper took back or ended, and whether there is more to take."""

    moved: list[Moved]
    more: bool = False


class SteeredJob(NamedTuple):
    """A job that someone wants to change, as the judge sees it."""

    id: str
    topic: str
    status: Status
    attempt: int
    max_attempts: int
    stale: bool
    steps: tuple[ClaimedStep, ...] = ()
    """Of an ended job; without results."""
    awaits_children: bool = False
    """Its steps wait for children that have not ended."""


Judge = Callable[[SteeredJob], Outcome]
"""Decides what happens to a job; raises a TreadleError to refuse. Pure: it may be called more than once."""


class Refusal(NamedTuple):
    """The reason that one job of a batch was not changed; `error` is ready to be raised."""

    id: str
    error: Exception


class EndedAt(NamedTuple):
    """A place among ended jobs, in the order in which they ended."""

    ended_at: int
    n: int


FIRST_ENDED = EndedAt(0, 0)


class EndedJob(NamedTuple):
    """An ended job, as retention looks at it."""

    n: int
    id: str
    topic: str
    status: Status
    ended_at: int

    @property
    def place(self) -> EndedAt:
        return EndedAt(self.ended_at, self.n)


class StaleJob(NamedTuple):
    """A job that retention has found to be stale since this time."""

    job: EndedJob
    stale_at: int


class Record(NamedTuple):
    """A small document that the server keeps, such as an account: found by its id or its key, both unique per kind."""

    kind: str
    id: str
    key: str
    body: str
    """JSON text; the store does not look into it."""
    version: int
    """1, then one more with each change."""
    created_at: int
    updated_at: int
    due: int | None = None
    """When it is due for another look."""


class RecordWrite(NamedTuple):
    """A new record, or with `version` the change of one that still has it."""

    kind: str
    id: str
    key: str
    body: str
    due: int | None = None
    version: int | None = None


class TopicOptions(NamedTuple):
    """What stores know of a topic's template. None: no rate limit, no retention of its own."""

    topic: str
    n: int | None = None
    """At most so many starts in any window of `ms`."""
    ms: int | None = None
    stale_after: int | None = None
    delete_after: int | None = None
