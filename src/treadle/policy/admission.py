"""Which jobs may be created and which may start: keys, concurrency limits and rates, as data.

A store reads the facts under its locks, calls these functions and applies their answer; it decides nothing.

* `admit` decides on new and requeued jobs. It is a fold: each job of a batch sees what earlier ones took or cancelled.
  Unique keys are checked before the concurrency policy, so a repeated request gets its first job even if the limit is
  reached. `queue_same_scope` refuses no job here: such jobs wait in the queue.
* `start` decides on the jobs that a claim has found, in the claim's order. A limit counts running jobs only, so an
  urgent job overtakes jobs that wait under its key, and a job that no worker can run blocks no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from treadle.model.errors import ConcurrencyRejected, KeyReused, NotRepeatable, TreadleError, WrongState
from treadle.model.status import Status
from treadle.policy.lifecycle import CancelRequested
from treadle.policy.rules import Condition, always, matches

REJECT = "reject_same_scope"
QUEUE = "queue_same_scope"
REPLACE = "replace_same_scope"

IDEMPOTENCY = "idempotency"
"""Unique until its job is deleted."""


DEDUPE = "dedupe"
"""Unique until its job ends."""


SLOT = "slot"
"""The slot of a schedule: unique forever."""


ONCE = "once"
"""What the dedupe key of a job that may not be repeated becomes when the job completes; unique until it is deleted."""


# A rate's window is extended by this much, and a worker that can't start a job within this time gives it back. So no
# handler starts too early, however long after its claim.
START_WITHIN_MS = 200


class Limit(NamedTuple):
    """The concurrency limit that a job was enqueued with. It never changes."""

    key: str
    policy: str
    most: int


class UniqueKey(NamedTuple):
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class Request:
    """A job to create, or an ended one to requeue (`returning`)."""

    id: str
    topic: str
    unique: tuple[UniqueKey, ...] = ()
    payload_hash: str | None = None
    """Compared for jobs with the same idempotency key."""
    repeatable: bool = True
    limit: Limit | None = None
    returning: bool = False
    may_replace: Condition = always
    """Which live jobs it may cancel."""

    @property
    def needs_facts(self) -> bool:
        return bool(self.unique) or self.counted is not None

    @property
    def counted(self) -> Limit | None:
        """The limit that `admit` checks."""
        return self.limit if self.limit and self.limit.policy in (REJECT, REPLACE) else None


class Wanted(NamedTuple):
    """The facts to read, sorted in locking order."""

    unique: list[UniqueKey]
    limits: list[str]


class Owner(NamedTuple):
    """The job that holds a unique key."""

    id: str
    payload_hash: str | None = None


class LiveJob(NamedTuple):
    """A live job under a concurrency key."""

    id: str
    running: bool = False
    cancelable: bool = True
    """False if its template doesn't support cancelling a running job."""
    document: Mapping[str, Any] | None = None
    """The job in JSON form, if a request needs it to tell whether it may cancel the job."""


@dataclass(frozen=True, slots=True)
class Facts:
    owners: Mapping[UniqueKey, Owner] = field(default_factory=dict)
    completed: Mapping[str, str] = field(default_factory=dict)
    """By dedupe key: the completed job that may not be repeated."""
    live: Mapping[str, Sequence[LiveJob]] = field(default_factory=dict)
    """By limit key, oldest first."""


class Admit(NamedTuple):
    cancels: tuple[str, ...] = ()
    """The jobs that it replaces."""


class Existing(NamedTuple):
    """An existing job is returned in its place."""

    id: str


class Refuse(NamedTuple):
    error: TreadleError


Decision = Admit | Existing | Refuse


def replaced_by(id: str) -> CancelRequested:
    return CancelRequested(f"replaced by job {id}")


def dedupe_key_becomes(status: Status, repeatable: bool) -> str | None:
    """The kind of an ended job's dedupe key; None: it is free again."""
    return ONCE if status is Status.COMPLETED and not repeatable else None


def wanted(requests: Iterable[Request]) -> Wanted:
    requests = list(requests)
    return Wanted(
        sorted({key for one in requests for key in one.unique}),
        sorted({one.counted.key for one in requests if one.counted}),
    )


