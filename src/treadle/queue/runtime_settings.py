"""Settings that operators change at run time. Stored in the database, so every server and worker follows them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pydantic_core import from_json, to_json

from treadle.model.errors import InvalidInput, VersionConflict
from treadle.model.settings import Settings
from treadle.policy.retention import NOTHING, Ages, Former, Rules, exceptions_from, former_from, stored, stored_former
from treadle.store.protocol import Store
from treadle.store.values import RecordWrite

KIND = "settings"
ID = "jobs"
# Changes by another process take effect after this long, changes by this process immediately.
READ_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class StoredSettings:
    stale_after_ms: int
    delete_after_ms: int
    output_after_ms: int
    enqueue_rule: str = ""
    manage_rule: str = ""
    http_enabled: bool = True
    allowed_topics: Sequence[str] = ()
    job_urls: bool = False
    """Whether users may name a webhook URL for their jobs, too."""
    by_status: Mapping[str, Ages] = field(default_factory=dict)
    by_topic: Mapping[str, Ages] = field(default_factory=dict)
    """Exceptions from `stale_after_ms` and `delete_after_ms`."""
    version: int = 0
    """Incremented by each change; 0 as long as nothing was stored."""
    by_template: Mapping[str, Ages] = field(default_factory=dict)
    """Exceptions of topics whose templates make one."""
    former: Sequence[Former] = ()
    """The rules of retention that were replaced."""

    @property
    def retention(self) -> Rules:
        by_topic = dict(self.by_template)
        for topic, ages in self.by_topic.items():
            by_topic[topic] = ages.over(by_topic.get(topic, NOTHING))
        return Rules(self.stale_after_ms, self.delete_after_ms, self.by_status, by_topic, self.former)


EXCEPTIONS = ("by_status", "by_topic")
RETENTION = frozenset({"stale_after_ms", "delete_after_ms", *EXCEPTIONS})
PLAIN = frozenset(one.name for one in fields(StoredSettings)) - {*EXCEPTIONS, "version", "by_template", "former"}
# Exceptions make searches for stale jobs longer.
MOST_EXCEPTIONS = 200


class RuntimeSettings:
    """The settings of this database. `own` are this process's settings, used as defaults.

    Each read also updates the rules by which the store considers a job stale.
    """

    def __init__(self, store: Store, own: Settings) -> None:
        self._store = store
        self._defaults = self._settings = StoredSettings(own.stale_after_ms, own.delete_after_ms, own.output_after_ms)
        self._given: dict[str, Any] = {}
        self._by_template: Mapping[str, Ages] = {}
        self._version: int | None = None
        self._read_at = float("-inf")

    async def settings(self) -> StoredSettings:
        if time.monotonic() - self._read_at > READ_EVERY_S:
            await self.read()
        return self._settings

    @property
    def known(self) -> StoredSettings:
        """As they were last read."""
        return self._settings

    async def change(self, changes: dict[str, Any], version: int | None = None) -> StoredSettings:
        """Save these changes, which must be valid; None resets a setting to its default.

        An exception is a mapping from its name to ages, of which None removes one; None instead of them removes all.
        `version` is the version that was read; VersionConflict if the settings were changed since.
        """
        while True:
            await self.read()
            _check_version(self._settings.version, version)
            # Another change of this process may read newer ones while this one waits for the store.
            given, version_read = _merged(self._given, changes), self._version
            if given == self._given:
                return self._settings
            if RETENTION & changes.keys():
                before, after = self._settings.retention, self._read(given).retention
                given["former"] = stored_former(after.replacing(before, await self._store.now()).former)
            write = RecordWrite(KIND, ID, ID, to_json(given).decode(), version=version_read)
            if (await self._store.write_records([write]))[0]:
                break  # else another process saved first: merge and try again
        await self.read()
        return self._settings

    async def draft(self, changes: dict[str, Any]) -> StoredSettings:
        """What the settings would be after these changes; nothing is saved."""
        await self.read()
        return self._read(_merged(self._given, changes))

    async def read(self) -> None:
        asked = time.monotonic()
        record = (await self._store.get_records([(KIND, ID)]))[0]
        by_template = await self._store.topic_ages()
        if asked < self._read_at:
            return  # a later read finished first and is at least as new
        self._given = from_json(record.body) if record else {}
        self._version = record.version if record else None
        self._by_template = by_template
        self._settings = self._read(self._given)
        self._store.retention = self._settings.retention
        self._read_at = asked

    def _read(self, given: Mapping[str, Any]) -> StoredSettings:
        known = {name: value for name, value in given.items() if name in PLAIN}  # newer servers may have more
        return replace(
            self._defaults,
            **known,
            by_status=exceptions_from(given.get("by_status")),
            by_topic=exceptions_from(given.get("by_topic")),
            version=self._version or 0,
            by_template=self._by_template,
            former=former_from(given.get("former")),
        )


def _merged(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored after these changes."""
    found = {**given, **{name: value for name, value in changes.items() if name not in EXCEPTIONS}}
    for name in EXCEPTIONS:
        if name in changes:
            found[name] = stored(_with_exceptions(exceptions_from(given.get(name)), changes[name])) or None
            if len(found[name] or ()) > MOST_EXCEPTIONS:
                message = f"retention.{name}: at most {MOST_EXCEPTIONS} exceptions can be stored"
                raise InvalidInput(message, field=f"retention.{name}")
    return {name: value for name, value in found.items() if value is not None}


def _with_exceptions(
    known: Mapping[str, Ages], changes: Mapping[str, Mapping[str, int | None] | None] | None
) -> dict[str, Ages]:
    if changes is None:
        return {}
    changed = {
        name: NOTHING if ages is None else known.get(name, NOTHING).with_changes(ages) for name, ages in changes.items()
    }
    return {**known, **changed}


def _check_version(current: int, named: int | None) -> None:
    if named is not None and named != current:
        message = f"the settings are at version {current}, not {named}; read them again"
        raise VersionConflict(message, version=current)
