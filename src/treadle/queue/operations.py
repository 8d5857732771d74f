"""Bulk changes that run as operations, with progress that survives a restart.

An operation is a record: what to do, the search that selected the jobs, the instant of the request (`as_of`), its
place and its counts. A job that moved after that instant is left alone, so a batch that runs again after a crash
changes nothing twice. The process that received the request runs the operation and saves the record every second. Once
a record has not been saved for a while, the maintenance leader takes it over with a compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json
from uuid_utils import uuid7

from treadle.insights.search import STALE, JobSearch
from treadle.model.errors import InvalidInput, JobNotFound, StoreUnavailable, TreadleError
from treadle.model.job import from_ms, rfc3339
from treadle.model.other_names import unknown_status
from treadle.model.status import Status
from treadle.queue import bulk
from treadle.queue.audit import Actor, AuditLog
from treadle.queue.bulk import BulkPosition
from treadle.store.values import Record, RecordWrite
from treadle.store.views import Listing

if TYPE_CHECKING:
    from treadle.queue.queue import Queue

log = logging.getLogger("treadle.operations")

KIND = "operations"
SAVE_EVERY_S = 1.0
ABANDONED_MS = 10_000
KEPT_MS = 30 * 24 * 3600 * 1000
RUNNING, DONE, STOPPED = "running", "done", "stopped"


@dataclass(frozen=True, slots=True)
class DryRunCount:
    """One line of a dry run: a number of jobs and what would happen to them."""

    count: int
    status: str
    skipped: bool


@dataclass(slots=True)
class Operation:
    id: str
    change: bulk.BulkChange
    search: JobSearch
    as_of: datetime
    by: Actor
    expected: int
    state: str = RUNNING
    place: BulkPosition = field(default_factory=BulkPosition)
    changed: int = 0
    refused: int = 0
    version: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    stop: bool = field(default=False, compare=False)

    @property
    def action(self) -> bulk.Action:
        return self.change.action

    @property
    def percent(self) -> int:
        if self.state == DONE:
            return 100
        return min(99, int((self.changed + self.refused) * 100 / self.expected)) if self.expected else 0

    def body(self) -> str:
        return to_json(
            {
                "change": {**asdict(self.change), "run_at": rfc3339(self.change.run_at)},
                "search": asdict(self.search),
                "asOf": rfc3339(self.as_of),
                "by": asdict(self.by),
                "expected": self.expected,
                "state": self.state,
                "place": self.place,
                "changed": self.changed,
                "refused": self.refused,
            }
        ).decode()


def statuses_for(change: bulk.BulkChange, search: JobSearch) -> list[Status]:
    """The states in which the change is possible, limited to the ones in the search."""
    wanted = search.narrowed.status
    if wanted == STALE:
        # A stale job can be requeued after any outcome.
        return [status for status in bulk.ENDINGS if change.action == "requeue" or status in change.applies_to]
    return [status for status in change.applies_to if wanted in ("", status)]


def _statuses(narrowed: JobSearch) -> list[Status]:
    if narrowed.status == STALE:
        return list(bulk.ENDINGS)
    if narrowed.status and narrowed.status not in list(Status):
        raise InvalidInput(f"status: {unknown_status(narrowed.status)}", field="status")
    return [Status(narrowed.status)] if narrowed.status else list(Status)


async def dry_run(queue: Queue, change: bulk.BulkChange, search: JobSearch, as_of: datetime) -> list[DryRunCount]:
    """How many jobs would be changed and how many left alone, by status."""
    possible = statuses_for(change, search)
    found = search.narrowed
    statuses = _statuses(found)
    counts = [await queue.store.count(found.frozen(status, as_of), 2**31) for status in statuses]
    return [
        DryRunCount(count, status.value, status not in possible)
        for status, count in zip(statuses, counts, strict=True)
        if count
    ]


class Operations:
    """The operations of one server process; `close` leaves them unfinished for the next process."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._running: dict[str, tuple[Operation, asyncio.Task[None]]] = {}

    async def start(
        self, change: bulk.BulkChange, search: JobSearch, as_of: datetime, by: Actor, expected: int
    ) -> Operation:
        operation = Operation(str(uuid7()), change, search, as_of, by, expected)
        saved = await self._save(operation)
        assert saved, "two random ids can't be the same"
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
            if operation.state == RUNNING:
                operation.state = STOPPED
                await self._save(operation)

    async def newest(self, limit: int = 50) -> list[Operation]:
        return [_operation(record) for record in await self._queue.store.find_records(KIND, newest=True, limit=limit)]

    async def take_over(self) -> str:
        """Continue operations that another process abandoned, and forget the ones that ended long ago. Returns what it
        did, in words."""
        store, resumed = self._queue.store, 0
        for record in await store.find_records(KIND, due_before=await store.now()):
            operation = _operation(record)
            if operation.state != RUNNING:
                await store.delete_records([(KIND, record.id)])
            elif record.id not in self._running and await self._save(operation):
                log.info("continuing operation %s: %s", operation.id, operation.action)
                self._run(operation)
                resumed += 1
        return f"{resumed:,} resumed" if resumed else "nothing to resume"

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
            except TreadleError as error:  # such as a search that takes too long: it would fail again
                log.error("operation %s was stopped: %s", operation.id, error)
                operation.stop = True
            if operation.stop and operation.state == RUNNING:
                operation.state = STOPPED
            if operation.state != RUNNING:
                await self._note(operation)  # before the end is saved, or a crash in between would lose it
            if operation.state != RUNNING or loop.time() - saved > SAVE_EVERY_S:
                if not await self._save(operation):
                    return  # another process stopped it or took it over
                saved = loop.time()

    async def _note(self, operation: Operation) -> None:
        await AuditLog(self._queue).add(
            operation.by,
            operation.action,
            filter=operation.search.words,
            reason=operation.change.reason,
            changed=operation.changed,
            skipped=operation.refused,
            id=operation.id,
        )

    async def _batch(self, operation: Operation) -> None:
        batch = await bulk.change_batch(self._queue, operation.change, _listings(operation), operation.place)
        operation.changed += batch.changed
        operation.refused += batch.jobs - batch.changed
        if batch.after is None:
            operation.state = DONE
        else:
            operation.place = batch.after

    async def _save(self, operation: Operation) -> bool:
        """Due: when the leader may take it over, or forget it."""
        store = self._queue.store
        due = await store.now() + (ABANDONED_MS if operation.state == RUNNING else KEPT_MS)
        write = RecordWrite(KIND, operation.id, operation.id, operation.body(), due, operation.version)
        (record,) = await store.write_records([write])
        if record is not None:
            operation.version = record.version
            operation.created_at, operation.updated_at = from_ms(record.created_at), from_ms(record.updated_at)
        return record is not None


