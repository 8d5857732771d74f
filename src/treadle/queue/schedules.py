"""`queue.schedules`: create, change and run schedules.

A schedule is a record with a `due` time at which the scheduler should look at it. Every write is a compare-and-set on
the record's version, so an edit and a run never overwrite each other. The `version` that users see counts changes of
the definition only: a schedule that ran since it was read can still be edited.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from pydantic_core import from_json, to_json
from typing_extensions import Unpack
from uuid_utils import uuid7

from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import (
    CodeDefined,
    InvalidInput,
    NotSchedulable,
    ScheduleNotFound,
    StoreUnavailable,
    TemplateDisabled,
    VersionConflict,
)
from treadle.model.job import Job, checked_topic, to_ms
from treadle.model.secrets import hide
from treadle.policy.schedule import (
    Missed,
    Overlap,
    Schedule,
    ScheduleEvent,
    ScheduleSlot,
    check_end,
    check_names,
    checked_id,
    rendered_payload,
    slot,
    slot_key,
)
from treadle.queue.schedule_secrets import Secrets, hidden, secrets_of, with_old_secrets
from treadle.store.protocol import Store
from treadle.store.values import NewJob, Record, RecordWrite

if TYPE_CHECKING:
    from treadle.model.handler import Handler
    from treadle.queue.queue import Queue

KIND = "schedule"
# The schedules that the code of a topic, and of a file, has defined; one that is missing later was removed.
CODE = "schedule_code"
MOST_SCHEDULES = 100_000
# How often to retry a change when a run came in between.
TRIES = 20


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule, besides its topic and its cron expression."""

    every: Duration | None
    timezone: str
    payload: Any
    scope: str | None
    scope_id: str | None
    enabled: bool
    missed: Missed
    overlap: Overlap
    jitter: Duration
    start_at: datetime | None
    end_at: datetime | None


class NewSchedule(ScheduleOptions, total=False):
    id: str | None
    created_by: str | None


class ScheduleChanges(ScheduleOptions, total=False):
    topic: str
    cron: str | None


class CodeSchedule(ScheduleOptions, total=False):
    """One of the schedules in `@queue.job(schedule=[…])`."""

    id: str
    cron: str


