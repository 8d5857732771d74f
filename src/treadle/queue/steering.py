"""Operator actions on existing jobs, as judges: pure functions that the store calls for each job that it has locked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.model.durations import Priority, priority_value
from treadle.model.errors import InvalidInput, NotCancelable, TemplateDisabled
from treadle.model.job import Job, to_ms
from treadle.model.payload import dumps
from treadle.model.status import ENDED, Status
from treadle.model.steps import DONE
from treadle.policy.children import check_deletable
from treadle.policy.lifecycle import CancelRequested, Deleted, Outcome, Patch, ReleasedByHand, Requeued, Rescheduled
from treadle.policy.rerun import Ran, check_mode, rerun
from treadle.queue.enqueueing.new_jobs import checked_attempts
from treadle.queue.on_behalf import may_replace
from treadle.store.protocol import Store
from treadle.store.values import NewJob, Refusal, SteeredJob

Answers = Sequence[Job | Refusal | None]


async def cancel(store: Store, ids: Sequence[str], reason: str = "", uncancelable: Collection[str] = ()) -> Answers:
    """End pending jobs and ask running ones to stop, unless their topic is in `uncancelable`."""

    def judge(job: SteeredJob) -> Outcome:
        if job.status is Status.PROCESSING and job.topic in uncancelable:
            raise NotCancelable(f"{job.topic} does not support cancelling a running job", status=str(job.status))
        return CancelRequested(reason)

    return await store.steer(ids, judge)


class Again(NamedTuple):
    """How to requeue: which steps run again, and with which payload."""

    force: bool = False
    mode: str = "unfinished"
    step: str | None = None
    changed: NewJob | None = None
    """The job with another payload and its keys; None: it keeps its own."""


async def requeue(
    store: Store,
    ids: Sequence[str],
    force: bool = False,
    disabled: Collection[str] = (),
    *,
    dry_run: bool = False,
    again: Again | None = None,
    runs: dict[str, Sequence[str]] | None = None,
) -> Answers:
    """Restart ended jobs, unless their topic is in `disabled`. `runs` is filled with the steps that run again."""
    how = again or Again(force)
    replaces = may_replace()

    def judge(job: SteeredJob) -> Outcome:
        if job.topic in disabled:
            raise TemplateDisabled(f"the template of {job.topic} is disabled: requeue is not possible")
        check_mode(how.mode, how.step)
        if job.status not in ENDED:
            return Requeued(how.force)  # refused, whichever steps it names
        steps = [
            Ran(step.name, step.place, step.state in DONE, step.key, step.declared, step.after) for step in job.steps
        ]
        chosen = rerun(steps, how.mode, how.step, job.status is Status.COMPLETED)
        if runs is not None:
            runs[job.id] = list(dict.fromkeys(step.name for step in steps)) if chosen.names is None else chosen.names
        mode = chosen.mode if steps else ""
        payload = how.changed.payload if how.changed else None
        return Requeued(how.force, job.stale, mode, chosen.names, payload, chosen.runs, replaces)

    changed = {how.changed.id: how.changed} if how.changed else {}
    return await store.steer(ids, judge, dry_run=dry_run, changed=changed)


async def release(store: Store, ids: Sequence[str]) -> Answers:
    """Take running jobs from their workers and put them back without using up the attempt."""
    return await store.steer(ids, lambda _: ReleasedByHand())


async def reschedule(
    store: Store,
    ids: Sequence[str],
    *,
    run_at: int | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
) -> Answers:
    """Change the given fields of pending jobs."""
    return await store.steer(ids, lambda _: Rescheduled(Patch(run_at, priority, max_attempts)))


async def delete(store: Store, ids: Sequence[str], force: bool = False) -> Answers:
    """Delete jobs; the answer is None for a deleted job."""

    def judge(job: SteeredJob) -> Outcome:
        check_deletable(job.id, job.awaits_children and job.status in _DELETABLE, job.status)
        return Deleted(force)

    return await store.steer(ids, judge)


_DELETABLE = ENDED | {Status.PENDING}


def new_values(run_at: datetime | None, priority: Priority | None, max_attempts: int | None) -> dict[str, int | None]:
    return {
        "run_at": None if run_at is None else to_ms(run_at),
        "priority": None if priority is None else priority_value(priority),
        "max_attempts": None if max_attempts is None else checked_attempts(max_attempts),
    }


def refusals(answers: Sequence[Job | Refusal | None]) -> list[Exception | None]:
    return [answer.error if isinstance(answer, Refusal) else None for answer in answers]


def checked_reason(reason: str) -> str:
    if not isinstance(reason, str) or len(reason) > 1000:
        raise InvalidInput("reason: use at most 1,000 characters", field="reason")
    dumps(reason, "reason")  # raises for values that databases can't store
    return reason
