"""Schedules defined in code, with `@queue.job(schedule=…)`: checked when registered, saved when the queue opens."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json, to_json

from treadle.model.errors import InvalidInput, ScheduleNotFound
from treadle.policy.schedule import KIND, Schedule, checked_id, rendered_payload, slot
from treadle.queue.schedules.options import (
    STATE,
    CodeSchedule,
    planned,
    replanned,
    schedule_fields,
    schedule_payload,
    stopped,
)
from treadle.queue.schedules.records import change_schedule, schedule_from, write_of
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

if TYPE_CHECKING:
    from treadle.model.handler import Handler

# The schedules that the code of a topic, of a file and of the modules of one process has defined; one that is missing
# later was removed.
CODE = "schedule_code"


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
        raise InvalidInput(
            f"schedule: {type(given).__name__} is neither a cron text nor a dict of options", field="schedule"
        )
    options: dict[str, Any] = {**({} if timezone is None else {"timezone": timezone}), **given}
    definition = schedule_fields({name: value for name, value in options.items() if name != "id"})
    Schedule(id=checked_id(options.get("id", "code")), topic="code", **definition)  # raises if the options are invalid
    return cast(CodeSchedule, options)


def checked_code(handler: Handler, schedules: Sequence[CodeSchedule]) -> list[CodeSchedule]:
    """Schedules in code, with the function's default payload. One that could never make a job is refused."""
    if schedules and not handler.template.schedulable:
        raise InvalidInput(f"{handler.topic}: give schedule= or schedulable=False, not both", field="schedule")
    default = handler.default_payload if schedules else None
    filled = [cast(CodeSchedule, {"payload": default, **one} if default else one) for one in schedules]
    for one in filled:
        schedule = Schedule(id="code", topic=handler.topic, cron="@daily", payload=schedule_payload(one.get("payload")))
        handler.payload_text(rendered_payload(schedule, slot(schedule, 0, 0)))
    return filled


def _numbered(topic: str, schedules: Iterable[CodeSchedule]) -> list[CodeSchedule]:
    """By default the first has the name of its topic and the second `topic.2`."""
    names = [one.get("id") or (topic if i == 1 else f"{topic}.{i}") for i, one in enumerate(schedules, 1)]
    if len(set(names)) < len(names):
        raise InvalidInput(f"{topic}: two of its schedules have the same id", field="schedule")
    return [{**one, "id": name} for one, name in zip(schedules, names, strict=True)]


async def save_code(
    store: Store, handlers: Mapping[str, Handler], definitions: Mapping[str, Sequence[CodeSchedule]]
) -> None:
    """Create and update the schedules defined in the code of these topics, and stop the ones removed from it.

    A definition that has not changed since it was last saved changes nothing, so an operator's edits stay.
    """
    wanted = {one["id"]: (topic, one) for topic, all_ in definitions.items() for one in _numbered(topic, all_)}
    sources = {topic: _source(handlers[topic].function) for topic in definitions}
    lists = _id_lists(wanted, sources)
    known = await store.get_records([*((KIND, id_) for id_ in wanted), *((CODE, name) for name in lists)])
    saved = {record.id: record for record in known if record}
    for id_, (topic, options) in wanted.items():
        old = schedule_from(saved[id_]) if id_ in saved else None
        await _save_one(store, old, topic, options, sources[topic])
    before = {id_ for name in lists if name in saved for id_ in from_json(saved[name].body)}
    modules = _ids_by_module(wanted, handlers)
    ran_with = await _modules_before(store, modules)
    left_out = _left_out(modules, ran_with.values())
    before.update(*(ids for module, ids in left_out.items() if not _exists(module)))
    for id_ in sorted(before - set(wanted)):
        with contextlib.suppress(ScheduleNotFound):
            await change_schedule(store, id_, _gone)
    for name, ids in lists.items():
        await _save_list(store, name, ids, saved.get(name))
    together = {**{module: ids for module, ids in left_out.items() if _exists(module)}, **modules}
    for name, record in ran_with.items():
        await _save_list(store, name, {module: ids for module, ids in sorted(together.items()) if ids}, record)