class Stored(NamedTuple):
    """A schedule and the version of its record."""

    schedule: Schedule
    version: int

    def write(self, changed: Schedule, due: int | None) -> RecordWrite:
        return RecordWrite(KIND, changed.id, changed.id, body_of(changed), due, self.version)


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
            **_definition(given),
        )
        check_end(schedule, now)
        await self.check(schedule, now)
        schedule = _planned(schedule, now)
        if not (await store.write_records([_write(schedule)]))[0]:
            raise VersionConflict(f"there is a schedule {schedule.id} already", id=schedule.id)
        return await self._hidden(store, schedule)

    async def list(self, topic: str | None = None) -> Sequence[Schedule]:
        """All schedules, or a topic's, oldest first."""
        store = await self._store()
        found = map(schedule_from, await store.find_records(KIND, limit=MOST_SCHEDULES))
        wanted = [one for one in found if topic in (None, one.topic)]
        secrets = await self._secrets(store, wanted)
        return [hidden(one, secrets) for one in wanted]

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
        return await self._hidden(store, (await self._stored(store, schedule_id)).schedule)

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
            edited = _edited(schedule, await self._with_old_secrets(store, schedule, changes), now)
            if edited is not schedule:
                await self.check(edited, now)
            return edited

        return await self._hidden(store, await self._change(schedule_id, changed, store))

    async def enable(self, schedule_id: str) -> Schedule:
        return await self.update(schedule_id, enabled=True)

    async def disable(self, schedule_id: str) -> Schedule:
        return await self.update(schedule_id, enabled=False)

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule. CodeDefined if the code still defines it: it would come back, so disable it instead."""
        store = await self._store()
        schedule = (await self._stored(store, schedule_id)).schedule
        if schedule.code is not None:
            message = f"schedule {schedule.id} is defined in {schedule.source}; disable it, or delete it there"
            raise CodeDefined(message, id=schedule.id)
        if not await store.delete_records([(KIND, schedule_id)]):
            raise _not_found(schedule_id)

    async def run(self, schedule_id: str) -> Job:
        """Make a job now, ignoring `overlap`. The next run does not change."""
        store = await self._store()
        for _ in range(TRIES):
            stored = await self._stored(store, schedule_id)
            now = await store.now()
            manual = slot(stored.schedule, now, stored.schedule.last_ms)._replace(run_at_ms=now)
            job = (await self.new_job(stored.schedule, manual))._replace(slot=None)
            try:
                changed = stored.schedule.with_job(now, job.id)
                [answer] = await store.insert([job], records=[stored.write(changed, due_of(changed))])
            except VersionConflict:
                continue
            return await self._queue.get(getattr(answer, "existing_id", None) or job.id)
        raise _busy(schedule_id)

    async def events(self, schedule_id: str) -> Sequence[ScheduleEvent]:
        """The most recent slots that made no job, and why; newest last."""
        return (await self.get(schedule_id)).events

    async def now(self) -> int:
        """The database's time, which schedules follow."""
        return await (await self._store()).now()

    async def disable_created_by(self, account: str, problem: str) -> int:
        """Disable the schedules of an account; returns how many."""
        mine = [one for one in await self.list() if one.created_by == account and one.enabled]

        async def stopped(schedule: Schedule, now: int) -> Schedule:
            return _stopped(schedule, now, problem)

        for one in mine:
            await self._change(one.id, stopped)
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
            schedule_id=schedule.id,
            scheduled_at=one.at_ms,
            slot=slot_key(schedule.id, one.at_ms),
        )

    # -- from code ---------------------------------------------------------------------------------

    async def save_code(self, store: Store, definitions: Mapping[str, Sequence[CodeSchedule]]) -> None:
        """Create and update the schedules defined in the code of these topics, and stop the ones removed from it.

        A definition that has not changed since it was last saved changes nothing, so an operator's edits stay.
        """
        wanted = {one["id"]: (topic, one) for topic, all_ in definitions.items() for one in _numbered(topic, all_)}
        sources = {topic: _source(self._queue.handlers[topic].function) for topic in definitions}
        lists = _id_lists(wanted, sources)
        known = await store.get_records([*((KIND, id_) for id_ in wanted), *((CODE, name) for name in lists)])
        saved = {record.id: record for record in known if record}
        for id_, (topic, options) in wanted.items():
            old = schedule_from(saved[id_]) if id_ in saved else None
            await self._save_one(store, old, topic, options, sources[topic])
        before = {id_ for name in lists if name in saved for id_ in from_json(saved[name].body)}
        for id_ in sorted(before - set(wanted)):
            with contextlib.suppress(ScheduleNotFound):
                await self._change(id_, _gone, store)
        for name, ids in lists.items():
            await _save_list(store, name, ids, saved.get(name))

    async def _save_one(
        self, store: Store, saved: Schedule | None, topic: str, options: CodeSchedule, source: str
    ) -> None:
        given: dict[str, Any] = {name: value for name, value in options.items() if name != "id"}
        code = _fingerprint(topic, given)
        if saved is not None and saved.code == code:
            return
        fresh = Schedule(id=options["id"], topic=topic, source=source, code=code, **_definition(given))

        async def as_in_code(old: Schedule, now: int) -> Schedule:
            kept = {name: getattr(old, name) for name in _STATE}
            return _replanned(old, replace(fresh, **kept, version=old.version + 1, updated_ms=now), now)

        if saved is not None:
            await self._change(saved.id, as_in_code, store)
            return
        now = await store.now()
        made = _planned(replace(fresh, created_ms=now, updated_ms=now), now)
        # None: another process with the same code has just created it.
        await store.write_records([_write(made)])

    # -- before it is saved ------------------------------------------------------------------------

    async def draft(self, topic: str, options: Mapping[str, Any], now: int, of: str | None = None) -> Schedule:
        """A schedule, or a change of the one with the id `of`, that is not stored: to see what its options mean.

        It may be given to `check`, so its payload has the secrets of the stored one; show it to no one.
        """
        if of is not None:
            store = await self._store()
            stored = (await self._stored(store, of)).schedule
            changes = await self._with_old_secrets(store, stored, {**options, "topic": topic})
            return _edited(stored, changes, now)
        made = Schedule(id="draft", topic=checked_topic(topic), created_ms=now, updated_ms=now, **_definition(options))
        check_end(made, now)
        return _planned(made, now)

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

    # -- storage -----------------------------------------------------------------------------------

    async def _store(self) -> Store:
        await self._queue.open()
        return self._queue.store

    async def _stored(self, store: Store, schedule_id: str) -> Stored:
        known = isinstance(schedule_id, str) and len(schedule_id) <= 100
        record = (await store.get_records([(KIND, schedule_id)]))[0] if known else None
        if record is None:
            raise _not_found(schedule_id)
        return Stored(schedule_from(record), record.version)

    async def _change(
        self, schedule_id: str, change: Callable[[Schedule, int], Awaitable[Schedule]], store: Store | None = None
    ) -> Schedule:
        store = store or await self._store()
        for _ in range(TRIES):
            old, version = await self._stored(store, schedule_id)
            new = await change(old, await store.now())
            if new is old:
                return old
            if (await store.write_records([_write(new, version)]))[0]:
                return new
        raise _busy(schedule_id)


