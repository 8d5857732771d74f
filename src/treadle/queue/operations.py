"""Bulk changes that run as operations, with progress that survives a restart.

An operation is a record: what to do, the search that selected the jobs, the instant of the request (`as_of`), its
position and its counts. A job that moved after that instant is left alone, so a batch that runs again after a crash
changes nothing twice. The process that runs the operation saves the record every few batches. Once a record has not
been saved for a while, any server can take it over with a compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json
from uuid_utils import uuid7

from treadle.insights.search import STALE, JobSearch
from treadle.model.errors import JobNotFound, StoreUnavailable
from treadle.model.job import from_ms, rfc3339
from treadle.model.status import ENDED, Status
from treadle.queue import bulk
from treadle.queue.audit import Actor, AuditLog
from treadle.store.values import Record, RecordWrite

if TYPE_CHECKING:
    from treadle.queue.queue import Queue

log = logging.getLogger("treadle.operations")

KIND = "operations"
BATCH = 500
SAVE_EVERY_S = 1.0
ABANDONED_S = 30.0
RUNNING, DONE, STOPPED = "running", "done", "stopped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of a dry run: a number of jobs and what would happen to them."""

    count: int
    status: str
    skipped: bool


@dataclass(slots=True)
class Operation:
    id: str
    action: bulk.Action
    search: JobSearch
    options: dict[str, Any]
    as_of: datetime
    by: Actor
    expected: int
    state: str = RUNNING
    status_at: int = 0
    """The index of the status being processed. `stayed` counts the jobs of that status that were skipped."""
    stayed: int = 0
    changed: int = 0
    refused: int = 0
    version: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    stop: bool = field(default=False, compare=False)

    @property
    def change(self) -> bulk.Change:
        return change_of(self.action, self.options)

    @property
    def percent(self) -> int:
        if self.state == DONE:
            return 100
        return min(99, int((self.changed + self.refused) * 100 / self.expected)) if self.expected else 0

    def body(self) -> str:
        return to_json(
            {
                "action": self.action,
                "search": asdict(self.search),
                "options": self.options,
                "asOf": rfc3339(self.as_of),
                "by": asdict(self.by),
                "expected": self.expected,
                "state": self.state,
                "statusAt": self.status_at,
                "stayed": self.stayed,
                "changed": self.changed,
                "refused": self.refused,
            }
        ).decode()


def statuses_for(change: bulk.Change, search: JobSearch) -> list[Status]:
    """The states in which the change is possible, limited to the ones in the search."""
    wanted = search.narrowed.status
    if wanted == STALE:
        return [status for status in change.applies_to if status in ENDED]
    return [status for status in change.applies_to if wanted in ("", status)]


async def dry_run(queue: Queue, change: bulk.Change, search: JobSearch, as_of: datetime) -> list[Outcome]:
    """How many jobs would be changed and how many left alone, by status."""
    possible = statuses_for(change, search)
    found = search.narrowed
    statuses = [Status(found.status)] if found.status not in ("", STALE) else list(Status)
    counts = [
        await queue.store.count(replace(found, status=status, sort="").frozen(1, 0, as_of), 2**31)
        for status in statuses
    ]
    return [
        Outcome(count, status.value, status not in possible)
        for status, count in zip(statuses, counts, strict=True)
        if count
    ]


