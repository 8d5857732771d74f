"""The queue as the design describes it, in plain dictionaries: what both stores must agree with, step by step.

Written from the design, not from the SQL. It knows nothing of tables; a job is `ready`, `later`, `held`, `running`,
`parked` or `ended`, and time is a number that the machine moves.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tests.model.steps import ModelStep, ModelSteps, Step
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Released, Snoozed
from treadle.store.values import NewJob


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
    """The token of the owner that reported the end."""
    result: str | None = None
    error: tuple[str, str] | None = None
    events: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    flow: ModelSteps = field(default_factory=ModelSteps)
    in_time: bool = False
    """It has done some of its steps, so it began before its deadline."""
    has_steps: bool = False
    """It had some, or an answer to one."""
    kept_progress: int | None = None
    kept_message: str | None = None
    """Of the last attempt that said something, if it has steps: it goes on from there."""

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def status(self) -> str:
        if self.place == "ended":
            return str(self.ended_as)
        if self.place == "parked":
            return "waiting"
        if self.place == "running":
            return "processing" if self.cancel_at is None else "cancelling"
        return "pending"

    @property
    def limit(self) -> Limit | None:
        return self.new.limit

    @property
    def awaited(self) -> bool:
        """A step of its parent waits for it, or did."""
        return self.new.given.parent_step is not None

    @property
    def shown_progress(self) -> int:
        if self.ended_as == "completed":
            return 100
        if self.progress is not None or not self.has_steps:
            return self.progress or 0
        declared = self.flow.progress()
        return (self.kept_progress or 0) if declared is None else declared

    @property
    def shown_message(self) -> str | None:
        return self.kept_message if self.message is None else self.message

    def keep_progress(self) -> None:
        """Its attempt is over, but the job is not."""
        if self.has_steps:
            self.kept_progress = self.kept_progress if self.progress is None else self.progress
            self.kept_message = self.shown_message
        self.progress, self.message = None, None

    @property
    def turn(self) -> tuple[int, int, int]:
        return -self.priority, self.run_at, self.number


class Model:
    """Every verb answers in plain values that the stores' answers can be turned into."""

    def __init__(self) -> None:
        self.now = 0
        self.jobs: dict[str, ModelJob] = {}
        self.made = 0
        self.tokens = 0
        self.leases: dict[str, int] = {}
        self.paused: dict[str, int] = {}
        self.left: set[str] = set()
        """Keys under which a job has stopped running in this step."""
        self.wakes: set[str] = set()
        """Keys under which a job left the queue without having run: `advance` and every steering call look at them."""
        self.replaced: list[tuple[str, str]] = []
        """Jobs to cancel in a transaction of their own, with the reason: running ones that a user's transaction
        replaced, and children of cancelled parents."""
        self.ended_children: list[tuple[NewJob, str | None]] = []
        """Children that have ended in this step, with their results: then their parents are told."""

    # -- making jobs ---------------------------------------------------------------------------

    def insert(self, batch: Sequence[NewJob], atomic: bool, joined: bool = False) -> list[str]:
        """For each job "made", the id of the one that stands for it, or the name of its refusal.

        An atomic batch with a refusal makes nothing, and the refusals are all that it answers with. `joined`: in a
        user's transaction.
        """
        before = copy.deepcopy(self.__dict__)
        answers = [self._insert(new, joined) for new in batch]
        self._tell_parents()
        refusals = [answer for answer in answers if answer[0].isupper()]
        if atomic and refusals:
            self.__dict__.update(before)
            return refusals
        return answers

    def _insert(self, new: NewJob, joined: bool) -> str:
        if standing := self._same_key(new):
            return standing
        if refusal := self._apply_policy(new, joined):
            return refusal
        self.made += 1
        run_at = self.now + new.delay_ms
        expires_at = None if new.expires_in_ms is None else self.now + new.expires_in_ms
        job = ModelJob(new, self.made, self.now, run_at, expires_at, new.priority, new.max_attempts)
        job.has_steps = bool(new.steps)
        job.flow.steps = {(step.name, ""): ModelStep(True, place, step.after) for place, step in enumerate(new.steps)}
        self.jobs[job.id] = job
        self._queue(job)
        return "made"

    def _apply_policy(self, new: NewJob, joined: bool = False) -> str:
        limit = new.limit
        live = [job for job in self._oldest_first() if limit and job.limit and job.limit.key == limit.key]
        if limit and limit.policy == "reject_same_scope" and len(live) >= limit.most:
            return "ConcurrencyRejected"
        if limit and limit.policy == "replace_same_scope":
            surplus = live[: max(len(live) - limit.most + 1, 0)]
            reason = f"replaced by job {new.id}"
            later = [job.id for job in surplus if joined and (job.place == "running" or job.awaited)]
            self.replaced += [(id, reason) for id in later]
            self._cancel_all([job.id for job in surplus if job.id not in later], reason, ())
        return ""

    def _same_key(self, new: NewJob) -> str | None:
        for job in self.jobs.values():
            if new.given.idempotency_key is not None and self._idempotency(job.new) == self._idempotency(new):
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
        return new.topic, new.given.scope, new.given.scope_id, new.given.idempotency_key

    @staticmethod
    def _completed_once(job: ModelJob) -> bool:
        return job.ended_as == "completed" and not job.new.repeatable

    def _oldest_first(self) -> list[ModelJob]:
        return sorted((job for job in self.jobs.values() if job.place != "ended"), key=lambda job: job.number)

    # -- places --------------------------------------------------------------------------------

    def _queue(self, job: ModelJob) -> None:
        """Where a pending job waits: for its time or for a worker."""
        job.place = "later" if job.run_at > self.now else "ready"

    def running(self, key: str) -> int:
        return sum(job.place == "running" for job in self.jobs.values() if job.limit and job.limit.key == key)

    def _wake(self, keys: Collection[str]) -> None:
        """In each lane, the first of those held under a key come back into the queue, as many as have room."""
        for key in keys:
            lanes: dict[tuple[str, str], list[ModelJob]] = {}
            for job in self.jobs.values():
                if job.place == "held" and job.limit and job.limit.key == key:
                    lanes.setdefault((job.new.topic, job.new.capability), []).append(job)
            running = self.running(key)
            for held in lanes.values():
                able = sorted((job for job in held if job.limit and job.limit.most > running), key=lambda job: job.turn)
                room = max((job.limit.most - running for job in able[:1] if job.limit), default=0)
                for job in able[:room]:
                    job.place = "ready"

    def _wake_those_who_wait(self) -> None:
        """At the end of a step: for jobs that stopped running."""
        self._tell_parents()
        self._wake(self.left)
        self.left.clear()

    def _take_wakes(self) -> None:
        self._wake_those_who_wait()
        self._wake(self.wakes)
        self.wakes.clear()

    def _leave(self, job: ModelJob) -> None:
        if job.limit and job.place == "running":
            self.left.add(job.limit.key)
        if job.limit and job.place == "ready":
            self.wakes.add(job.limit.key)

    def _end(self, job: ModelJob, status: str, event: str | None = None, error: tuple[str, str] | None = None) -> None:
        self._tell(job, event, status)
        self._leave(job)
        if status == "cancelled":
            self.replaced += [(child, "its parent was cancelled") for child in job.flow.awaited()]
            job.flow.interrupt("cancelled")
        elif job.place == "running":
            job.flow.interrupt("failed" if status == "expired" else "pending")
        job.place, job.ended_as, job.ended_at, job.lease = "ended", status, self.now, None
        job.error = error or job.error
        if job.awaited:
            self.ended_children.append((job.new, job.result or "null" if status == "completed" else None))

    def _cancelled(self, job: ModelJob, error: tuple[str, str] | None = None) -> None:
        self._end(job, "cancelled", "job:cancelled", error)

    def _back(self, job: ModelJob, event: str, delay_ms: int = 0, *, spent: bool, to: str = "pending") -> None:
        """Pending again: at its old place in the queue, or set aside for a while."""
        self._tell(job, event, to)
        self._leave(job)
        job.flow.interrupt("failed" if event == "job:reclaimed" else "pending")
        job.attempt -= 0 if spent else 1
        job.in_time = job.in_time or job.started
        job.lease, job.started = None, False
        job.keep_progress()
        if delay_ms:
            job.run_at, job.place = self.now + delay_ms, "later"
        else:
            job.place = "ready"

    def _tell(self, job: ModelJob, event: str | None, to: str) -> None:
        if event:
            job.events.append((event, job.status, to))

    # -- running jobs --------------------------------------------------------------------------

    def live(self, lease: str) -> bool:
        return self.leases.get(lease, 0) > self.now

    def renew(self, lease: str, ms: int) -> set[str] | None:
        """What its owner was asked to stop. Late is not too late: only a lease that was taken back or given up is."""
        if not self.leases.get(lease):
            return None
        self.leases[lease] = self.now + ms
        return {job.id for job in self.jobs.values() if job.lease == lease and job.cancel_at is not None}

    def close_lease(self, lease: str) -> None:
        if lease in self.leases:
            self.leases[lease] = 0

    def claim(
        self, lease: str, topics: Collection[str], capabilities: Collection[str], limit: int, free: int
    ) -> list[tuple[str, int]] | str:
        """(id, attempt) in order. Jobs that have to be held or expire are not counted."""
        if not self.live(lease):
            return "LeaseLost"
        found = [job for job in self.jobs.values() if job.place == "ready" and self._serves(job, topics, capabilities)]
        taken: list[ModelJob] = []
        left_alone = 0
        self.tokens += 1
        for job in sorted(found, key=lambda job: job.turn):
            if len(taken) + left_alone == limit:
                break
            if self._overdue(job):
                self._expire(job)
            elif job.attempt + 1 == job.max_attempts and len(taken) >= free:
                left_alone += 1  # one on its last attempt is claimed only into a free slot
            elif job.limit and self.running(job.limit.key) >= job.limit.most:
                job.place = "held"
            else:
                job.place, job.lease, job.token = "running", lease, self.tokens
                job.attempt += 1
                taken.append(job)
        self._tell_parents()
        return [(job.id, job.attempt) for job in taken]

    def _serves(self, job: ModelJob, topics: Collection[str], capabilities: Collection[str]) -> bool:
        new = job.new
        paused = self.paused.get(new.topic, 0) > self.now
        return new.topic in topics and new.capability in ("", *capabilities) and not paused

    def _overdue(self, job: ModelJob) -> bool:
        """Its deadline passed before it was ever tried."""
        return job.expires_at is not None and job.expires_at <= self.now and job.attempt == 0 and not job.in_time

    def _expire(self, job: ModelJob) -> None:
        self._end(job, "expired", "job:expired", ("deadline passed", "DeadlinePassed"))

    def settle(self, id: str, token: int, lease: str, outcome: Outcome, *, ran: bool) -> bool:
        """Whether it was accepted. `settled` says when all of a batch were."""
        job = self.jobs.get(id)
        if not job or not self._owns(job, token, lease):
            return bool(job and job.settled_by == token and job.ended_as in self._endings(job, outcome))
        job.started = job.started or ran
        asked_to_stop = job.cancel_at is not None
        match outcome:
            case Completed(result):
                job.result = result
                self._end(job, "completed")
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

    def _endings(self, job: ModelJob, outcome: Outcome) -> tuple[str, ...]:
        """How it may have ended by this outcome, if only the answer was lost; another outcome is refused."""
        match outcome:
            case Completed():
                return ("completed",)
            case Failed(_, _, wait) if wait is None or job.attempt >= job.max_attempts:
                return ("failed", "cancelled")
        return ("cancelled",)

    def settled(self) -> None:
        self._wake_those_who_wait()

    def _owns(self, job: ModelJob, token: int, lease: str) -> bool:
        return job.place == "running" and job.token == token and job.lease == lease

    def touch(self, id: str, token: int, lease: str, progress: int | None, message: str | None) -> bool:
        job = self.jobs.get(id)
        if not job or not self._owns(job, token, lease):
            return False
        job.started = True
        job.progress = job.progress if progress is None else progress
        job.message = job.message if message is None else message
        return True

    # -- steps ---------------------------------------------------------------------------------

    def checkpoint(
        self, id: str, token: int, lease: str, write: tuple[Step, int, str, str | None], used: Collection[Step]
    ) -> bool:
        """Whether it was accepted: a step (with its place, state and result), and early answers that were used."""
        job = self.jobs.get(id)
        if not job or not self._owns(job, token, lease):
            return False
        step, place, state, result = write
        if state == "timed out":
            if step in job.flow.answers:
                return False
            write = step, place, "failed", result
        job.started = job.has_steps = True
        job.flow.write(*write)
        if write[2] == "completed":
            job.events.append(("job:step:completed", None, None))
        for step in used:
            job.flow.answers.pop(step, None)
        return True

    def park(self, id: str, token: int, lease: str, step: Step, place: int, wait_ms: int | None) -> bool:
        job = self.jobs.get(id)
        if not job or not self._owns(job, token, lease):
            return bool(job and job.settled_by == token and job.ended_as == "cancelled")
        job.started = job.has_steps = True
        job.flow.wait(step, place, None if wait_ms is None else self.now + wait_ms)
        if job.cancel_at is not None:
            self._cancelled(job)
            job.settled_by = token
        else:
            self._set_aside(job)
        self._wake_those_who_wait()
        return True

    def _set_aside(self, job: ModelJob) -> None:
        self._back(job, "job:waiting", spent=False, to="waiting")
        job.place, job.in_time = "parked", True
        for one in job.flow.waiting():
            if one in job.flow.answers and job.flow.steps[one].child is None:
                self._end_wait(job, one, job.flow.answers.pop(one))

    # -- children ------------------------------------------------------------------------------

    def make_child(self, id: str, token: int, lease: str, step: Step, place: int, new: NewJob) -> str:
        """What the step knows of its child then; "lost" if its owner has lost the job."""
        job = self.jobs.get(id)
        if not job or not self._owns(job, token, lease):
            return "lost"
        job.started = job.has_steps = True
        one = job.flow.steps.get(step)
        if one and one.state in ("completed", "failed"):
            return one.state
        child = self.jobs.get(one.child or "") if one else None
        if child and child.place != "ended":
            return self._has_child(job, step, place, "waiting", child.id)
        if child and child.ended_as == "completed":
            job.events.append(("job:step:completed", None, None))
            return self._has_child(job, step, place, "completed", child.id, child.result or "null")
        made = self._insert(new, False) == "made"
        state = self._has_child(job, step, place, "waiting" if made else "failed", new.id if made else None)
        self._wake_those_who_wait()
        return state

    def _has_child(
        self, job: ModelJob, step: Step, place: int, state: str, child: str | None, result: str | None = None
    ) -> str:
        one = job.flow.write(step, place, state, result)
        one.child = child or one.child
        return state

    def park_for_child(self, id: str, token: int, lease: str, step: Step) -> bool:
        job = self.jobs.get(id)
        if not job or not self._owns(job, token, lease):
            return bool(job and job.settled_by == token and job.ended_as == "cancelled")
        job.started = True
        if job.cancel_at is not None:
            self._cancelled(job)
            job.settled_by = token
        else:
            self._set_aside(job)
            if job.place == "parked" and job.flow.steps[step].state != "waiting":
                job.place = "ready"
        self._wake_those_who_wait()
        return True

    def _tell_parents(self) -> None:
        for new, result in self.ended_children:
            parent = self.jobs.get(new.given.parent_id or "")
            one = parent.flow.steps.get((new.given.parent_step or "", new.given.parent_key or "")) if parent else None
            if not parent or not one or one.child != new.id or one.state != "waiting":
                continue
            one.state, one.result = ("failed", None) if result is None else ("completed", result)
            parked = parent.place == "parked"
            if result is not None:
                parent.events.append(("job:step:completed", *(("waiting", "pending") if parked else (None, None))))
            if parked:
                parent.place = "ready"
        self.ended_children.clear()

    def _cancel_replaced(self) -> None:
        """One transaction after the other: those that are cancelled may have children too."""
        while self.replaced:
            reasons, self.replaced = self.replaced, []
            for id, reason in reasons:
                self._cancel_all([id], reason, ())
            self._tell_parents()

    def answer(self, id: str, step: Step, result: str | None, unannounced: bool) -> str:
        """With a result, or with an error."""
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if refusal := job.flow.refusal(step, job.place == "ended", unannounced):
            return refusal
        if step in job.flow.waiting() and job.place != "running":
            self._end_wait(job, step, result)
        else:
            job.flow.answers[step] = result
            job.has_steps = True
        return ""

    def _end_wait(self, job: ModelJob, step: Step, result: str | None) -> None:
        job.flow.write(step, 0, "failed" if result is None else "completed", result)
        if result is not None:
            job.events.append(("job:step:completed", "waiting", "pending"))
        if job.place == "parked":
            job.place = "ready"

    # -- moving jobs ---------------------------------------------------------------------------

    def advance(self) -> tuple[int, set[tuple[str, str]]]:
        """How many jobs are due now, and which ones expired."""
        due = [job for job in self.jobs.values() if job.place == "later" and job.run_at <= self.now]
        due += [job for job in self.jobs.values() if job.place == "parked" and job.flow.overdue(self.now)]
        for job in due:
            job.place = "ready"
        late = [job for job in self.jobs.values() if job.status == "pending" and self._overdue(job)]
        for job in late:
            self._expire(job)
        moved = self._moved(late)
        self._tell_parents()
        self._cancel_replaced()
        self._take_wakes()
        return len(due), moved

    def tidy(self) -> None:
        self._wake({job.limit.key for job in self.jobs.values() if job.place == "held" and job.limit})

    def reap(self, grace_ms: dict[str, int], default_ms: int) -> set[tuple[str, str]]:
        moved = self._reclaim() | self._end_overdue_cancels(grace_ms, default_ms)
        self._wake_those_who_wait()
        return moved

    def _reclaim(self) -> set[tuple[str, str]]:
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

    def _end_overdue_cancels(self, grace_ms: dict[str, int], default_ms: int) -> set[tuple[str, str]]:
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

    @staticmethod
    def _moved(jobs: Iterable[ModelJob]) -> set[tuple[str, str]]:
        return {(job.id, job.status) for job in jobs}

    def release_unknown(self, lease: str, tokens: Collection[int]) -> int:
        unknown = [job for job in self.jobs.values() if job.lease == lease and job.token not in tokens]
        for job in unknown:
            self._released(job)
        self._wake_those_who_wait()
        return len(unknown)

    def _released(self, job: ModelJob) -> None:
        if job.cancel_at is None:
            self._back(job, "job:released", spent=False)
        else:
            self._cancelled(job)

    def prune(self, age_ms: int) -> int:
        ended = [job for job in self.jobs.values() if job.ended_at is not None and job.ended_at <= self.now - age_ms]
        old = [job.id for job in ended if not job.flow.awaited()]
        for id in old:
            del self.jobs[id]
        return len(old)

    # -- what people ask for: each answer is "" or the name of the refusal -----------------------

    def cancel(self, ids: Sequence[str], reason: str, uncancelable: Collection[str]) -> list[str]:
        idle = [job for id in ids if (job := self.jobs.get(id)) and job.status in ("pending", "waiting")]
        answers = self._cancel_all(ids, reason, uncancelable)
        self._take_wakes()
        if any(job.has_steps for job in idle):
            self._cancel_replaced()
        return answers

    def _cancel_all(self, ids: Sequence[str], reason: str, uncancelable: Collection[str]) -> list[str]:
        pending = [job for id in ids if (job := self.jobs.get(id)) and job.status in ("pending", "waiting")]
        answers = [self._cancel(id, reason, uncancelable) for id in ids]
        for job in pending:
            if job.place == "parked":  # its worker needs not be asked, because there is none
                self._tell(job, "job:cancelling", "cancelling")
                job.events.append(("job:cancelled", "cancelling", "cancelled"))
                self._end(job, "cancelled")
            else:
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

    def requeue(self, id: str, force: bool, stale_after_ms: int, mode: str, step: str | None) -> str:
        answer = self._requeue(id, force, stale_after_ms, mode, step)
        self._take_wakes()
        return answer

    def would_run(self, id: str, mode: str, step: str | None) -> list[str] | None:
        """The names of the steps that a requeue would repeat; None: it is refused."""
        job = self.jobs.get(id)
        if job is None or job.place != "ended" or (mode == "from" and not job.flow.has(step)):
            return None
        return job.flow.names(job.flow.chosen(mode, step, job.ended_as == "completed"))

    def _requeue(self, id: str, force: bool, stale_after_ms: int, mode: str, step: str | None) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.place != "ended" or job.ended_at is None:
            return "WrongState"
        if mode == "from" and not job.flow.has(step):
            return "UnknownStep"
        if job.ended_as == "completed" and not force and not self.stale(job, stale_after_ms):
            return "WrongState"
        if job.new.dedupe_key is not None:
            same = [other for other in self.jobs.values() if other.new.dedupe_key == job.new.dedupe_key]
            if any(other.place != "ended" for other in same):
                return "WrongState"
            if not job.new.repeatable and any(self._completed_once(other) for other in same if other is not job):
                return "NotRepeatable"
        if refusal := self._apply_policy(job.new):
            return refusal
        completed = job.ended_as == "completed"
        self._tell(job, "job:requeued", "pending")
        job.attempt, job.run_at, job.expires_at = 0, self.now, None
        job.started, job.progress, job.message, job.result, job.error = False, None, None, None, None
        job.kept_progress, job.kept_message = None, None
        again = "all" if completed and mode == "unfinished" else mode
        job.flow.run_again(job.flow.chosen(mode, step, completed), again)
        job.cancel_at, job.cancel_reason, job.ended_as, job.ended_at, job.settled_by = None, None, None, None, None
        self._queue(job)
        return ""

    def stale(self, job: ModelJob, stale_after_ms: int) -> bool:
        return job.ended_at is not None and job.ended_at + stale_after_ms <= self.now

    def release(self, id: str) -> str:
        job = self.jobs.get(id)
        answer = "JobNotFound" if job is None else "" if job.place == "running" else "WrongState"
        if job and not answer:
            self._released(job)
        self._take_wakes()
        return answer

    def reschedule(self, id: str, delay_ms: int | None, priority: int | None, max_attempts: int | None) -> str:
        answer = self._reschedule(id, delay_ms, priority, max_attempts)
        self._take_wakes()
        return answer

    def _reschedule(self, id: str, delay_ms: int | None, priority: int | None, max_attempts: int | None) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.status != "pending":
            return "WrongState"
        if max_attempts is not None and max_attempts <= job.attempt:
            return "InvalidInput"
        if (delay_ms, priority, max_attempts) == (None, None, None):
            return ""
        if delay_ms is not None:
            job.run_at = self.now + delay_ms
        if priority is not None:
            job.priority = priority
        if max_attempts is not None:
            job.max_attempts = max_attempts
        if job.run_at > self.now:
            self._leave(job)
        self._queue(job)
        return ""

    def delete(self, id: str, force: bool) -> str:
        answer = self._delete(id, force)
        self._take_wakes()
        return answer

    def _delete(self, id: str, force: bool) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "JobNotFound"
        if job.place not in ("running", "parked") and job.flow.awaited():
            return "HasChildren"
        if job.place in ("running", "parked") or (job.ended_as == "completed" and not force):
            return "WrongState"
        self._leave(job)
        if job.awaited and job.place != "ended":
            self.ended_children.append((job.new, None))
        del self.jobs[id]
        return ""
