"""The queue as the design describes it, in plain dictionaries: what both stores must agree with, step by step.

Written from the design, not from the SQL. It knows nothing of tables; a job is `ready`, `later`, `held`, `running` or
`ended`, and time is a number that the machine moves.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from treadle.lifecycle import (
    CancelAcknowledged,
    Completed,
    Failed,
    Outcome,
    Released,
    Snoozed,
)
from treadle.store.base import Gate, NewJob

LIVE_PLACES = ("ready", "later", "held", "running")


@dataclass
class ModelJob:
    new: NewJob
    number: int
    """Counts up: the order in which jobs were made."""
    created_at: int
    run_at: int
    expires_at: int | None
    priority: int
    max_attempts: int
    place: str = ""
    attempt: int = 0
    lease: str | None = None
    token: int | None = None
    started: bool = False
    progress: int | None = None
    message: str | None = None
    cancel_at: int | None = None
    cancel_reason: str | None = None
    ended_as: str | None = None
    ended_at: int | None = None
    settled_by: int | None = None
    """The token whose owner reported the end."""
    result: str | None = None
    error: tuple[str, str] | None = None
    events: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def status(self) -> str:
        if self.place == "ended":
            return str(self.ended_as)
        if self.place == "running":
            return "processing" if self.cancel_at is None else "cancelling"
        return "pending"

    @property
    def gate(self) -> Gate | None:
        return self.new.gate


class Model:
    """Every verb answers in plain values that the stores' answers can be turned into."""

    def __init__(self) -> None:
        self.now = 0
        self.jobs: dict[str, ModelJob] = {}
        self.made = 0
        self.tokens = 0
        self.leases: dict[str, int] = {}
        self.paused: dict[str, int] = {}

    # -- making jobs ---------------------------------------------------------------------------

    def insert(self, batch: Sequence[NewJob], atomic: bool) -> list[str]:
        """For each job "made", the id of the one that stands for it, or the name of its refusal.

        An atomic batch with a refusal makes nothing, and the refusals are all that it answers with.
        """
        before = copy.deepcopy(self.__dict__)
        answers = [self._insert(new) for new in batch]
        self._open_gates()
        refusals = [answer for answer in answers if answer[0].isupper()]
        if atomic and refusals:
            self.__dict__.update(before)
            return refusals
        return answers

    def _insert(self, new: NewJob) -> str:
        if standing := self._same_key(new):
            return standing
        if new.gate:
            live = [job for job in self._oldest_first() if job.gate and job.gate.key == new.gate.key]
            if new.gate.policy == "reject_same_scope" and len(live) >= new.gate.limit:
                return "ConcurrencyRejected"
            if new.gate.policy == "replace_same_scope":
                surplus = live[: max(len(live) - new.gate.limit + 1, 0)]
                self.cancel([job.id for job in surplus], f"replaced by job {new.id}", ())
        self.made += 1
        run_at = self.now + new.delay_ms
        expires_at = None if new.expires_in_ms is None else self.now + new.expires_in_ms
        job = ModelJob(new, self.made, self.now, run_at, expires_at, new.priority, new.max_attempts)
        self.jobs[job.id] = job
        self._queue(job)
        return "made"

    def _same_key(self, new: NewJob) -> str | None:
        for job in self.jobs.values():
            if new.idempotency_key is not None and self._idempotency(job.new) == self._idempotency(new):
                return job.id if job.new.payload == new.payload else "KeyReused"
        if new.dedupe_key is not None:
            same = [job for job in self.jobs.values() if job.new.dedupe_key == new.dedupe_key]
            for job in same:
                if job.place != "ended":
                    return job.id
            if not new.repeatable and any(self._completed_once(job) for job in same):
                return "NotRepeatable"
        return None

    @staticmethod
    def _idempotency(new: NewJob) -> tuple[str | None, ...]:
        return new.topic, new.scope, new.scope_id, new.idempotency_key

    @staticmethod
    def _completed_once(job: ModelJob) -> bool:
        return job.ended_as == "completed" and not job.new.repeatable

    def _oldest_first(self) -> list[ModelJob]:
        return sorted((job for job in self.jobs.values() if job.place != "ended"), key=lambda job: job.number)

    # -- places --------------------------------------------------------------------------------

    def _queue(self, job: ModelJob) -> None:
        """Where a pending job waits: for its time, at its gate, or for a worker."""
        if job.run_at > self.now:
            job.place = "later"
        else:
            job.place = "held" if job.gate else "ready"

    def _open_gates(self) -> None:
        """Whoever waits at a gate enters as far as there is room, the most urgent and oldest first."""
        waiting = [job for job in self.jobs.values() if job.place == "held"]
        for job in sorted(waiting, key=lambda job: (-job.priority, job.number)):
            assert job.gate
            if self.inside(job.gate.key) < job.gate.limit:
                job.place = "ready"

    def inside(self, gate: str) -> int:
        places = [job.place for job in self.jobs.values() if job.gate and job.gate.key == gate]
        return places.count("ready") + places.count("running")

    def _end(self, job: ModelJob, status: str, event: str | None = None, error: tuple[str, str] | None = None) -> None:
        self._tell(job, event, status)
        job.place, job.ended_as, job.ended_at, job.lease = "ended", status, self.now, None
        job.error = error or job.error
        self._open_gates()

    def _cancelled(self, job: ModelJob, error: tuple[str, str] | None = None) -> None:
        self._end(job, "cancelled", "job:cancelled", error)

    def _back(self, job: ModelJob, event: str, delay_ms: int = 0, *, spent: bool) -> None:
        """Pending again: at its old place in the queue, or set aside for a while."""
        self._tell(job, event, "pending")
        job.attempt -= 0 if spent else 1
        job.lease, job.started, job.progress, job.message = None, False, None, None
        if delay_ms:
            job.run_at, job.place = self.now + delay_ms, "later"
        else:
            job.place = "ready"  # it keeps its room inside its gate
        self._open_gates()

    def _tell(self, job: ModelJob, event: str | None, to: str) -> None:
        if event:
            job.events.append((event, job.status, to))

    # -- running jobs --------------------------------------------------------------------------

    def live(self, lease: str) -> bool:
        return self.leases.get(lease, 0) > self.now

    def extend(self, lease: str, ms: int) -> bool:
        if self.live(lease):
            self.leases[lease] = self.now + ms
            return True
        return False

    def close_lease(self, lease: str) -> None:
        if lease in self.leases:
            self.leases[lease] = 0

    def claim(
        self, lease: str, topics: Collection[str], capabilities: Collection[str], limit: int, free: int
    ) -> tuple[list[tuple[str, int]], bool] | str:
        """(id, attempt) in order, and whether jobs past their deadline stood in the way."""
        if not self.live(lease):
            return "LeaseLost"
        lanes: dict[tuple[int, str, str], list[ModelJob]] = {}
        for job in self.jobs.values():
            new = job.new
            paused = self.paused.get(new.topic, 0) > self.now
            if job.place == "ready" and new.topic in topics and new.capability in ("", *capabilities) and not paused:
                lanes.setdefault((job.priority, new.topic, new.capability), []).append(job)
        for lane in lanes.values():
            lane.sort(key=lambda job: (job.run_at, job.number))
        order = sorted(lanes, key=lambda lane: (-lane[0], lanes[lane][0].run_at))
        first = [job for lane in order for job in lanes[lane]][:limit]
        # One on its last attempt is claimed only into a free slot.
        fitting = [job for i, job in enumerate(first) if job.attempt + 1 < job.max_attempts or i < free]
        overdue = [job for job in fitting if job.expires_at is not None and job.expires_at <= self.now]
        taken = [job for job in fitting if job not in overdue]
        self.tokens += 1
        for job in taken:
            job.place, job.lease, job.token = "running", lease, self.tokens
            job.attempt += 1
        return [(job.id, job.attempt) for job in taken], bool(overdue)

    def settle(self, id: str, token: int, lease: str, outcome: Outcome, *, ran: bool) -> bool:
        """Whether it was accepted."""
        job = self.jobs.get(id)
        if not job or not self.live(lease) or not self._owns(job, token, lease):
            return bool(job and job.place == "ended" and job.settled_by == token)
        job.started = job.started or ran
        asked_to_stop = job.cancel_at is not None
        match outcome:
            case Completed(result):
                self._end(job, "completed")
                job.result = result
            case Failed(error, error_type, wait):
                if asked_to_stop:
                    self._cancelled(job, (error, error_type))
                elif wait is not None and job.attempt < job.max_attempts:
                    job.error = (error, error_type)
                    self._back(job, "job:retrying", wait, spent=True)
                else:
                    self._end(job, "failed", "job:failed", (error, error_type))
            case Snoozed() | Released() | CancelAcknowledged() if asked_to_stop:
                self._cancelled(job)
            case Snoozed(delay_ms):
                self._back(job, "job:snoozed", delay_ms, spent=False)
            case Released():
                self._back(job, "job:released", spent=False)
        if job.place == "ended":
            job.settled_by = token
        return True

    def _owns(self, job: ModelJob, token: int, lease: str) -> bool:
        return job.place == "running" and job.token == token and job.lease == lease

    def touch(self, id: str, token: int, lease: str, progress: int | None, message: str | None) -> bool:
        job = self.jobs.get(id)
        if not job or not self.live(lease) or not self._owns(job, token, lease):
            return False
        job.started = True
        job.progress = job.progress if progress is None else progress
        job.message = job.message if message is None else message
        return True

    def cancel_requests(self, lease: str) -> set[str]:
        return {job.id for job in self.jobs.values() if job.lease == lease and job.cancel_at is not None}

    # -- moving jobs ---------------------------------------------------------------------------

    def promote(self) -> int:
        due = [job for job in self.jobs.values() if job.place == "later" and job.run_at <= self.now]
        for job in due:
            self._queue(job)
        self._open_gates()
        return len(due)

    def reclaim(self) -> set[tuple[str, str]]:
        dead = {lease for lease in self.leases if not self.live(lease)}
        lost = [job for job in self.jobs.values() if job.lease in dead]
        for job in lost:
            if job.cancel_at is not None:
                self._cancelled(job)
            elif job.attempt < job.max_attempts:
                self._back(job, "job:reclaimed", spent=True)
            else:
                self._end(job, "expired", "job:expired", ("worker lost", "WorkerLost"))
        for lease in dead:
            del self.leases[lease]
        return self._moved(lost)

    def end_overdue_cancels(self, grace_ms: dict[str, int], default_ms: int) -> set[tuple[str, str]]:
        late = [
            job
            for job in self.jobs.values()
            if job.place == "running"
            and job.cancel_at is not None
            and self.now - job.cancel_at >= grace_ms.get(job.new.topic, default_ms)
        ]
        for job in late:
            self._cancelled(job)
        return self._moved(late)

    def expire_overdue(self) -> set[tuple[str, str]]:
        late = [
            job
            for job in self.jobs.values()
            if job.status == "pending" and job.expires_at is not None and job.expires_at <= self.now
        ]
        for job in late:
            job.place = "later"  # out of its gate, all of them before anybody enters
        for job in late:
            self._end(job, "expired", "job:expired", ("deadline passed", "DeadlinePassed"))
        return self._moved(late)

    @staticmethod
    def _moved(jobs: Iterable[ModelJob]) -> set[tuple[str, str]]:
        return {(job.id, job.status) for job in jobs}

    def release_unknown(self, lease: str, tokens: Collection[int]) -> int:
        unknown = [job for job in self.jobs.values() if job.lease == lease and job.token not in tokens]
        for job in unknown:
            self._released(job)
        return len(unknown)

    def _released(self, job: ModelJob) -> None:
        if job.cancel_at is None:
            self._back(job, "job:released", spent=False)
        else:
            self._cancelled(job)

    def prune(self, age_ms: int) -> int:
        old = [job.id for job in self.jobs.values() if job.ended_at is not None and job.ended_at <= self.now - age_ms]
        for id in old:
            del self.jobs[id]
        return len(old)

    # -- what people ask for: each answer is "" or the name of the refusal -----------------------

    def cancel(self, ids: Sequence[str], reason: str, uncancelable: Collection[str]) -> list[str]:
        pending = [job for id in ids if (job := self.jobs.get(id)) and job.status == "pending"]
        answers = [self._cancel(id, reason, uncancelable) for id in ids]
        for job in pending:
            job.place = "later"  # out of its gate, all of them before anybody enters
        for job in pending:
            self._cancelled(job)
            job.cancel_at, job.cancel_reason = self.now, reason
        return answers

    def _cancel(self, id: str, reason: str, uncancelable: Collection[str]) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.place == "ended":
            return "WrongState"
        if job.place == "running" and job.new.topic in uncancelable:
            return "NotCancelable"
        if job.status == "processing":
            self._tell(job, "job:cancelling", "cancelling")
            job.cancel_at, job.cancel_reason = self.now, reason
        return ""

    def requeue(self, id: str, force: bool, stale_after_ms: int) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.place != "ended" or job.ended_at is None:
            return "WrongState"
        if job.ended_as == "completed" and not force and not self.stale(job, stale_after_ms):
            return "WrongState"
        if job.new.dedupe_key is not None:
            same = [other for other in self.jobs.values() if other.new.dedupe_key == job.new.dedupe_key]
            if any(other.place != "ended" for other in same):
                return "WrongState"
            if not job.new.repeatable and any(self._completed_once(other) for other in same if other is not job):
                return "NotRepeatable"
        self._tell(job, "job:requeued", "pending")
        job.attempt, job.run_at, job.expires_at = 0, self.now, None
        job.started, job.progress, job.message, job.result, job.error = False, None, None, None, None
        job.cancel_at, job.cancel_reason, job.ended_as, job.ended_at, job.settled_by = None, None, None, None, None
        self._queue(job)
        self._open_gates()
        return ""

    def stale(self, job: ModelJob, stale_after_ms: int) -> bool:
        return job.ended_at is not None and job.ended_at + stale_after_ms <= self.now

    def release(self, id: str) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.place != "running":
            return "WrongState"
        self._released(job)
        return ""

    def reschedule(self, id: str, delay_ms: int | None, priority: int | None, max_attempts: int | None) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.status != "pending":
            return "WrongState"
        if delay_ms is not None:
            job.run_at = self.now + delay_ms
        if priority is not None:
            job.priority = priority
        if max_attempts is not None:
            job.max_attempts = max(max_attempts, job.attempt + 1)  # the next try at least
        if job.place != "ready" or job.run_at > self.now:
            self._queue(job)
        self._open_gates()
        return ""

    def delete(self, id: str, force: bool) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.place == "running" or (job.ended_as == "completed" and not force):
            return "WrongState"
        del self.jobs[id]
        self._open_gates()
        return ""
