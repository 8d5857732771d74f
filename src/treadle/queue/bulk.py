"""Applies one change to every matching job, in batches.

A place is a status and a number: jobs are visited by falling number, so each is visited once, no matter which of them
move, come back or disappear while the change runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from treadle.insights import lists
from treadle.model.durations import Priority, priority_value
from treadle.model.errors import InvalidInput
from treadle.model.job import Job, from_ms, rfc3339
from treadle.model.status import Status
from treadle.policy.rules import Condition, Constant, JobField, both
from treadle.policy.rules.conditions import compare
from treadle.queue.slices import in_slices
from treadle.store.views import Listing

if TYPE_CHECKING:
    from treadle.queue import Queue

BATCH = 500
Action = Literal["cancel", "requeue", "delete", "release", "patch"]
# Of jobs that are read whole, to ask whether each may be changed: a payload may have a megabyte.
READ_TOGETHER = 10
_LIVE = (Status.PENDING, Status.PROCESSING, Status.WAITING)
_DEAD = (Status.FAILED, Status.CANCELLED, Status.EXPIRED)
ENDINGS = (*_DEAD, Status.COMPLETED)
"""Every ending in an order that all processes share, because a place counts on it."""


@dataclass(frozen=True, slots=True)
class BulkChange:
    action: Action
    reason: str = ""
    force: bool = False
    run_at: datetime | None = None
    priority: Priority | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        values = {"runAt": self.run_at, "priority": self.priority, "maxRetries": self.max_attempts}
        given = [name for name, value in values.items() if value is not None]
        if self.action == "patch" and not given:
            raise InvalidInput("patch: give what to change: runAt, priority or maxRetries", field="action")
        if self.action != "patch" and given:
            raise InvalidInput(f"{given[0]}: only for patch, and the action is {self.action}", field=given[0])
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
                return ENDINGS if self.force else _DEAD
            case "delete":
                return (Status.PENDING, *_DEAD, *((Status.COMPLETED,) if self.force else ()))


@dataclass(slots=True)
class Done:
    matched: int = 0
    """Jobs that match and are in a state that allows the change."""
    changed: int = 0
    refused: int = 0
    """Jobs that another caller changed first, or that may not be changed in this way."""

    def add(self, batch: Batch) -> None:
        self.matched += batch.jobs
        self.changed += batch.changed
        self.refused += batch.jobs - batch.changed


class BulkPosition(NamedTuple):
    status_at: int = 0
    """The index of the status being processed."""
    below: int | None = None
    """The number of the last job visited in that status."""


class Batch(NamedTuple):
    jobs: int
    changed: int
    after: BulkPosition | None
    """Where the next batch begins; None: everything is done."""


MayChange: TypeAlias = Callable[[Job], Awaitable[bool]]


async def apply(
    queue: Queue,
    change: BulkChange,
    condition: Condition,
    *,
    as_of: datetime | None = None,
    dry_run: bool = False,
    may: MayChange | None = None,
) -> Done:
    """Change every matching job created up to `as_of` (default: now); each job is changed at most once. `may` refuses
    single ones."""
    moment = as_of or from_ms(await queue.store.now())
    condition = both(condition, compare(JobField("createdAt"), "<=", Constant(rfc3339(moment))))
    listings = [_listing(status, condition) for status in change.applies_to]
    done = Done()
    if dry_run:
        for listing in listings:
            done.matched += await queue.store.count(listing, 2**31)
        return done
    place: BulkPosition | None = BulkPosition()
    while place is not None:
        batch = await change_batch(queue, change, listings, place, may)
        done.add(batch)
        place = batch.after
    return done


def _listing(status: Status, condition: Condition) -> Listing:
    """A listing without an age limit, because jobs missing from it would silently stay unchanged."""
    return replace(lists.listing(None, status, None, None, BATCH, 0, condition), newest=None)


async def change_batch(
    queue: Queue,
    change: BulkChange,
    listings: Sequence[Listing],
    place: BulkPosition,
    may: MayChange | None = None,
) -> Batch:
    """Change the next jobs of these listings, of which each has one status."""
    if place.status_at >= len(listings):
        return Batch(0, 0, None)
    found = await queue.store.select(replace(listings[place.status_at], limit=BATCH, below=place.below))
    if not found:
        return Batch(0, 0, BulkPosition(place.status_at + 1))
    ids = [id for _, id in found]
    allowed = ids if may is None else await _allowed(queue, ids, may)
    changed = await change_jobs(queue, change, allowed) if allowed else 0
    return Batch(len(found), changed, BulkPosition(place.status_at, found[-1][0]))


async def _allowed(queue: Queue, ids: Sequence[str], may: MayChange) -> list[str]:
    allowed = []
    for i in range(0, len(ids), READ_TOGETHER):
        jobs = await queue.store.get(ids[i : i + READ_TOGETHER])
        allowed += [job.id async for job in in_slices(jobs) if job is not None and await may(job)]
    return allowed


async def change_jobs(queue: Queue, change: BulkChange, ids: Sequence[str]) -> int:
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
            answers = await queue.reschedule_many(
                ids, run_at=change.run_at, priority=change.priority, max_attempts=change.max_attempts
            )
    return sum(answer is None for answer in answers)
