"""Applies one change to every matching job, in batches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from treadle.insights import lists
from treadle.model.durations import Priority, priority_value
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.job import Job, from_ms, rfc3339
from treadle.model.status import ENDED, Status
from treadle.policy.rules import Condition, Constant, JobField, both
from treadle.policy.rules.conditions import compare
from treadle.store.values import Listing

if TYPE_CHECKING:
    from treadle.queue import Queue

BATCH = 500
TOGETHER = 20
Action = Literal["cancel", "requeue", "delete", "release", "patch"]
_LIVE = (Status.PENDING, Status.PROCESSING, Status.WAITING)
_DEAD = (Status.FAILED, Status.CANCELLED, Status.EXPIRED)


@dataclass(frozen=True, slots=True)
class Change:
    action: Action
    reason: str = ""
    force: bool = False
    run_at: datetime | None = None
    priority: Priority | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        asked = (self.run_at, self.priority, self.max_attempts)
        if self.action == "patch" and all(one is None for one in asked):
            raise InvalidInput("patch: say what to change: runAt, priority or maxRetries", field="action")
        if self.priority is not None:
            priority_value(self.priority)  # report an error once, not once per job

    @property
    def applies_to(self) -> tuple[Status, ...]:
        """The states in which the change is possible."""
        match self.action:
            case "cancel":
                return _LIVE
            case "release":
                return (Status.PROCESSING,)
            case "patch":
                return (Status.PENDING,)
            case "requeue":
                return tuple(ENDED) if self.force else _DEAD
            case "delete":
                return (Status.PENDING, *_DEAD, *((Status.COMPLETED,) if self.force else ()))


@dataclass(slots=True)
class Done:
    matched: int = 0
    """Jobs that match and are in a state that allows the change."""
    changed: int = 0
    refused: int = 0
    """Jobs that another caller changed first."""


async def apply(
    queue: Queue, change: Change, condition: Condition, *, as_of: datetime | None = None, dry_run: bool = False
) -> Done:
    """Change every matching job created up to `as_of` (default: now); each job is changed at most once."""
    moment = as_of or from_ms(await queue.store.now())
    done = Done()
    for status in change.applies_to:
        if dry_run:
            listing = _listing(status, both(condition, _created_until(moment)), 1)
            done.matched += await queue.store.count(listing, 2**31)
        else:
            await _apply_to(queue, change, condition, status, moment, done)
    return done


async def _apply_to(
    queue: Queue, change: Change, condition: Condition, status: Status, until: datetime | None, done: Done
) -> None:
    """Newest first. Jobs leave the listing as they are changed and may reappear, for example after failing again; jobs
    seen before are skipped.
    """
    seen: set[str] = set()
    while True:
        fresh = await _next_fresh(queue, both(condition, _created_until(until)), status, seen)
        if not fresh:
            return
        seen.update(job.id for job in fresh)
        until = min(job.created_at for job in fresh)
        changed = await change_jobs(queue, change, fresh)
        done.matched += len(fresh)
        done.changed += changed
        done.refused += len(fresh) - changed


async def _next_fresh(queue: Queue, condition: Condition, status: Status, seen: set[str]) -> list[Job]:
    """The newest jobs not seen yet; many may have been created in the same millisecond."""
    offset = 0
    while jobs := await queue.store.list(_listing(status, condition, BATCH, offset)):
        fresh = [job for job in jobs if job.id not in seen]
        if fresh:
            return fresh
        offset += len(jobs)
    return []


def _listing(status: Status, condition: Condition, limit: int, offset: int = 0) -> Listing:
    """A listing without an age limit, because jobs missing from it would silently stay unchanged."""
    return replace(lists.listing(None, status, None, None, limit, offset, condition), newest=None)


def _created_until(moment: datetime | None) -> Condition:
    return compare(JobField("createdAt"), "<=", Constant(rfc3339(moment)))


async def change_jobs(queue: Queue, change: Change, jobs: list[Job]) -> int:
    ids = [job.id for job in jobs]
    match change.action:
        case "cancel":
            answers = await queue.cancel_many(ids, change.reason)
        case "requeue":
            answers = await queue.requeue_many(ids, force=change.force)
        case "delete":
            answers = await queue.delete_many(ids, force=change.force)
        case "release":
            answers = await queue.release_many(ids)
        case "patch":
            answers = await _all_patched(queue, change, ids)
    return sum(answer is None for answer in answers)


async def _all_patched(queue: Queue, change: Change, ids: list[str]) -> list[Exception | None]:
    """One transaction per job, several in parallel, because running them one by one would wait for every commit."""
    groups = [ids[start : start + TOGETHER] for start in range(0, len(ids), TOGETHER)]
    return [
        answer for group in groups for answer in await asyncio.gather(*(_patched(queue, change, id) for id in group))
    ]


async def _patched(queue: Queue, change: Change, id: str) -> Exception | None:
    try:
        await queue.reschedule(id, run_at=change.run_at, priority=change.priority, max_attempts=change.max_attempts)
    except TreadleError as error:
        return error
    return None
