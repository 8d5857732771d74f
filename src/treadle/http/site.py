"""What operators decide at run time: who may do what over HTTP. Kept in the database, so that every server obeys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from treadle.accounts import ReadRecords
from treadle.http.errors import ApiError
from treadle.rules import InvalidRule, Rule, parse_rule
from treadle.store.base import Store

KIND = "settings"
ID = "jobs"
# What another server saved is obeyed after so long; what this one saved, at once.
READ_EVERY_S = 1.0
PUBLIC = "true"
"""Everybody, without signing in: our own word, which the rule language does not have."""


@dataclass(frozen=True, slots=True)
class JobsSettings:
    enqueue_rule: str = ""
    manage_rule: str = ""
    http_enabled: bool = True
    allowed_topics: Sequence[str] = ()


class Site:
    def __init__(self, store: Store, records: ReadRecords | None = None) -> None:
        self._store = store
        self._records = records or store.records
        self._jobs = JobsSettings()
        self._version: int | None = None
        self._read_at = float("-inf")

    async def jobs(self) -> JobsSettings:
        if time.monotonic() - self._read_at > READ_EVERY_S:
            await self._read()
        return self._jobs

    async def patch(self, changes: dict[str, Any]) -> JobsSettings:
        """Save these changes; a bad rule is refused, and nothing of them is saved."""
        _check_rules(changes)
        while True:
            await self._read()
            changed = replace(self._jobs, **changes)
            body = to_json(asdict(changed)).decode()
            if await self._store.put_record(KIND, ID, ID, body, self._version):
                break  # else somebody else saved meanwhile: theirs and ours together
        await self._read()
        return self._jobs

    async def _read(self) -> None:
        asked = time.monotonic()
        record = (await self._records([(KIND, ID)]))[0]
        self._jobs = JobsSettings(**from_json(record.body)) if record else JobsSettings()
        self._version = record.version if record else None
        self._read_at = asked


def _check_rules(changes: dict[str, Any]) -> None:
    data = {}
    for name in ("enqueue_rule", "manage_rule"):
        try:
            parsed(changes.get(name, ""))
        except InvalidRule as error:
            data[name] = {"code": "validation_invalid_rule", "message": f"Invalid rule: {error.message}"}
    if data:
        name, first = next(iter(data.items()))
        raise ApiError(400, "invalid_rule", f"{name}: {first['message']}", {"jobs": data, **data})


@lru_cache(maxsize=64)
def parsed(text: str) -> Rule | None:
    """None for the two that are no expressions: `""`, superusers only, and `"true"`, everybody."""
    return None if text in ("", PUBLIC) else parse_rule(text)
