"""`queue.templates`: the saved templates of all topics and their versions; switch one off and on, roll one back.

A template is a record, and so is each of its definitions. Every write is a compare-and-set on the template's record,
in one transaction with the new definition and what stores know of the topic.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from treadle.insights.templates import MOST_TEMPLATES, definitions, saved_templates, template_from
from treadle.model.durations import shown
from treadle.model.errors import InvalidInput, StoreUnavailable, TemplateNotFound, VersionConflict
from treadle.model.job import checked_topic
from treadle.model.template import Template, plain_template
from treadle.policy.saved_template import (
    KIND,
    VERSION_KIND,
    Definition,
    SavedTemplate,
    first_saved,
    is_same,
    number_of,
    version_id,
)
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite, TopicOptions

if TYPE_CHECKING:
    from treadle.model.handler import Handler
    from treadle.queue.queue import Queue
    from treadle.queue.session import Session

# How often to retry a change when another process changed the same template.
TRIES = 20
Templates_ = list[SavedTemplate]  # inside the class, `list` is the method


class Templates:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def list(self) -> Templates_:
        """The current template of every topic that has one, by topic."""
        found = await saved_templates(await self._store())
        return sorted(found.values(), key=lambda one: one.topic)

    async def get(self, topic: str) -> SavedTemplate:
        """The current template of a topic; TemplateNotFound if none was saved."""
        return (await _stored(await self._store(), topic))[0]

    async def versions(self, topic: str) -> Sequence[dict[str, Any]]:
        """Every definition that was saved for a topic, in JSON, newest first; `current` marks the one in use."""
        store = await self._store()
        saved, _ = await _stored(store, topic)
        seen = (await definitions(store, {topic: saved}))[topic]
        known = [one for one in reversed(saved.versions) if one.version in seen]
        return [saved.version_as_json(one, seen[one.version]) for one in known]

    async def use(self, topic: str, version: int, *, expected: int | None = None) -> SavedTemplate:
        """Make a saved version the current one, until code with a new definition starts.

        `expected` is the version that was current when it was read; VersionConflict if it no longer is.
        """
        return await self.update(topic, version=version, expected=expected)

    async def enable(self, topic: str) -> SavedTemplate:
        """Accept jobs of this topic again; kept across restarts and deploys."""
        return await self.update(topic, enabled=True)

    async def disable(self, topic: str) -> SavedTemplate:
        """Refuse new jobs of this topic; kept across restarts and deploys. Pending jobs still run."""
        return await self.update(topic, enabled=False)

    async def update(
        self, topic: str, *, enabled: bool | None = None, version: int | None = None, expected: int | None = None
    ) -> SavedTemplate:
        """Switch a template on or off, or choose its current version, or both in one step."""
        store = await self._store()
        for _ in range(TRIES):
            saved, record = await _stored(store, topic)
            if expected not in (None, saved.version):
                message = f"the template of {topic} is at version {saved.version}, not {expected}; read it again"
                raise VersionConflict(message, version=saved.version)
            now = await store.now()
            changed = saved
            if version is not None and version != saved.version:
                changed = changed.using(version, await _definition(store, saved, version), now)
            if enabled is not None and enabled is not saved.switched:
                changed = changed.with_switch(enabled, now)
            if changed is saved:
                return saved
            write = RecordWrite(KIND, topic, topic, changed.body(), version=record.version)
            if await _write(store, [write], [changed]):
                self._queue._forget_templates()
                return await self.get(topic)
        raise _busy(topic)

    async def _store(self) -> Store:
        await self._queue.open()
        return self._queue.store


class ChosenTemplate(NamedTuple):
    """What new jobs of a topic get in this process."""

    template: Template
    handler: Handler | None
    """Checks the payload; None: the template's schema does."""
    version: int | None


def choose(topic: str, handler: Handler | None, own_version: int | None, saved: SavedTemplate | None) -> ChosenTemplate:
    """The definition of this process's code, unless an operator has rolled it back, with the operator's switch."""
    if handler is None or (saved is not None and saved.rolled_back and saved.version != own_version):
        if saved is None:
            return ChosenTemplate(plain_template(topic), None, None)
        return ChosenTemplate(saved.template, None, saved.version)
    template = handler.template
    if saved is not None and saved.switched not in (None, template.enabled):
        template = replace(template, enabled=saved.enabled)
    return ChosenTemplate(template, handler, own_version)