# Results of runs and the origin of the schedule, which an edit keeps.
_STATE = ("created_by", "created_ms", "last_ms", "last_job_id", "recent", "events")
_TIMES = {"start_at": "start_ms", "end_at": "end_ms"}
_DURATIONS = {"every": "every_ms", "jitter": "jitter_ms"}
_PLAIN = frozenset("cron timezone scope scope_id enabled missed overlap".split())


def _definition(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts arguments to the fields of a schedule."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _TIMES:
            found[_TIMES[name]] = None if value is None else to_ms(value, name)
        elif name in _DURATIONS:
            found[_DURATIONS[name]] = None if value is None else duration_ms(value, name)
        elif name == "payload":
            found[name] = _payload(value)
        elif name in _PLAIN:
            found[name] = value
        else:
            raise InvalidInput(f"{name}: a schedule has no such option", field=name)
    return found


def _payload(value: Any) -> dict[str, Any]:
    from treadle.model.payload import dumps_object

    found: dict[str, Any] = from_json(dumps_object(value))
    check_names(found)
    return found


def _edited(schedule: Schedule, changes: Mapping[str, Any], now: int) -> Schedule:
    given = dict(changes)
    topic = given.pop("topic", schedule.topic)
    if topic != schedule.topic and schedule.code is not None:
        message = f"schedule {schedule.id} is defined in {schedule.source}; its topic can only be changed there"
        raise CodeDefined(message, id=schedule.id)
    definition = _definition(given)
    # The given one replaces the other.
    if definition.get("cron") is not None:
        definition.setdefault("every_ms", None)
    elif definition.get("every_ms") is not None:
        definition.setdefault("cron", None)
    edited = replace(schedule, topic=topic, **definition)
    if edited == schedule:
        return schedule
    if edited.end_ms != schedule.end_ms:
        check_end(edited, now)
    return _replanned(schedule, replace(edited, version=schedule.version + 1, updated_ms=now, problem=None), now)


_TIMING = ("cron", "every_ms", "timezone", "start_ms", "end_ms", "enabled")


def _replanned(old: Schedule, new: Schedule, now: int) -> Schedule:
    """A change of anything but the times keeps the next run, or an edit in the due second would lose it."""
    if all(getattr(old, name) == getattr(new, name) for name in _TIMING):
        return replace(new, next_ms=old.next_ms, held=old.held)
    return _planned(new, now)


def _planned(schedule: Schedule, now: int) -> Schedule:
    """With its next run after now, so that there is no catch-up run."""
    return replace(schedule, next_ms=schedule.next_after(now) if schedule.enabled else None, held=False)


def _stopped(schedule: Schedule, now: int, problem: str) -> Schedule:
    stopped = replace(schedule, enabled=False, problem=problem, version=schedule.version + 1, updated_ms=now)
    return _planned(stopped, now)


async def _gone(schedule: Schedule, now: int) -> Schedule:
    """The schedule and its history stay; an operator may enable or delete it."""
    if schedule.code is None:
        return schedule
    return replace(_stopped(schedule, now, f"gone from {schedule.source}"), code=None)


def due_of(schedule: Schedule) -> int | None:
    return schedule.next_ms if schedule.enabled else None


# -- records ---------------------------------------------------------------------------------------

_FIELDS = frozenset(one.name for one in fields(Schedule))


def body_of(schedule: Schedule) -> str:
    return to_json({name: getattr(schedule, name) for name in _FIELDS}).decode()


def schedule_from(record: Record) -> Schedule:
    found = {name: value for name, value in from_json(record.body).items() if name in _FIELDS}
    found["recent"] = tuple(found["recent"])
    found["events"] = tuple(ScheduleEvent(*one) for one in found["events"])
    return Schedule(**found)


# -- code ------------------------------------------------------------------------------------------


def code_schedules(given: Any, timezone: str | None) -> list[CodeSchedule]:
    """From `schedule=` and `timezone=` of a job: an expression, options, or a list of either."""
    if given is None:
        if timezone is not None:
            raise InvalidInput("timezone: only with schedule=", field="timezone")
        return []
    several = given if isinstance(given, list | tuple) else [given]
    return [_checked_code(one, timezone) for one in several]


def _checked_code(given: Any, timezone: str | None) -> CodeSchedule:
    if isinstance(given, str):
        given = {"cron": given}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"schedule: {type(given).__name__} is neither cron nor options", field="schedule")
    options: dict[str, Any] = {**({} if timezone is None else {"timezone": timezone}), **given}
    definition = _definition({name: value for name, value in options.items() if name != "id"})
    Schedule(id=checked_id(options.get("id", "code")), topic="code", **definition)  # raises if the options are invalid
    found: CodeSchedule = options  # type: ignore[assignment]
    return found