class Operations:
    """The operations of one server process; `close` leaves them unfinished for the next process."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._running: dict[str, tuple[Operation, asyncio.Task[None]]] = {}

    async def start(
        self,
        action: bulk.Action,
        search: JobSearch,
        options: Mapping[str, Any],
        as_of: datetime,
        by: Actor,
        expected: int,
    ) -> Operation:
        id = str(uuid7())
        operation = Operation(id, action, search, dict(options), as_of, by, expected)
        change_of(action, options)  # raises if the change is invalid
        (record,) = await self._queue.store.write_records([RecordWrite(KIND, id, id, operation.body())])
        assert record is not None, "two random ids can't be the same"
        operation.version = record.version
        self._run(operation)
        return operation

    async def wait(self, id: str, seconds: float) -> None:
        """Wait until it has ended, but at most this long."""
        if id in self._running:
            await asyncio.wait({self._running[id][1]}, timeout=seconds)

    async def get(self, id: str) -> Operation:
        (record,) = await self._queue.store.get_records([(KIND, id)])
        if record is None:
            raise JobNotFound(f"there is no operation {id[:60]}", id=id[:60])
        running = self._running.get(id)
        return running[0] if running and running[0].state == RUNNING else _operation(record)

    async def stop(self, id: str) -> None:
        """Stop after the current batch, in any process."""
        running = self._running.get(id)
        if running:
            running[0].stop = True
            return
        (record,) = await self._queue.store.get_records([(KIND, id)])
        if record is not None:
            operation = _operation(record)
            operation.state = STOPPED
            await self._queue.store.write_records([RecordWrite(KIND, id, id, operation.body(), version=record.version)])

    async def take_over(self) -> None:
        """Continue operations that another process abandoned."""
        limit = datetime.now(UTC) - timedelta(seconds=ABANDONED_S)
        for record in await self._queue.store.find_records(KIND, newest=True, limit=100):
            operation = _operation(record)
            abandoned = operation.updated_at is not None and operation.updated_at < limit
            if (
                operation.state == RUNNING
                and abandoned
                and record.id not in self._running
                and await self._save(operation)
            ):
                log.info("going on with operation %s: %s", operation.id, operation.action)
                self._run(operation)

    async def close(self) -> None:
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()

    # -- running -------------------------------------------------------------------------------

    def _run(self, operation: Operation) -> None:
        task = asyncio.create_task(self._work(operation), name=f"treadle-operation-{operation.id}")
        self._running[operation.id] = (operation, task)
        task.add_done_callback(lambda _: self._running.pop(operation.id, None))

    async def _work(self, operation: Operation) -> None:
        loop = asyncio.get_running_loop()
        saved = loop.time()
        while operation.state == RUNNING:
            try:
                await self._batch(operation)
            except StoreUnavailable as error:
                log.warning("operation %s waits for the store: %s", operation.id, error)
                await asyncio.sleep(SAVE_EVERY_S)
            if operation.stop and operation.state == RUNNING:
                operation.state = STOPPED
            if operation.state != RUNNING or loop.time() - saved > SAVE_EVERY_S:
                if not await self._save(operation):
                    return  # another process stopped it or took it over
                saved = loop.time()
        await AuditLog(self._queue).add(
            operation.by,
            operation.action,
            filter=operation.search.words,
            reason=str(operation.options.get("reason", "")),
            changed=operation.changed,
            skipped=operation.refused,
        )

    async def _batch(self, operation: Operation) -> None:
        change = operation.change
        statuses = statuses_for(change, operation.search)
        if operation.status_at >= len(statuses):
            operation.state = DONE
            return
        search = replace(operation.search.narrowed, status=statuses[operation.status_at], sort="")
        listing = search.frozen(BATCH, operation.stayed, operation.as_of)
        jobs = await self._queue.store.list(listing)
        if not jobs:
            operation.status_at += 1
            operation.stayed = 0
            return
        changed = await bulk.change_jobs(self._queue, change, jobs)
        operation.changed += changed
        operation.refused += len(jobs) - changed
        # Changed jobs leave the list; the ones that stay are skipped.
        stays = change.action == "patch"
        operation.stayed += len(jobs) if stays else len(jobs) - changed

    async def _save(self, operation: Operation) -> bool:
        write = RecordWrite(KIND, operation.id, operation.id, operation.body(), version=operation.version)
        (record,) = await self._queue.store.write_records([write])
        if record is not None:
            operation.version = record.version
        return record is not None


def _operation(record: Record) -> Operation:
    body = from_json(record.body)
    return Operation(
        record.id,
        body["action"],
        JobSearch(**body["search"]),
        body["options"],
        datetime.fromisoformat(body["asOf"]),
        Actor(**body["by"]),
        body["expected"],
        body["state"],
        body["statusAt"],
        body["stayed"],
        body["changed"],
        body["refused"],
        record.version,
        from_ms(record.created_at),
        from_ms(record.updated_at),
    )


def change_of(action: bulk.Action, options: Mapping[str, Any]) -> bulk.Change:
    """From the options of a record, where the time is text."""
    run_at = options.get("run_at")
    return bulk.Change(action, **{**options, "run_at": datetime.fromisoformat(run_at) if run_at else None})


async def change_selected(queue: Queue, change: bulk.Change, ids: Sequence[str], by: Actor) -> tuple[int, int]:
    """Change the jobs with these ids immediately; returns how many were changed and how many refused."""
    jobs = [job for job in await queue.store.get(ids) if job is not None and job.status in change.applies_to]
    changed = await bulk.change_jobs(queue, change, jobs) if jobs else 0
    await AuditLog(queue).add(
        by,
        change.action,
        filter=f"{len(ids)} selected jobs",
        reason=change.reason,
        changed=changed,
        skipped=len(ids) - changed,
    )
    return changed, len(ids) - changed