def admit(requests: Sequence[Request], facts: Facts) -> list[Decision]:
    admission = _Admission(facts)
    return [admission.decide(request) for request in requests]


class _Admission:
    """The facts, updated job by job within a batch."""

    def __init__(self, facts: Facts) -> None:
        self._owners = dict(facts.owners)
        self._completed = facts.completed
        self._live = {key: list(jobs) for key, jobs in facts.live.items()}
        self._callers: dict[str, Condition] = {}
        """What the callers of this batch may cancel, by the jobs that they make."""

    def decide(self, request: Request) -> Decision:
        decision = self._by_keys(request) or self._by_limit(request)
        if isinstance(decision, Admit):
            self._take(request, decision)
        return decision

    def _by_keys(self, request: Request) -> Decision | None:
        for key in request.unique:
            owner = self._owners.get(key)
            # A new job that already holds its key was created by an earlier try with a lost answer.
            if owner and not (request.returning and owner.id == request.id):
                return _taken(request, key, owner)
            done = self._completed.get(key.key) if key.kind == DEDUPE and not request.repeatable else None
            if done and done != request.id:
                return Refuse(
                    NotRepeatable(
                        f"{request.topic} is not repeatable, and job {done} has completed for the same keys", jobId=done
                    )
                )
        return None

    def _by_limit(self, request: Request) -> Decision:
        limit = request.counted
        live = [job for job in self._live.get(limit.key, ()) if job.id != request.id] if limit else []
        if limit is None or len(live) < limit.most:
            return Admit()
        if limit.policy == REJECT:
            return Refuse(_still_live(request, limit, live[0].id))
        surplus = live[: len(live) - limit.most + 1]
        for job in surplus:
            if not self._may_cancel(request, job):
                return Refuse(_still_live(request, limit, job.id))
            if job.running and not job.cancelable:
                return Refuse(_not_replaceable(request, job.id))
        return Admit(tuple(job.id for job in surplus))

    def _may_cancel(self, request: Request, job: LiveJob) -> bool:
        if request.may_replace is always or self._callers.get(job.id) == request.may_replace:
            return True  # the second: of the same batch, and made by the same caller
        return job.document is not None and matches(request.may_replace, job.document)

    def _take(self, request: Request, decision: Admit) -> None:
        gone = set(decision.cancels)
        if gone:
            self._cancel(request, gone)
        self._owners.update(dict.fromkeys(request.unique, Owner(request.id, request.payload_hash)))
        if request.counted:
            self._live.setdefault(request.counted.key, []).append(LiveJob(request.id))
            self._callers[request.id] = request.may_replace

    def _cancel(self, request: Request, gone: set[str]) -> None:
        """The new job replaces them. A running one keeps its dedupe key until it has stopped."""
        assert request.counted
        live = self._live[request.counted.key]
        stopped = {job.id for job in live if job.id in gone and not job.running}
        self._live[request.counted.key] = [job for job in live if job.id not in gone]
        for key, owner in list(self._owners.items()):
            if key.kind == DEDUPE and owner.id in stopped:
                del self._owners[key]


def _taken(request: Request, key: UniqueKey, owner: Owner) -> Decision:
    if request.returning:
        return Refuse(WrongState("another live job has the same dedupe keys: requeue is not possible", status="ended"))
    if key.kind != IDEMPOTENCY or owner.payload_hash == request.payload_hash:
        return Existing(owner.id)
    return Refuse(
        KeyReused(f"the idempotency key belongs to job {owner.id} with another payload; use a new key", jobId=owner.id),
    )


def _still_live(request: Request, limit: Limit, other: str) -> ConcurrencyRejected:
    return ConcurrencyRejected(
        f"job {other} is still live for the same key and {request.topic} allows {limit.most}", jobId=other
    )


def _not_replaceable(request: Request, other: str) -> ConcurrencyRejected:
    return ConcurrencyRejected(
        f"job {other} is running for the same key and {request.topic} does not support cancelling it", jobId=other
    )


# -- starting ------------------------------------------------------------------------------------