async def _save_one(store: Store, saved: Schedule | None, topic: str, options: CodeSchedule, source: str) -> None:
    given: dict[str, Any] = {name: value for name, value in options.items() if name != "id"}
    code = _fingerprint(topic, given)
    if saved is not None and saved.code == code:
        return
    fresh = Schedule(id=options["id"], topic=topic, source=source, code=code, **schedule_fields(given))

    async def as_in_code(old: Schedule, now: int) -> Schedule:
        kept = {name: getattr(old, name) for name in STATE}
        return replanned(old, replace(fresh, **kept, version=old.version + 1, updated_ms=now), now)

    if saved is not None:
        await change_schedule(store, saved.id, as_in_code)
        return
    now = await store.now()
    made = planned(replace(fresh, created_ms=now, updated_ms=now), now)
    # None: another process with the same code has just created it.
    await store.write_records([write_of(made)])


async def _gone(schedule: Schedule, now: int) -> Schedule:
    """The schedule and its history stay; an operator may enable or delete it."""
    if schedule.code is None:
        return schedule
    return replace(stopped(schedule, now, f"gone from {schedule.source}"), code=None)


def _id_lists(wanted: Mapping[str, tuple[str, Any]], sources: Mapping[str, str]) -> dict[str, list[str]]:
    """By topic and by file, for the schedules of this process."""
    lists: dict[str, list[str]] = {}
    for topic, source in sources.items():
        ids = [id_ for id_, (its_topic, _) in wanted.items() if its_topic == topic]
        lists[f"topic:{topic}"] = sorted(ids)
        lists[f"file:{source}"] = sorted({*lists.get(f"file:{source}", ()), *ids})
    return lists


def _ids_by_module(wanted: Mapping[str, tuple[str, Any]], handlers: Mapping[str, Handler]) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for topic, handler in handlers.items():
        ids = [id_ for id_, (its_topic, _) in wanted.items() if its_topic == topic]
        modules.setdefault(getattr(inspect.unwrap(handler.function), "__module__", ""), []).extend(ids)
    return modules


async def _modules_before(store: Store, modules: Iterable[str]) -> dict[str, Record | None]:
    """What each of these modules once ran with, in one process."""
    names = [f"with:{module}" for module in modules]
    return dict(zip(names, await store.get_records([(CODE, name) for name in names]), strict=True))


def _left_out(modules: Mapping[str, list[str]], before: Iterable[Record | None]) -> dict[str, list[str]]:
    """The schedules of other modules that once ran in one process with one of these.

    This process may simply not import them: only one that no longer exists was removed.
    """
    known: dict[str, list[str]] = {}
    for record in before:
        known |= from_json(record.body) if record else {}
    return {module: ids for module, ids in known.items() if module not in modules}


def _exists(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package is there
        return False
    except (ImportError, ValueError):
        return True


async def _save_list(
    store: Store, name: str, ids: Sequence[str] | Mapping[str, Sequence[str]], saved: Record | None
) -> None:
    body = to_json(ids).decode()
    if (saved is None and ids) or (saved is not None and saved.body != body):
        await store.write_records([RecordWrite(CODE, name, name, body, version=saved.version if saved else None)])


def _fingerprint(topic: str, options: Mapping[str, Any]) -> str:
    definition = schedule_fields(options)
    text = to_json([topic, *sorted(definition.items())])
    return hashlib.sha256(text).hexdigest()[:16]


def _source(function: Callable[..., Any]) -> str:
    """The file with its folder: enough to tell programs apart, and the same on every machine."""
    function = inspect.unwrap(function)
    try:
        return "/".join(PurePath(inspect.getfile(function)).parts[-2:])
    except TypeError:
        return function.__module__