def _listings(operation: Operation) -> list[Listing]:
    """One for each status in which the change is possible."""
    search, statuses = operation.search.narrowed, statuses_for(operation.change, operation.search)
    return [search.frozen(status, operation.as_of) for status in statuses]


def _operation(record: Record) -> Operation:
    body = from_json(record.body)
    return Operation(
        record.id,
        _change(body["change"]),
        JobSearch(**body["search"]),
        datetime.fromisoformat(body["asOf"]),
        Actor(**body["by"]),
        body["expected"],
        body["state"],
        BulkPosition(*body["place"]),
        body["changed"],
        body["refused"],
        record.version,
        from_ms(record.created_at),
        from_ms(record.updated_at),
    )


def _change(saved: Mapping[str, Any]) -> bulk.BulkChange:
    run_at = saved["run_at"]
    return bulk.BulkChange(**{**saved, "run_at": datetime.fromisoformat(run_at) if run_at else None})


async def change_selected(queue: Queue, change: bulk.BulkChange, ids: Sequence[str], by: Actor) -> tuple[int, int]:
    """Change the jobs with these ids immediately; returns how many were changed and how many refused."""
    jobs = [job for job in await queue.store.get(ids) if job is not None and job.status in change.applies_to]
    changed = await bulk.change_jobs(queue, change, [job.id for job in jobs]) if jobs else 0
    await AuditLog(queue).add(
        by,
        change.action,
        filter=f"{len(ids)} selected jobs",
        reason=change.reason,
        changed=changed,
        skipped=len(ids) - changed,
    )
    return changed, len(ids) - changed