async def refresh(session: Session) -> None:
    """Read the saved templates. One that has not changed since keeps its parsed form, and its job makers."""
    started = time.monotonic()
    records = await session.store.find_records(KIND, limit=MOST_TEMPLATES)
    revisions = {record.id: record.version for record in records}
    if revisions != session.template_revisions:
        old = session.template_revisions
        session.templates = {
            record.id: session.templates[record.id] if old.get(record.id) == record.version else template_from(record)
            for record in records
        }
        session.template_revisions = revisions
        session.makers.clear()
    if session.reading_templates in (None, asyncio.current_task()):  # else a change was made during the read
        session.templates_at = started


def forget(session: Session) -> None:
    session.templates_at = float("-inf")
    session.reading_templates = None


async def save(store: Store, handlers: Mapping[str, Handler]) -> dict[str, int]:
    """Save the templates of these handlers; returns the version of each."""
    wanted = {topic: handler.template.as_json() for topic, handler in handlers.items()}
    fixed = {topic: handler.template.version for topic, handler in handlers.items()}
    for _ in range(TRIES):
        saving = await _Saving.read(store, wanted, fixed)
        versions = {topic: saving.add(topic, wanted[topic], fixed[topic]) for topic in sorted(wanted)}
        if await _write(store, saving.writes, saving.changed):
            return versions
    raise _busy("these topics")


class _Saving:
    """What one transaction saves."""

    def __init__(
        self, now: int, records: Mapping[tuple[str, str], Record], seen: Mapping[str, Mapping[int, Definition]]
    ) -> None:
        self._now = now
        self._records = records
        self._seen = seen
        self.writes: list[RecordWrite] = []
        self.changed: list[SavedTemplate] = []

    @classmethod
    async def read(cls, store: Store, wanted: Mapping[str, Definition], fixed: Mapping[str, int | None]) -> _Saving:
        """The history is read only for definitions that differ from the current one."""
        chosen = [(VERSION_KIND, version_id(topic, number)) for topic, number in fixed.items() if number is not None]
        found = await store.get_records([*((KIND, topic) for topic in wanted), *chosen])
        records = {(record.kind, record.id): record for record in found if record}
        saved = {id_: template_from(record) for (kind, id_), record in records.items() if kind == KIND}
        differ = {topic: one for topic, one in saved.items() if not is_same(one.definition, wanted[topic])}
        seen = {topic: {one.version: one.definition} for topic, one in saved.items()}
        return cls(await store.now(), records, seen | await definitions(store, differ))

    def add(self, topic: str, definition: Definition, fixed: int | None) -> int:
        record = self._records.get((KIND, topic))
        if record is None:
            self._write(first_saved(topic, fixed or 1, definition, self._now))
            return fixed or 1
        saved = template_from(record)
        known = number_of(definition, fixed, self._seen[topic])
        if known is not None:
            return known
        number = fixed or saved.next_number()
        self._write(saved.with_definition(number, definition, self._now))
        return number

    def _write(self, changed: SavedTemplate) -> None:
        text = to_json(changed.definition).decode()
        for kind, id_, body in (
            (VERSION_KIND, version_id(changed.topic, changed.version), text),
            (KIND, changed.topic, changed.body()),
        ):
            old = self._records.get((kind, id_))
            self.writes.append(RecordWrite(kind, id_, id_, body, version=old.version if old else None))
        self.changed.append(changed)


async def _write(store: Store, writes: Sequence[RecordWrite], changed: Sequence[SavedTemplate]) -> bool:
    """False: another process was faster."""
    if not writes:
        return True
    try:
        await store.write_records(writes, atomic=True, topics=[_topic(one) for one in changed])
    except VersionConflict:
        return False
    return True


def _topic(one: SavedTemplate) -> TopicOptions:
    most, ms = one.rate or (None, None)
    return TopicOptions(one.topic, most, ms, *one.ages)


async def _stored(store: Store, topic: str) -> tuple[SavedTemplate, Record]:
    record = (await store.get_records([(KIND, checked_topic(topic))]))[0]
    if record is None:
        raise TemplateNotFound(f"no template is saved for the topic {topic}", topic=topic)
    return template_from(record), record


async def _definition(store: Store, saved: SavedTemplate, version: int) -> Definition:
    seen = (await definitions(store, {saved.topic: saved}))[saved.topic]
    if version not in seen:
        known = ", ".join(str(one.version) for one in saved.versions[-20:])
        message = f"the template of {saved.topic} has no version {shown(version)}; there are {known}"
        raise InvalidInput(message, field="useVersion")
    return seen[version]


def _busy(topic: str) -> StoreUnavailable:
    return StoreUnavailable(f"the template of {topic} is changed too often just now; try again")