class StartVerdict(Enum):
    START = "start"
    HOLD = "hold"
    """Its key is at the limit: it waits until a running job leaves."""
    SKIP = "skip"
    """Not in this claim: no free slot for a last attempt, a rate that is used up, or a key locked by another
    transaction.
    """
    EXPIRE = "expire"
    """Its deadline passed before it started."""


START, HOLD, SKIP, EXPIRE = StartVerdict


class Candidate(NamedTuple):
    """A job found by a claim."""

    ref: int
    topic: str
    limit: Limit | None = None
    last_attempt: bool = False
    overdue: bool = False

    @classmethod
    def of(
        cls,
        ref: int,
        topic: str,
        limit: Limit | None,
        attempt: int,
        max_attempts: int,
        expires_at: int | None,
        now: int,
    ) -> Candidate:
        overdue = expires_at is not None and not started_in_time(attempt) and expires_at <= now
        return cls(ref, topic, limit, attempt + 1 >= max_attempts, overdue)


def started_in_time(attempt: int, has_run: bool = False) -> bool:
    """A job that was tried before started in time, so its deadline no longer counts. Nor does it if its handler has
    run and gave the attempt back, by a snooze for example."""
    return attempt > 0 or has_run


def room(most: int, running: int) -> int:
    """How many of the jobs held under a key a store wakes in each lane; the next claim decides on them again.

    `most`: the limit of the first one. Others may have been enqueued with a higher limit, so it is at least one.
    """
    return max(most - running, 1)


class Rate(NamedTuple):
    """What a topic's rate limit allows."""

    left: int
    """How many may start now."""
    opens_in_ms: int | None
    """If none may: when the next one may."""


def rate(most: int, window_ms: int, starts: Sequence[tuple[int, int]], now: int) -> Rate:
    """`starts`: (time, count) within the window and `START_WITHIN_MS` before it, oldest first."""
    left = max(most - sum(count for _, count in starts), 0)
    if left or not starts:
        return Rate(left, None)
    return Rate(0, max(starts[0][0] + window_ms + START_WITHIN_MS - now, 1))


class StartFacts(NamedTuple):
    running: Mapping[str, int]
    """By limit key. A missing key is locked by another transaction."""
    rate_left: Mapping[str, int]
    """By topic, for topics with a rate limit: how many may start now."""
    free: int
    """Slots in which a job starts immediately; further jobs are prefetched."""


def start(candidates: Sequence[Candidate], facts: StartFacts) -> list[StartVerdict]:
    running, rate_left = dict(facts.running), dict(facts.rate_left)
    started = 0
    verdicts = []
    for one in candidates:
        verdict = _verdict(one, running, rate_left, started < facts.free)
        if verdict is START:
            started += 1
            if one.limit:
                running[one.limit.key] += 1
            if one.topic in rate_left:
                rate_left[one.topic] -= 1
        verdicts.append(verdict)
    return verdicts


def within(verdicts: Sequence[StartVerdict], sizes: Sequence[int], limit: int, max_bytes: int) -> list[StartVerdict]:
    """The verdicts that count: up to `limit` jobs, and as many as fit by the payloads of the starting ones; the first
    always does. Jobs behind the last one that may be taken are left alone: they were judged as if all before them
    started."""
    total = 0
    for i, verdict in enumerate(verdicts):
        if limit == 0:
            return list(verdicts[:i])
        limit -= verdict in (START, SKIP)
        if verdict is START:
            if total and total + sizes[i] > max_bytes:
                return list(verdicts[:i])
            total += sizes[i]
    return list(verdicts)


def _verdict(one: Candidate, running: Mapping[str, int], rate_left: Mapping[str, int], slot_free: bool) -> StartVerdict:
    if one.overdue:
        return EXPIRE
    # Last attempts and rate-limited jobs are not prefetched, because both are used up when claimed.
    if not slot_free and (one.last_attempt or one.topic in rate_left):
        return SKIP
    if rate_left.get(one.topic, 1) <= 0 or (one.limit and one.limit.key not in running):
        return SKIP
    if one.limit and running[one.limit.key] >= one.limit.most:
        return HOLD
    return START
