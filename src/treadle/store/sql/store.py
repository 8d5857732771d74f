"""What both SQL stores share: every verb that is a script or a plain query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json, to_json

from treadle.model.errors import InvalidInput, Refused, SchemaMismatch, StoreBusy
from treadle.model.events import Event
from treadle.model.job import Job, is_job_id
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.model.topic_patterns import is_pattern
from treadle.policy.retention import Ages, EndedClass, Rules
from treadle.policy.saved_endpoint import KIND as WEBHOOK_KIND
from treadle.store import batches, secrets, wakeups
from treadle.store.sql import lists, output, overview, scripts, settling
from treadle.store.sql.changes import Cursor, Reader, Reading
from treadle.store.sql.join import query_with
from treadle.store.sql.rows import claimed_steps, job_from_row, step_from_row, storable, view_row
from treadle.store.sql.scripts import LOCKED_MS, Script
from treadle.store.sql.webhooks import WebhookVerbs
from treadle.store.values import (
    NO_CHANGES,
    Advanced,
    Answer,
    CancelRequest,
    Checkpoint,
    ChildResult,
    Claimed,
    ClaimedSteps,
    DutyReport,
    EndedAt,
    EndedJob,
    Graces,
    Holding,
    Inserted,
    Judge,
    MadeChildren,
    NewChildren,
    NewJob,
    OutputWrite,
    Reaped,
    Record,
    RecordWrite,
    Refusal,
    Renewed,
    Settlement,
    StaleJob,
    StepKey,
    TopicOptions,
    Touch,
)
from treadle.store.views import (
    ANY_SIZE,
    FOREVER,
    AppliedMigration,
    Changes,
    FailedGroup,
    History,
    Leadership,
    Listing,
    LiveWorker,
    Obstacle,
    OutputPage,
    OutputState,
    ProcessId,
    Stats,
    StepPage,
    Topic,
    Wait,
)
from treadle.telemetry.outages import OutageLog

# PostgreSQL takes longer to find a message among others the more there are.
TOUCHED_TOGETHER = 200

# Of a kind that is read whole.
MOST_RECORDS = 100_000


class SqlStore(WebhookVerbs):
    """The verbs of `Store`."""

    hub: wakeups.Wakeups
    outage: OutageLog

    def __init__(self, stale_after_ms: int) -> None:
        super().__init__()
        self.retention = Rules(stale_after_ms)
        self._secrets = secrets.Secrets()

    def subscribe(self, wake: Callable[[str], None], *, claims: bool = False) -> Callable[[], None]:
        return self.hub.subscribe(wake, self if claims else None)

    def insert_here(self, jobs: Sequence[NewJob]) -> list[Inserted | Refused] | None:
        return None

    async def stored(self, jobs: Sequence[NewJob]) -> list[Any]:
        """The ones that exist: id, topic, payload, time of creation."""
        document = to_json([{"id": job.id} for job in jobs]).decode()
        return await self.read_by_key(self.queries["stored_jobs"].sql, [document])

    async def now(self) -> int:
        return int((await self._ask("clock"))[0][0])

    # -- migrations ----------------------------------------------------------------------------

    @abstractmethod
    async def missing_migrations(self) -> list[str]: ...

    @abstractmethod
    async def apply_migrations(self) -> list[str]:
        """Apply the missing ones; another process may have done so by now."""

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        missing = await self.missing_migrations()
        return missing if dry_run or not missing else await self.apply_migrations()

    async def migrations(self) -> Sequence[AppliedMigration]:
        return [AppliedMigration(*row) for row in await self._ask("applied_migrations")]

    async def bring_up_to_date(self, migrate: bool) -> None:
        """Migrate, or raise SchemaMismatch if that is necessary."""
        if migrate:
            await self.migrate()
        elif missing := await self.missing_migrations():
            raise SchemaMismatch(f"the database lacks {', '.join(missing)}; run treadle migrate", missing=missing)

    # -- running jobs --------------------------------------------------------------------------

    async def open_lease(self, worker: str, lease_ms: int, serves: Mapping[str, Any] | None = None) -> int:
        row = {"worker": worker, "ms": lease_ms, "serves": to_json(serves or {}).decode()}
        [(lease, known)] = await self._change("open_lease", [row])
        if known is None:
            await self._change("add_worker", [row])
            await self._change("name_lease", [{"lease": lease}])
        return int(lease)

    async def renew(self, lease: int, lease_ms: int | None = None) -> Renewed | None:
        rows = await self._change("renew_lease", [{"lease": lease, "ms": lease_ms}])
        if not rows:
            return None
        until, cancels, draining = rows[0]
        return Renewed(until, [CancelRequest(*one) for one in from_json(cancels or "[]")], bool(draining))

    async def close_lease(self, lease: int, owner: ProcessId | None = None) -> bool:
        if owner is None:
            return bool(await self._change("close_lease", [{"lease": lease}]))
        return bool(await self._change("close_lease_of", [{"lease": lease, **owner._asdict()}]))

    async def leases_of(self, home: str) -> Sequence[tuple[int, ProcessId]]:
        rows = await self._ask("leases_of", [{"home": home}])
        return [(lease, ProcessId(home, int(pid), int(started))) for lease, pid, started in rows]

    async def settle(
        self, settlements: Sequence[Settlement], *, refused: list[Settlement] | None = None
    ) -> list[Settlement]:
        lost: list[Settlement] = []
        if len({one.job.n for one in settlements}) < len(settlements):
            settlements, lost = batches.only_newest(settlements)
        hooked = await self.hooked_topics()
        plain = [one for one in settlements if settling.is_plain(one, hooked)]
        for lease, mine in batches.by_lease(plain):
            lost += await self.settle_completed(lease, mine)
        if len(plain) < len(settlements):
            others = [one for one in settlements if not settling.is_plain(one, hooked)]
            flows = [one for one in others if settling.is_done_flow(one, hooked)]
            for lease, mine in batches.by_lease(flows):
                lost += await self.settle_flows(lease, mine)
            if len(flows) < len(others):
                others = [one for one in others if not settling.is_done_flow(one, hooked)]
                lost += await settling.settle(self, others, [] if refused is None else refused)
        return lost

    async def settle_flows(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Completed jobs with their last steps."""
        return await self.transact(lambda: scripts.settle(settlements), batches.hints(settlements))

    @abstractmethod
    async def settle_completed(self, lease: int, settlements: Sequence[Settlement]) -> list[Settlement]:
        """The fast path for plain completions."""

    async def touch(self, lease: int, touches: Sequence[Touch]) -> list[tuple[int, int]]:
        known: set[tuple[int, int]] = set()
        newest = batches.once_per_job(touches)
        for i in range(0, len(newest), TOUCHED_TOGETHER):
            rows = [one._asdict() | {"lease": lease} for one in newest[i : i + TOUCHED_TOGETHER]]
            known.update((row[0], row[1]) for row in await self._change("touch_running", rows))
        return [(one.n, one.token) for one in touches if (one.n, one.token) not in known]

    async def checkpoint(self, lease: int, checkpoints: Sequence[Checkpoint]) -> list[tuple[int, int]]:
        merged = batches.once_per_job(checkpoints)
        if any(one.jobs for one in merged):
            return await self._checkpoint_with_jobs(lease, merged)
        lost = await self.transact(lambda: scripts.checkpoint(lease, merged))
        return batches.not_written(checkpoints, {(one.n, one.token) for one in merged} - set(lost))

    async def _checkpoint_with_jobs(self, lease: int, checkpoints: Sequence[Checkpoint]) -> list[tuple[int, int]]:
        if len(checkpoints) > 1:
            raise ValueError("a checkpoint with follow-up jobs comes alone: its refusal undoes all that is written")
        one = checkpoints[0]
        hints = wakeups.of_new(one.jobs)
        return await self.transact_or_busy(lambda: scripts.checkpoint_and_follow_up(lease, one), hints)

    async def write_output(self, lease: int, writes: Sequence[OutputWrite]) -> list[tuple[int, int]]:
        return await self.transact(lambda: scripts.write_output(lease, writes), [wakeups.OUTPUT]) if writes else []

    async def claimed_steps(self, ns: Sequence[int]) -> dict[int, ClaimedSteps]:
        rows = [{"n": n} for n in sorted(set(ns))]
        sql, document = self.queries["claimed_steps"].sql, to_json(rows).decode()
        return claimed_steps(await self.read_by_key(sql, [document]) if rows else [])

    async def step_results(self, n: int, steps: Sequence[StepKey]) -> dict[StepKey, str]:
        rows = await self._ask("step_results", [{"n": n, "name": one.name, "key": one.key} for one in steps])
        return {StepKey(name, key): text for name, key, text in rows if text is not None}

    async def step_items(self, n: int, step: str) -> list[tuple[str, StepState, int]]:
        rows = await self._ask("step_items", [{"n": n, "name": step}])
        return [(key, StepState(state), attempt) for key, state, attempt in rows]

    async def item_results(self, n: int, step: str, first: int, last: int) -> list[tuple[int, str | None]]:
        rows = await self._ask("item_results", [{"n": n, "name": step, "first": first, "last": last}])
        return [(item, text) for item, text in rows]

    async def answer(self, answers: Sequence[Answer]) -> list[Refusal | None]:
        known = [one for one in answers if is_job_id(one.id)]
        answering = scripts.Answering({}, 0)
        if known:
            ids = list(dict.fromkeys(one.id for one in known))
            answering = await self.transact_patiently(ids, lambda: scripts.answer(known))
            self._tell([wakeups.READY, wakeups.ENDED] if answering.woken else [wakeups.ENDED])
        refusals = iter(answering.refusals.get(i) for i in range(len(known)))
        return [next(refusals) if is_job_id(one.id) else scripts.not_found(one.id) for one in answers]

    async def make_children(self, lease: int, wanted: NewChildren) -> MadeChildren | None:
        jobs = [one.job for one in wanted.children]
        return await self.transact_or_busy(lambda: scripts.make_children(lease, wanted), wakeups.of_new(jobs))

    async def child_results(self, n: int, step: str, after: int = -1, limit: int = 1000) -> list[ChildResult]:
        rows = await self._ask("child_results", [{"n": n, "name": step, "place": after, "top": limit}])
        return [
            ChildResult(key, place, StepState(state), result, error, child)
            for key, place, state, result, error, child in rows
        ]

    async def held_by(self, ids: Sequence[str]) -> list[Holding | None]:
        known = [{"id": id} for id in dict.fromkeys(ids) if is_job_id(id)]
        rows = await self._ask("held_by", known) if known else []
        held = {row[1]: Holding(Claimed(*row[:12]), row[12], row[13] is not None) for row in rows}
        return [held.get(id) for id in ids]

    async def split_lease(self, lease: int, jobs: Sequence[Claimed], lease_ms: int) -> list[int]:
        return await self.transact(lambda: scripts.split_lease(lease, jobs, lease_ms)) if jobs else []

    async def release_unknown(self, lease: int, tokens: Sequence[int]) -> int:
        return await self.transact(lambda: scripts.release_unknown(lease, tokens), [wakeups.READY])

    # -- moving jobs ---------------------------------------------------------------------------

    async def advance(self, limit: int = 1000) -> Advanced:
        wait, overdue, held, replaced = (await self._ask("next_due"))[0]
        if (wait is None or wait > 0) and overdue is None and held is None and replaced is None:
            return Advanced(0, [], wait)
        advanced = await self.transact(lambda: scripts.advance(limit), [wakeups.READY, wakeups.ENDED])
        if replaced is not None and not await self._stop_replaced():
            again = LOCKED_MS if advanced.next_in_ms is None else min(advanced.next_in_ms, LOCKED_MS)
            advanced = advanced._replace(next_in_ms=again)
        return advanced

    async def _stop_replaced(self) -> bool:
        """In separate transactions: one of them may be locked. Returns False then."""
        tell = [wakeups.CANCEL, wakeups.READY, wakeups.ENDED]
        try:
            while await self.transact_or_busy(scripts.stop_replaced, tell):
                pass
        except StoreBusy:
            return False
        return True

    async def reap(self, graces: Graces, limit: int = 1000) -> Reaped:
        if not await self._ask("anything_to_reap"):
            return Reaped([])
        tell = [wakeups.READY, wakeups.LATER, wakeups.ENDED]
        return await self.transact(lambda: scripts.reap(graces, limit), tell)

    async def steer(
        self, ids: Sequence[str], judge: Judge, *, dry_run: bool = False, changed: Mapping[str, NewJob] = NO_CHANGES
    ) -> list[Job | Refusal | None]:
        known = [id for id in dict.fromkeys(ids) if is_job_id(id)]
        if not known:
            return [scripts.not_found(id) for id in ids]
        answers = await self._steer(known, judge, dry_run, changed)
        jobs = dict(zip(known, await self.get(known), strict=True))
        return [answers.get(id, scripts.not_found(id)) or jobs[id] for id in ids]

    async def _steer(
        self, known: Sequence[str], judge: Judge, dry_run: bool, changed: Mapping[str, NewJob]
    ) -> dict[str, Refusal | None]:
        def script() -> Script[scripts.Steering]:
            steer = scripts.steer(known, judge, self.retention, dry_run=dry_run, changed=changed)
            return scripts.then_wake(steer)

        try:
            steering = await self.transact_patiently(known, script)
        except scripts.Undone as undone:
            return undone.steering.answers
        self._tell(sorted(steering.hints))
        if steering.may_cancel_children and not await self._stop_replaced():
            self._tell([wakeups.LATER])
        return steering.answers

    # -- looking -------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        known = [{"id": id} for id in dict.fromkeys(ids) if is_job_id(id)]
        if not known:
            return [None] * len(ids)
        sql, document = lists.by_id(self.queries), to_json(known).decode()
        if connection is None:
            rows = await self.read_by_key(sql, [document])
        else:
            rows = await query_with(connection, self.dialect, sql, document)
        found = await self._shown([self._job(row) for row in rows], connection)
        jobs = {job.id: job for job in found}
        return [jobs.get(id) for id in ids]

    async def _shown(self, jobs: list[Job], connection: Any = None) -> list[Job]:
        """Without what is secret. `connection`: look up there what that is, because a blocking caller can't wait for
        another one."""
        return await self._secrets.hide_in(jobs, lambda names: self._records_by(connection, names))

    async def _records_by(self, connection: Any, wanted: secrets.Names) -> Sequence[Record]:
        if connection is None:
            return [record for record in await self.get_records(wanted) if record]
        document = to_json([{"kind": kind, "id": id} for kind, id in wanted]).decode()
        rows = await query_with(connection, self.dialect, self.queries["get_records"].sql, document)
        return [Record(*row) for row in rows]

    async def _check_secrets(self, wanted: Listing) -> None:
        await secrets.check(wanted.condition, lambda kind: self.find_records(kind, limit=MOST_RECORDS))

    def _job(self, row: Any) -> Job:
        return job_from_row(view_row(row), self.retention, from_json)

    async def list(self, wanted: Listing) -> list[Job]:
        def page() -> Reading[list[Job]]:
            rows = yield lists.page(self.queries, self.dialect, wanted, self.retention)
            return [self._job(row) for row in rows]

        await self._check_secrets(wanted)
        return await self._shown(await self.search(page))

    async def select(self, wanted: Listing) -> Sequence[tuple[int, str]]:
        def selected() -> Reading[Sequence[tuple[int, str]]]:
            rows = yield lists.select(self.queries, self.dialect, wanted, self.retention)
            return [(int(n), id) for n, id in rows]

        await self._check_secrets(wanted)
        return await self.search(selected)

    async def count(self, wanted: Listing, cap: int = 10_000) -> int:
        def counted() -> Reading[int]:
            rows = yield lists.count(self.queries, self.dialect, wanted, self.retention, cap)
            return int(rows[0][0])

        await self._check_secrets(wanted)
        return await self.search(counted)

    async def events(self, id: str) -> Sequence[Event] | None:
        if not is_job_id(id) or (job := (await self.get([id]))[0]) is None:
            return None
        rows = await self._ask("job_events", [{"id": id}])
        events = [
            Event(number, id, type_, source, to, message, from_json(metadata), at)
            for number, type_, source, to, message, metadata, at in rows
        ]
        return await self._secrets.hide_in_events(events, job, lambda names: self._records_by(None, names))

    async def steps(
        self,
        id: str,
        step: str,
        offset: int = 0,
        limit: int = 100,
        max_result_bytes: int = ANY_SIZE,
        *,
        failing_first: bool = False,
    ) -> StepPage | None:
        if not is_job_id(id) or not storable(step):
            return None
        [(total, known)] = await self._ask("count_step", [{"id": id, "name": step}])
        page = {"id": id, "name": step, "most": max_result_bytes, "top": limit, "skip": offset}
        rows = await self._ask("step_page", [page | {"failing": int(failing_first)}]) if total else []
        return StepPage([step_from_row(row) for row in rows], int(total)) if known else None

    async def output(self, id: str, channel: str, after: int = 0, max_bytes: int = 262_144) -> OutputPage | None:
        return await output.page(self._ask, id, channel, after, max_bytes)

    async def output_states(self, ids: Sequence[str]) -> dict[str, OutputState]:
        return await output.states(self._ask, ids)

    async def workers(self, named: str | None = None) -> Sequence[LiveWorker]:
        return await overview.workers(self._ask, named)

    async def drain(self, worker: str, draining: bool = True) -> bool:
        row = {"worker": worker, "draining": draining}
        return bool(await self._change("drain_worker", [row], [wakeups.CANCEL]))

    async def obstacles(self, id: str) -> Sequence[Obstacle]:
        return await overview.obstacles(self._ask, id) if is_job_id(id) else []

    async def changes(
        self, cursor: Cursor | None = None, limit: int = 1000, wanted: Listing | Sequence[str] | None = None
    ) -> Changes:
        reader = Reader(self.dialect, self.queries, self.retention, self._job)
        if isinstance(wanted, Listing):
            await self._check_secrets(wanted)
            found = await self.search(lambda: reader.read(cursor, limit, wanted), together=True)
        else:
            ids = None if wanted is None else [id for id in wanted if is_job_id(id)]
            found = await self.read_snapshot(lambda: reader.read(cursor, limit, ids))
        told = {id(job): job for job in (*(change.job for change in found.events if change.job), *(found.jobs or ()))}
        await self._shown([*told.values()])
        return found

    async def stats(
        self,
        topic: str | None = None,
        since: int | None = None,
        *,
        live: bool = True,
        among: Listing | None = None,
        cap: int = 10_000,
    ) -> Stats:
        if among is None:
            return await overview.stats(self._ask, topic, since, live)
        await self._check_secrets(among)
        found = {
            status: await self._by_topic(replace(among, topic=topic, status=status, ended_since=since), cap)
            for status in Status
        }
        names = sorted({name for topics in found.values() for name in topics})
        return Stats.of({name: {status: found[status].get(name, 0) for status in Status} for name in names})

    async def _by_topic(self, wanted: Listing, cap: int) -> dict[str, int]:
        def counted() -> Reading[dict[str, int]]:
            rows = yield lists.count_by_topic(self.queries, self.dialect, wanted, self.retention, cap)
            return {topic: int(count) for topic, count in rows}

        return await self.search(counted)

    async def history(self, since: int, step_minutes: int) -> History:
        return await overview.history(self._ask, since, step_minutes)

    async def failed_groups(self, newest: int) -> Sequence[FailedGroup]:
        rows = await self._ask("failed_groups", [{"top": newest}])
        return [FailedGroup(group, id, from_json(ended)) for group, id, ended in rows]

    async def waits(self, most: int) -> Sequence[Wait]:
        return await overview.waits(self._ask, most)

    # -- topics, leadership, retention ----------------------------------------------

    async def pause(self, topic: str, until: int = FOREVER) -> None:
        if is_pattern(topic):
            await self.transact(lambda: scripts.keep_pause(topic, until))
            await self.transact(lambda: scripts.pause_group(topic, until), [] if until else [wakeups.READY])
            return
        await self._change("pause_topic", [{"topic": topic, "until": until or None}], [] if until else [wakeups.READY])

    async def topics(self, *, backlog: bool = False) -> Sequence[Topic]:
        return await overview.topics(self._ask, backlog)

    async def elect(self, name: str, holder: str, ttl_ms: int, duties: Sequence[DutyReport] = ()) -> bool:
        row = {"name": name, "holder": holder}
        if not ttl_ms:
            return bool(await self._change("resign", [row]))
        report = [one._asdict() for one in duties]
        return bool(await self._change("elect", [{**row, "ms": ttl_ms, "duties": report}]))

    async def leaders(self) -> Sequence[Leadership]:
        return [
            Leadership(name, holder, until, since, reported, [DutyReport(**one) for one in from_json(duties or "[]")])
            for name, holder, until, since, reported, duties in await self._ask("leaders")
        ]

    async def topic_ages(self) -> Mapping[str, Ages]:
        return {topic: Ages(stale, delete) for topic, stale, delete in await self._ask("topic_ages")}

    async def first_ended(self, until: int) -> int | None:
        found = (await self._ask("first_ended", [{"until": until}]))[0][0]
        return None if found is None else int(found)

    async def ended_jobs(self, after: EndedAt, until: int, limit: int = 1000) -> Sequence[EndedJob]:
        row = {"at": after.ended_at, "after": after.n, "until": until, "top": limit}
        rows = await self._ask("ended_jobs", [row])
        return [EndedJob(n, id, topic, Status(status), at) for n, id, topic, status, at in rows]

    async def count_old(self, ended: EndedClass, age_ms: int, limit: int) -> int:
        named = ended.topics if ended.topics is not None else ended.other_topics
        rows: list[dict[str, Any]] = [{"age": age_ms, "top": limit, "named": int(ended.topics is not None)}]
        rows += [{"status": status} for status in ended.statuses] + [{"topic": topic} for topic in named]
        return int((await self._ask("count_old", rows))[0][0])

    async def stale_marks(self) -> Mapping[tuple[str, str], EndedAt]:
        return {(topic, status): EndedAt(*place) for topic, status, *place in await self._ask("stale_marks")}

    async def mark_stale(self, jobs: Sequence[StaleJob]) -> int:
        return await self.transact(lambda: scripts.mark_stale(jobs, self.retention)) if jobs else 0

    async def prune(
        self, ended_before_ms: int, limit: int = 1000, ns: Sequence[int] | None = None, *, dry_run: bool = False
    ) -> int:
        if dry_run:
            return len(await self._ask("old_outcomes", [{"age": ended_before_ms, "top": limit}]))
        return await self.transact(lambda: scripts.prune(ended_before_ms, limit, ns))

    async def forget(self, age_ms: int) -> None:
        await self.transact(lambda: scripts.forget(age_ms))

    async def prune_output(self, ended_before_ms: int, limit: int = 1000) -> int:
        return await self.transact(lambda: scripts.prune_output(ended_before_ms, limit))

    async def tidy(self) -> None:
        await self.transact(scripts.tidy)

    # -- records -------------------------------------------------------------------------------

    async def get_records(self, wanted: Sequence[tuple[str, str]]) -> Sequence[Record | None]:
        rows = [{"kind": kind, "id": id} for kind, id in dict.fromkeys(wanted) if storable(kind, id)]
        sql, document = self.queries["get_records"].sql, to_json(rows).decode()
        found = [Record(*row) for row in await self.read_small(sql, [document])] if rows else []
        by_id = {(record.kind, record.id): record for record in found}
        return [by_id.get(one) for one in wanted]

    async def find_records(
        self,
        kind: str,
        *,
        key: str | None = None,
        due_before: int | None = None,
        newest: bool = False,
        limit: int = 1000,
    ) -> Sequence[Record]:
        if not storable(kind, key or ""):
            return []
        if key is not None:
            rows = await self._ask("record_by_key", [{"kind": kind, "key": key}])
        elif due_before is not None:
            rows = await self._ask("due_records", [{"kind": kind, "before": due_before, "top": limit}])
        else:
            rows = await self._ask("newest_records" if newest else "oldest_records", [{"kind": kind, "top": limit}])
        return [Record(*row) for row in rows]

    async def write_records(
        self, writes: Sequence[RecordWrite], *, atomic: bool = False, topics: Sequence[TopicOptions] = ()
    ) -> Sequence[Record | None]:
        if not all(storable(one.kind, one.id, one.key, one.body) for one in writes):
            raise InvalidInput(_UNSTORABLE)
        if topics and writes and not atomic:
            raise InvalidInput("topics commit with all of the records: write them with atomic=True", field="topics")
        tell = [wakeups.LATER] if any(one.due is not None for one in writes) else []
        if any(one.kind == WEBHOOK_KIND for one in writes):
            self.forget_hooked_topics()
        return await self.transact(lambda: scripts.write_records(writes, atomic=atomic, topics=topics), tell)

    async def delete_records(self, wanted: Sequence[tuple[str, str]]) -> int:
        rows = [{"kind": kind, "id": id} for kind, id in wanted if storable(kind, id)]
        return len(await self._change("drop_records", rows)) if rows else 0


_UNSTORABLE = "a record's text has a NUL character or half a surrogate pair; no database can store it"
