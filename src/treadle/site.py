"""What operators decide at run time. Kept in the database, so that every server and every worker obeys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic_core import from_json, to_json

from treadle.settings import Settings
from treadle.store.base import Store

KIND = "settings"
ID = "jobs"
# What another process saved is obeyed after so long by whoever asks; what this one saved, at once.
READ_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class SiteSettings:
    stale_after_ms: int
    delete_after_ms: int
    enqueue_rule: str = ""
    manage_rule: str = ""
    http_enabled: bool = True
    allowed_topics: Sequence[str] = ()


NAMES = frozenset(one.name for one in fields(SiteSettings))


class Site:
    """The settings of this database; `own` are those of this process, which count where nothing was given.

    Each time it reads them it tells the store from when on a job is stale.
    """

    def __init__(self, store: Store, own: Settings) -> None:
        self._store = store
        self._defaults = self._settings = SiteSettings(own.stale_after_ms, own.delete_after_ms)
        self._given: dict[str, Any] = {}
        self._version: int | None = None
        self._read_at = float("-inf")

    async def settings(self) -> SiteSettings:
        if time.monotonic() - self._read_at > READ_EVERY_S:
            await self.read()
        return self._settings

    async def change(self, changes: dict[str, Any]) -> SiteSettings:
        """Save these changes, checked before; None goes back to the default."""
        while True:
            await self.read()
            given = {name: value for name, value in (self._given | changes).items() if value is not None}
            if await self._store.put_record(KIND, ID, ID, to_json(given).decode(), self._version):
                break  # else somebody else saved meanwhile: theirs and ours together
        await self.read()
        return self._settings

    async def read(self) -> None:
        asked = time.monotonic()
        record = (await self._store.records([(KIND, ID)]))[0]
        if asked < self._read_at:
            return  # overtaken by a later look, which knows at least as much
        self._given = from_json(record.body) if record else {}
        self._version = record.version if record else None
        known = {name: value for name, value in self._given.items() if name in NAMES}  # a newer server may know more
        self._settings = replace(self._defaults, **known)
        self._store.stale_after_ms = self._settings.stale_after_ms
        self._read_at = asked
