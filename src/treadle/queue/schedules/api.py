"""`queue.schedules`: create, change and run schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json, to_json
from typing_extensions import Unpack
from uuid_utils import uuid7

from treadle.model.errors import (
    CodeDefined,
    NotSchedulable,
    TemplateDisabled,
    VersionConflict,
)
from treadle.model.job import Job, checked_topic
from treadle.model.secrets import hide
from treadle.policy.schedule import (
    KIND,
    Schedule,
    ScheduleEvent,
    ScheduleSlot,
    check_end,
    rendered_payload,
    slot,
    slot_key,
)
from treadle.queue.schedules.options import NewSchedule, ScheduleChanges, edit, planned, schedule_fields, stopped
from treadle.queue.schedules.records import (
    TRIES,
    body_of,
    busy,
    change_schedule,
    due_of,
    not_found,
    read_schedule,
    schedule_from,
    write_of,
)
from treadle.queue.schedules.secrets import Secrets, hidden, secrets_of, with_old_secrets
from treadle.store.protocol import Store
from treadle.store.values import NewJob, Record
from treadle.store.views import FOREVER

if TYPE_CHECKING:
    from treadle.queue.queue import Queue

MOST_SCHEDULES = 100_000


class SchedulePage(NamedTuple):
    schedules: Sequence[Schedule]
    total: int
    """How many match the search."""
    on: int
    """Of all schedules, those with a next run."""
    off: int
    next_ms: int | None


class Schedules:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def create(self, topic: str, cron: str | None = None, **options: Unpack[NewSchedule]) -> Schedule:
        """Make a schedule: `create("report", "0 9 * * *", timezone="Asia/Taipei")` or `create("poll", every="90s")`."""
        store = await self._store()
        given: dict[str, Any] = {"cron": cron, **options}
        now = await store.now()
        chosen = given.pop("id", None)
        schedule = Schedule(
            id=str(uuid7()) if chosen is None else chosen,
            topic=checked_topic(topic),
            created_by=given.pop("created_by", None),
            created_ms=now,
            updated_ms=now,
            **schedule_fields(given),
        )
        check_end(schedule, now)
        await self.check(schedule, now)
        schedule = planned(schedule, now)
        if not (await store.write_records([write_of(schedule)]))[0]:
            raise VersionConflict(f"there is a schedule {schedule.id} already", id=schedule.id)
        return await self._hidden(store, schedule)

    async def list(self, topic: str | None = None) -> Sequence[Schedule]:
        """All schedules, or a topic's, oldest first."""
        store = await self._store()
        found = map(schedule_from, await store.find_records(KIND, limit=MOST_SCHEDULES))
        wanted = [one for one in found if topic in (None, one.topic)]
        secrets = await self._secrets(store, wanted)
        return [hidden(one, secrets) for one in wanted]

    async def next(self) -> Schedule | None:
        """The enabled schedule that runs next."""
        store = await self._store()
        found = await store.find_records(KIND, due_before=FOREVER, limit=1)
        return await self._hidden(store, schedule_from(found[0])) if found else None

    async def page(self, offset: int, limit: int, search: str = "") -> SchedulePage:
        """A page of the list, with what its head says; only the shown ones are parsed."""
        store = await self._store()
        records = await store.find_records(KIND, limit=MOST_SCHEDULES)
        found = await self._matching(store, records, search) if search else records
        due = [one.due for one in records if one.due is not None]
        shown = [schedule_from(one) for one in found[offset : offset + limit]]
        secrets = await self._secrets(store, shown)
        readable = [hidden(one, secrets) for one in shown]
        return SchedulePage(readable, len(found), len(due), len(records) - len(due), min(due, default=None))

    async def _matching(self, store: Store, records: Sequence[Record], search: str) -> Sequence[Record]:
        """A secret can't be found: by asking often enough, anyone would learn it."""
        found = [(one, schedule_from(one)) for one in records if search in one.id or search in one.body]
        secrets = await self._secrets(store, [schedule for _, schedule in found])
        return [
            record
            for record, schedule in found
            if not secrets[schedule.topic] or search in record.id or search in body_of(hidden(schedule, secrets))
        ]

    async def recent_jobs(self, schedules: Sequence[Schedule], each: int) -> dict[str, Job]:
        """The newest jobs of all these schedules by id, in one read."""
        ids = [id_ for one in schedules for id_ in one.recent[-each:]]
        jobs = await (await self._store()).get(ids) if ids else []
        return {job.id: job for job in jobs if job is not None}

    async def get(self, schedule_id: str) -> Schedule:
        """The schedule with this id; ScheduleNotFound if there is none."""
        store = await self._store()
        return await self._hidden(store, (await read_schedule(store, schedule_id)).schedule)

    async def update(
        self, schedule_id: str, *, version: int | None = None, **changes: Unpack[ScheduleChanges]
    ) -> Schedule:
        """Change a schedule. A change of its times makes no catch-up run: the next run is the first after now.

        `version` is the version that was read; VersionConflict if the schedule was changed since. A secret in the
        payload that is given as `***` keeps its value.
        """
        store = await self._store()

        async def changed(schedule: Schedule, now: int) -> Schedule:
            if version is not None and version != schedule.version:
                message = f"schedule {schedule.id} is at version {schedule.version}, not {version}; read it again"
                raise VersionConflict(message, version=schedule.version)
            edited = edit(schedule, await self._with_old_secrets(store, schedule, changes), now)
            if edited is not schedule:
                await self.check(edited, now)
            return edited

        return await self._hidden(store, await change_schedule(store, schedule_id, changed))

    async def enable(self, schedule_id: str) -> Schedule:
        return await self.update(schedule_id, enabled=True)

    async def disable(self, schedule_id: str) -> Schedule:
        return await self.update(schedule_id, enabled=False)

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule. CodeDefined if the code still defines it: it would come back, so disable it instead."""
        store = await self._store()
        schedule = (await read_schedule(store, schedule_id)).schedule
        if schedule.code is not None:
            message = f"schedule {schedule.id} is defined in {schedule.source}; disable it, or delete it there"
            raise CodeDefined(message, id=schedule.id)
        if not await store.delete_records([(KIND, schedule_id)]):
            raise not_found(schedule_id)

    async def run(self, schedule_id: str) -> Job:
        """Make a job now, ignoring `overlap`. The next run does not change."""
        store = await self._store()
        for _ in range(TRIES):
            stored = await read_schedule(store, schedule_id)
            now = await store.now()
            manual = slot(stored.schedule, now, stored.schedule.last_ms)._replace(run_at_ms=now)
            job = (await self.new_job(stored.schedule, manual))._replace(slot=None)
            try:
                changed = stored.schedule.with_job(now, job.id)
                [answer] = await store.insert([job], records=[stored.write(changed, due_of(changed))])
            except VersionConflict:
                continue
            return await self._queue.get(getattr(answer, "existing_id", None) or job.id)
        raise busy(schedule_id)

    async def events(self, schedule_id: str) -> Sequence[ScheduleEvent]:
        """The most recent slots that made no job, and why; newest last."""
        return (await self.get(schedule_id)).events

    async def now(self) -> int:
        """The database's time, which schedules follow."""
        return await (await self._store()).now()

    async def disable_created_by(self, account: str, problem: str) -> int:
        """Disable the schedules of an account; returns how many."""
        mine = [one for one in await self.list() if one.created_by == account and one.enabled]

        async def stop(schedule: Schedule, now: int) -> Schedule:
            return stopped(schedule, now, problem)

        for one in mine:
            await change_schedule(self._queue.store, one.id, stop)
        return len(mine)

    # -- for the scheduler -------------------------------------------------------------------------

    async def new_job(self, schedule: Schedule, one: ScheduleSlot) -> NewJob:
        """The job of a slot. Refused if the topic's template is disabled, can't be scheduled or refuses the payload."""
        if not (await self._queue.template(schedule.topic)).schedulable:
            raise NotSchedulable(f"the template of {schedule.topic} can't be scheduled", topic=schedule.topic)
        job = await self._queue._new_job(
            schedule.topic,
            rendered_payload(schedule, one),
            scope=schedule.scope,
            scope_id=schedule.scope_id,
            created_by=schedule.created_by,
        )
        return job._replace(
            run_at=one.run_at_ms,
            given=job.given._replace(schedule_id=schedule.id, scheduled_at=one.at_ms),
            slot=slot_key(schedule.id, one.at_ms),
        )

    # -- before it is saved ------------------------------------------------------------------------

    async def draft(self, topic: str, options: Mapping[str, Any], now: int, of: str | None = None) -> Schedule:
        """A schedule, or a change of the one with the id `of`, that is not stored: to see what its options mean.

        It may be given to `check`, so its payload has the secrets of the stored one; show it to no one.
        """
        if of is not None:
            store = await self._store()
            stored = (await read_schedule(store, of)).schedule
            changes = await self._with_old_secrets(store, stored, {**options, "topic": topic})
            return edit(stored, changes, now)
        made = Schedule(
            id="draft", topic=checked_topic(topic), created_ms=now, updated_ms=now, **schedule_fields(options)
        )
        check_end(made, now)
        return planned(made, now)

    async def check(self, schedule: Schedule, now: int) -> NewJob | None:
        """The job of its next slot: NotSchedulable if the template says so, InvalidPayload if it refuses the payload.

        Its payload is without secrets. None if the template is disabled, because it may be enabled again before then.
        """
        try:
            job = await self.new_job(schedule, slot(schedule, schedule.next_after(now) or now, None))
        except TemplateDisabled:
            return None
        paths = (await self._secrets(await self._store(), [schedule]))[schedule.topic]
        return job._replace(payload=to_json(hide(from_json(job.payload), paths)).decode()) if paths else job

    # -- secrets -----------------------------------------------------------------------------------

    async def _secrets(self, store: Store, schedules: Iterable[Schedule]) -> Secrets:
        return await secrets_of(store, self._queue.handlers, (one.topic for one in schedules))

    async def _hidden(self, store: Store, schedule: Schedule) -> Schedule:
        return hidden(schedule, await self._secrets(store, [schedule]))

    async def _with_old_secrets(
        self, store: Store, schedule: Schedule, changes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        paths = (await self._secrets(store, [schedule]))[schedule.topic]
        return with_old_secrets(schedule, changes, paths)

    async def _store(self) -> Store:
        await self._queue.open()
        return self._queue.store
