"""What both SQL stores share: every verb that is a script or a plain query. Each says only how to run one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from treadle.errors import InvalidInput, WrongState
from treadle.events import Event
from treadle.job import Job, is_job_id
from treadle.lifecycle import Status
from treadle.policy import duration_ms, format_ms
from treadle.store import hints, listing, scripts
from treadle.store.base import (
    FOREVER,
    CancelRequest,
    Changes,
    Claimed,
    Holding,
    JobRow,
    Listing,
    LiveWorker,
    Moved,
    Record,
    Refusal,
    Settlement,
    Stats,
    Topic,
    Touch,
    job_from_row,
)
from treadle.store.changes import Cursor, Reader, Reading
from treadle.store.foreign import query_with
from treadle.store.queries import load
from treadle.store.scripts import Script

T = TypeVar("T")
Answers = dict[str, Refusal | None]


class RelationalStore(ABC):
    """The verbs of `Store` on top of two primitives: run a script in a transaction, run a query."""

    dialect: str
    hub: hints.Hub

    def __init__(self, stale_after_ms: int) -> None:
        self.stale_after_ms = stale_after_ms
        self.queries = load(self.dialect)

    @abstractmethod
    async def transact(self, make: Callable[[], Script[T]], tell: Sequence[str] = ()) -> T:
        """Run the script that `make` makes in one transaction; then give the hints `tell`."""

    @abstractmethod
    async def query(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Read rows, outside of any transaction."""

    @abstractmethod
    async def read_together(self, make: Callable[[], Reading[T]]) -> T:
        """Run all queries of the reading that `make` makes on one snapshot of the database."""

    async def look_up(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Read rows by their keys: a statement whose plan is the same whatever the values are."""
        return await self.query(sql, values)

    async def glance(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Read a few rows of a small table that is read all the time."""
        return await self.query(sql, values)

    def subscribe(self, wake: Callable[[str], None], *, claims: bool = False) -> Callable[[], None]:
        return self.hub.subscribe(wake, self if claims else None)

    async def _ask(self, name: str, rows: Sequence[Mapping[str, Any]] | None = None) -> list[Any]:
        sql = self.queries[name].sql
        return await self.query(sql, [] if rows is None else [to_json(rows).decode()])

    async def _change(self, name: str, rows: Sequence[Mapping[str, Any]], tell: Sequence[str] = ()) -> list[Any]:
        def single() -> Script[list[Any]]:
            return (yield name, rows)

        return await self.transact(single, tell)

    async def now(self) -> int:
        return int((await self._ask("clock"))[0][0])

    # -- running jobs --------------------------------------------------------------------------

    async def open_lease(self, worker: str, lease_ms: int, serves: Mapping[str, Any] | None = None) -> int:
        row = {"worker": worker, "ms": lease_ms, "serves": to_json(serves or {}).decode()}
        return int((await self._change("open_lease", [row]))[0][0])

    async def extend(self, lease: int, lease_ms: int) -> bool:
        return bool(await self._change("extend_lease", [{"lease": lease, "ms": lease_ms}]))

    async def close_lease(self, lease: int) -> None:
        await self._change("close_lease", [{"lease": lease}])

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        lost: list[Settlement] = []
        if len({one.job.n for one in settlements}) < len(settlements):
            settlements, lost = _only_newest(settlements)
        for lease in sorted({one.job.lease for one in settlements}):
            mine = [one for one in settlements if one.job.lease == lease]
            plain = [one for one in mine if is_plain(one)]
            if plain:
                lost += await self.settle_completed(lease, plain)
            rest = [one for one in mine if not is_plain(one)]
            if rest:
                lost += await self.transact(lambda rest=rest: scripts.settle(rest), _told(rest))  # type: ignore[misc]
        return lost

    @abstractmethod
    async def settle_completed(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        """The everyday ending, fast."""

    async def touch(self, lease: int, touches: Sequence[Touch]) -> list[int]:
        return await self.transact(lambda: scripts.touch(lease, touches))

    async def holdings(self, ids: Sequence[str]) -> list[Holding | None]:
        known = [{"id": id} for id in dict.fromkeys(ids) if is_job_id(id)]
        rows = await self._ask("holdings", known) if known else []
        held = {row[1]: Holding(Claimed(*row[:12]), row[12], row[13] is not None) for row in rows}
        return [held.get(id) for id in ids]

    async def cancel_requests(self, lease: int) -> list[CancelRequest]:
        return [CancelRequest(*row) for row in await self._ask("cancel_requests", [{"lease": lease}])]

    async def release_unknown(self, lease: int, tokens: Sequence[int]) -> int:
        return await self.transact(lambda: scripts.release_unknown(lease, tokens), [hints.READY])

    # -- moving jobs ---------------------------------------------------------------------------

    async def promote(self, limit: int = 1000) -> tuple[int, int | None]:
        wait = (await self._ask("next_due"))[0][0]
        if wait is None or wait > 0:
            return 0, wait
        return await self.transact(lambda: scripts.promote(limit), [hints.READY])

    async def reclaim(self, limit: int = 1000) -> list[Moved]:
        if not await self._ask("any_expired_lease"):
            return []
        return await self.transact(scripts.reclaim, [hints.READY, hints.ENDED])

    async def end_overdue_cancels(self, grace_ms: Mapping[str, int], default_ms: int) -> list[Moved]:
        if not await self._ask("cancelling"):
            return []
        return await self.transact(
            lambda: scripts.end_overdue_cancels(grace_ms, default_ms), [hints.READY, hints.ENDED]
        )

    async def expire_overdue(self, limit: int = 1000) -> list[Moved]:
        if not await self._ask("due_deadlines", [{"top": 1}]):
            return []
        return await self.transact(lambda: scripts.expire_overdue(limit), [hints.READY, hints.ENDED])

    async def cancel(self, ids: Sequence[str], reason: str, uncancelable: Collection[str] = ()) -> list[Job | Refusal]:
        return await self._per_job(
            ids,
            lambda known: scripts.cancel(known, reason, uncancelable),
            [hints.CANCEL, hints.READY, hints.ENDED],
        )

    async def requeue(self, ids: Sequence[str], force: bool = False) -> list[Job | Refusal]:
        return await self._per_job(ids, lambda known: scripts.requeue(known, force, self.stale_after_ms), [hints.READY])

    async def release(self, ids: Sequence[str]) -> list[Job | Refusal]:
        return await self._per_job(ids, scripts.release, [hints.READY])

    async def reschedule(
        self, id: str, *, run_at: int | None, priority: int | None, max_attempts: int | None
    ) -> Job | Refusal:
        def one(known: Sequence[str]) -> Script[Answers]:
            return {id: (yield from scripts.reschedule(id, run_at, priority, max_attempts))}

        return (await self._per_job([id], one, [hints.READY, hints.LATER]))[0]

    async def _per_job(
        self, ids: Sequence[str], make: Callable[[Sequence[str]], Script[Answers]], tell: Sequence[str]
    ) -> list[Job | Refusal]:
        """Change jobs one by one in one transaction, then read those that were changed."""
        known = [id for id in dict.fromkeys(ids) if is_job_id(id)]
        answers = await self.transact(lambda: make(known), tell) if known else {}
        jobs = dict(zip(known, await self.get(known), strict=True))
        result: list[Job | Refusal] = []
        for id in ids:
            refusal = answers.get(id) if id in answers else scripts.not_found(id)
            job = jobs.get(id)
            result.append(_with_status(refusal, job) or job or scripts.not_found(id))
        return result

    async def delete(self, ids: Sequence[str], force: bool = False) -> list[str | Refusal]:
        known = [id for id in dict.fromkeys(ids) if is_job_id(id)]
        answers = await self.transact(lambda: scripts.delete(known, force), [hints.READY]) if known else {}
        refused = [id for id in known if answers[id]]
        jobs = dict(zip(refused, await self.get(refused), strict=True))
        return [
            (_with_status(answers[id], jobs.get(id)) or id) if id in answers else scripts.not_found(id) for id in ids
        ]

    # -- looking -------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        known = [{"id": id} for id in dict.fromkeys(ids) if is_job_id(id)]
        if not known:
            return [None] * len(ids)
        sql, document = listing.by_id(self.queries), to_json(known).decode()
        if connection is None:
            rows = await self.look_up(sql, [document])
        else:
            rows = await query_with(connection, self.dialect, sql, document)
        jobs = {job.id: job for job in map(self._job, rows)}
        return [jobs.get(id) for id in ids]

    def _job(self, row: Any) -> Job:
        return job_from_row(JobRow(*row), self.stale_after_ms, from_json)

    async def list(self, wanted: Listing) -> list[Job]:
        sql, values = listing.page(self.queries, self.dialect, wanted, self.stale_after_ms)
        return [self._job(row) for row in await self.query(sql, values)]

    async def count(self, wanted: Listing, cap: int = 10_000) -> int:
        sql, values = listing.count(self.queries, self.dialect, wanted, self.stale_after_ms, cap)
        return int((await self.query(sql, values))[0][0])

    async def events(self, id: str) -> Sequence[Event] | None:
        if not is_job_id(id) or (await self.get([id]))[0] is None:
            return None
        rows = await self._ask("job_events", [{"id": id}])
        return [
            Event(number, id, type_, source, to, message, from_json(metadata), at)
            for number, type_, source, to, message, metadata, at in rows
        ]

    async def workers(self) -> Sequence[LiveWorker]:
        found = []
        for name, serves, until, running in await self._ask("live_workers"):
            can = from_json(serves)
            found.append(
                LiveWorker(
                    name,
                    can.get("topics", []),
                    can.get("capabilities", []),
                    can.get("slots", 0),
                    until,
                    running,
                )
            )
        return found

    async def obstacles(self, id: str) -> Sequence[str]:
        if not is_job_id(id):
            return []
        reasons = []
        behind = await self._ask("held_behind", [{"id": id}])
        if behind:
            limit, _, waiting = behind[0]
            names = ", ".join(row[1] for row in behind)
            reasons.append(f"its key allows {limit} at once: it waits for job {names} ({waiting} wait before it)")
        for limit, window, used in await self._ask("rate_used", [{"id": id}]):
            if used >= limit:
                reasons.append(f"its topic's rate limit of {limit} per {format_ms(window)} is used up")
        return reasons

    async def changes(
        self, cursor: Cursor | None = None, limit: int = 1000, wanted: Listing | str | None = None
    ) -> Changes:
        reader = Reader(self.dialect, self.queries, self.stale_after_ms, self._job)
        return await self.read_together(lambda: reader.read(cursor, limit, wanted))

    async def stats(self, topic: str | None = None, since: int | None = None) -> Stats:
        minute = -(2**40) if since is None else since // 60_000
        topics: dict[str, dict[str, int]] = {}
        run_ms = 0
        for name, status, count in await self._ask("live_counts"):
            topics.setdefault(name, dict.fromkeys(Status, 0))[status] = int(count)
        for name, status, count, ran in await self._ask("ended_counts", [{"minute": minute}]):
            topics.setdefault(name, dict.fromkeys(Status, 0))[status] = int(count)
            if status == Status.COMPLETED and topic in (None, name):
                run_ms += int(ran)
        if topic is not None:
            topics = {name: counts for name, counts in topics.items() if name == topic}
        totals = {status.value: sum(counts[status] for counts in topics.values()) for status in Status}
        return Stats(totals, run_ms, {name: {s.value: c[s] for s in Status} for name, c in topics.items()})

    # -- topics, templates, leadership, retention ----------------------------------------------

    async def pause(self, topic: str, until: int = FOREVER) -> None:
        await self._change("pause_topic", [{"topic": topic, "until": until}])

    async def resume(self, topic: str) -> None:
        await self._change("pause_topic", [{"topic": topic, "until": None}], [hints.READY])

    async def topics(self) -> Sequence[Topic]:
        counts = (await self.stats()).topics
        return [
            Topic(
                name,
                paused,
                counts.get(name, {}).get(Status.PENDING, 0),
                counts.get(name, {}).get(Status.PROCESSING, 0),
            )
            for name, paused in await self._ask("list_topics")
        ]

    async def save_templates(self, definitions: Mapping[str, tuple[str, int | None]]) -> dict[str, int]:
        rates: dict[str, tuple[int | None, int | None]] = {}
        for topic, (text, _) in definitions.items():
            rate = from_json(text).get("rate")
            rates[topic] = (rate["n"], duration_ms(rate["perSeconds"])) if rate else (None, None)
        return await self.transact(lambda: scripts.save_templates(definitions, rates))

    async def templates(self) -> dict[str, tuple[str, int]]:
        return {topic: (text, version) for topic, text, version in await self._ask("get_templates")}

    async def elect(self, name: str, holder: str, ttl_ms: int) -> bool:
        return bool(await self._change("elect", [{"name": name, "holder": holder, "ms": ttl_ms}]))

    async def resign(self, name: str, holder: str) -> None:
        await self._change("resign", [{"name": name, "holder": holder}])

    async def prune(self, ended_before_ms: int, limit: int = 1000) -> int:
        return await self.transact(lambda: scripts.prune(ended_before_ms, limit))

    async def tidy(self) -> None:
        await self.transact(scripts.tidy)

    # -- records -------------------------------------------------------------------------------

    async def records(self, wanted: Sequence[tuple[str, str]]) -> Sequence[Record | None]:
        rows = [{"kind": kind, "id": id} for kind, id in dict.fromkeys(wanted) if _storable(kind, id)]
        sql, document = self.queries["get_records"].sql, to_json(rows).decode()
        found = [Record(*row) for row in await self.glance(sql, [document])] if rows else []
        by_id = {(record.kind, record.id): record for record in found}
        return [by_id.get(one) for one in wanted]

    async def find_record(self, kind: str, key: str) -> Record | None:
        rows = await self._ask("find_record", [{"kind": kind, "key": key}]) if _storable(kind, key) else []
        return Record(*rows[0]) if rows else None

    async def list_records(self, kind: str, limit: int = 1000) -> Sequence[Record]:
        rows = await self._ask("list_records", [{"kind": kind, "top": limit}]) if _storable(kind) else []
        return [Record(*row) for row in rows]

    async def put_record(self, kind: str, id: str, key: str, body: str, version: int | None = None) -> Record | None:
        if not _storable(kind, id, key, body):
            raise InvalidInput("a record's text has a NUL character or half a surrogate pair; no database can store it")
        row = {"kind": kind, "id": id, "key": key, "body": body, "version": version}
        rows = await self._change("add_record" if version is None else "change_record", [row])
        return Record(*rows[0]) if rows else None

    async def delete_record(self, kind: str, id: str) -> bool:
        return _storable(kind, id) and bool(await self._change("drop_record", [{"kind": kind, "id": id}]))


def _with_status(refusal: Refusal | None, job: Job | None) -> Refusal | None:
    """A refusal for the job's state names that state."""
    if refusal and job and isinstance(refusal.error, WrongState):
        refusal.error.data["status"] = str(job.status)
    return refusal


def _storable(*texts: str) -> bool:
    """Whatever else is asked for can't be there; the databases would fail over it in different ways."""
    try:
        return b"\x00" not in "".join(texts).encode()
    except UnicodeEncodeError:
        return False


def is_plain(one: Settlement) -> bool:
    return one.job.flags == 0 and one.transition.to is Status.COMPLETED and one.transition.event is None


def _only_newest(settlements: Sequence[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """A worker may report a job that it lost and got again twice at once: only the newest claim can be live."""
    tokens: dict[int, int] = {}
    for one in settlements:
        tokens[one.job.n] = max(one.job.token, tokens.get(one.job.n, 0))
    newest = [one for one in settlements if one.job.token == tokens[one.job.n]]
    return newest, [one for one in settlements if one.job.token < tokens[one.job.n]]


def _told(settlements: Sequence[Settlement]) -> list[str]:
    """Whom these endings may concern."""
    tell = [hints.ENDED]
    if any(one.transition.to is Status.PENDING and one.transition.delay_ms for one in settlements):
        tell.append(hints.LATER)
    if any(one.job.flags or one.transition.to is Status.PENDING for one in settlements):
        tell.append(hints.READY)
    return tell
