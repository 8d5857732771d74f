"""Settings that operators change at run time. Stored in the database, so every server and worker follows them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic_core import from_json, to_json

from treadle.model.errors import VersionConflict
from treadle.model.settings import Settings
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
    version: int = 0
    """Incremented by each change; 0 as long as nothing was stored."""


NAMES = frozenset(one.name for one in fields(StoredSettings)) - {"version"}


class RuntimeSettings:
    """The settings of this database. `own` are this process's settings, used as defaults.

    Each read also updates the age at which the store considers a job stale.
    """

    def __init__(self, store: Store, own: Settings) -> None:
        self._store = store
        self._defaults = self._settings = StoredSettings(own.stale_after_ms, own.delete_after_ms, own.output_after_ms)
        self._given: dict[str, Any] = {}
        self._version: int | None = None
        self._read_at = float("-inf")

    async def settings(self) -> StoredSettings:
        if time.monotonic() - self._read_at > READ_EVERY_S:
            await self.read()
        return self._settings

    async def change(self, changes: dict[str, Any], version: int | None = None) -> StoredSettings:
        """Save these changes, which must be valid; None resets a setting to its default.

        `version` is the version that was read; VersionConflict if the settings were changed since.
        """
        while True:
            await self.read()
            _check_version(self._settings.version, version)
            given = {name: value for name, value in (self._given | changes).items() if value is not None}
            if given == self._given:
                return self._settings
            write = RecordWrite(KIND, ID, ID, to_json(given).decode(), version=self._version)
            if (await self._store.write_records([write]))[0]:
                break  # else another process saved first: merge and try again
        await self.read()
        return self._settings

    async def read(self) -> None:
        asked = time.monotonic()
        record = (await self._store.get_records([(KIND, ID)]))[0]
        if asked < self._read_at:
            return  # a later read finished first and is at least as new
        self._given = from_json(record.body) if record else {}
        self._version = record.version if record else None
        known = {name: value for name, value in self._given.items() if name in NAMES}  # newer servers may have more
        self._settings = replace(self._defaults, **known, version=self._version or 0)
        self._store.stale_after_ms = self._settings.stale_after_ms
        self._read_at = asked


def _check_version(current: int, named: int | None) -> None:
    if named is not None and named != current:
        message = f"the settings are at version {current}, not {named}; read them again"
        raise VersionConflict(message, version=current)
