"""The same change to every job that matches, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from treadle import insights
from treadle.errors import InvalidInput, TreadleError
from treadle.job import Job
from treadle.lifecycle import ENDED, Status
from treadle.policy import Priority, priority_value
from treadle.rules import Condition

if TYPE_CHECKING:
    from treadle.queue import Queue

BATCH = 500
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
            priority_value(self.priority)  # wrong once, not wrong for each job

    @property
    def applies_to(self) -> tuple[Status, ...]:
        """The states from which it is possible at all."""
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
    """Jobs that match and are in a state that allows it."""
    changed: int = 0
    refused: int = 0
    """Changed by somebody else before their turn came."""


async def apply(queue: Queue, change: Change, condition: Condition, *, dry_run: bool = False) -> Done:
    done = Done()
    for status in change.applies_to:
        if dry_run:
            listing = insights.listing(None, status, None, None, 1, 0, condition)
            done.matched += await queue.store.count(listing, 2**31)
        else:
            await _apply_to(queue, change, condition, status, done)
    return done


async def _apply_to(queue: Queue, change: Change, condition: Condition, status: Status, done: Done) -> None:
    """Jobs leave the listing as they are changed; those that stay are stepped over."""
    seen: set[str] = set()
    stayed = 0
    while True:
        listing = insights.listing(None, status, None, None, BATCH, stayed, condition)
        jobs = await queue.store.list(listing)
        fresh = [job for job in jobs if job.id not in seen]
        if not fresh:
            return
        seen.update(job.id for job in fresh)
        changed = await _change(queue, change, fresh)
        done.matched += len(fresh)
        done.changed += changed
        done.refused += len(fresh) - changed
        stayed += len(jobs) if change.action == "patch" else len(jobs) - changed


async def _change(queue: Queue, change: Change, jobs: list[Job]) -> int:
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
            answers = [await _patched(queue, change, id) for id in ids]
    return sum(answer is None for answer in answers)


async def _patched(queue: Queue, change: Change, id: str) -> Exception | None:
    try:
        await queue.reschedule(id, run_at=change.run_at, priority=change.priority, max_attempts=change.max_attempts)
    except TreadleError as error:
        return error
    return None