def check_code(handler: Handler, schedules: Sequence[CodeSchedule]) -> None:
    """Refuse schedules in code that could never make a job."""
    if schedules and not handler.template.schedulable:
        raise InvalidInput(f"{handler.topic}: give schedule= or schedulable=False, not both", field="schedule")
    for one in schedules:
        schedule = Schedule(id="code", topic=handler.topic, cron="@daily", payload=_payload(one.get("payload")))
        handler.payload_text(rendered_payload(schedule, slot(schedule, 0, 0)))


def _numbered(topic: str, schedules: Iterable[CodeSchedule]) -> list[CodeSchedule]:
    """By default the first has the name of its topic and the second `topic.2`."""
    names = [one.get("id") or (topic if i == 1 else f"{topic}.{i}") for i, one in enumerate(schedules, 1)]
    if len(set(names)) < len(names):
        raise InvalidInput(f"{topic}: two of its schedules have the same id", field="schedule")
    return [{**one, "id": name} for one, name in zip(schedules, names, strict=True)]


def _write(schedule: Schedule, version: int | None = None) -> RecordWrite:
    return RecordWrite(KIND, schedule.id, schedule.id, body_of(schedule), due_of(schedule), version)


def _id_lists(wanted: Mapping[str, tuple[str, Any]], sources: Mapping[str, str]) -> dict[str, list[str]]:
    """By topic and by file, for the schedules of this process."""
    lists: dict[str, list[str]] = {}
    for topic, source in sources.items():
        ids = [id_ for id_, (its_topic, _) in wanted.items() if its_topic == topic]
        lists[f"topic:{topic}"] = sorted(ids)
        lists[f"file:{source}"] = sorted({*lists.get(f"file:{source}", ()), *ids})
    return lists


async def _save_list(store: Store, name: str, ids: Sequence[str], saved: Record | None) -> None:
    body = to_json(ids).decode()
    if (saved is None and ids) or (saved is not None and saved.body != body):
        await store.write_records([RecordWrite(CODE, name, name, body, version=saved.version if saved else None)])


def _fingerprint(topic: str, options: Mapping[str, Any]) -> str:
    definition = _definition(options)
    text = to_json([topic, *sorted(definition.items())])
    return hashlib.sha256(text).hexdigest()[:16]


def _source(function: Callable[..., Any]) -> str:
    """The file with its folder: enough to tell programs apart, and the same on every machine."""
    function = inspect.unwrap(function)
    try:
        return "/".join(PurePath(inspect.getfile(function)).parts[-2:])
    except TypeError:
        return function.__module__


def _not_found(schedule_id: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule has the id {str(schedule_id)[:60]!r}", id=str(schedule_id)[:60])


def _busy(schedule_id: str) -> StoreUnavailable:
    return StoreUnavailable(f"schedule {schedule_id} is changed too often just now; try again")
