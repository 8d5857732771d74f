"""The audit log: one record per operator change, with who made it, on which jobs, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic_core import from_json, to_json
from uuid_utils import uuid7

from treadle.model.job import from_ms
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

KIND = "audit"
MAX_TEXT = 500
KEPT_MS = 180 * 24 * 3600 * 1000
SEARCHED = 5000
"""How many of the newest entries a search reads by default."""


class HasStore(Protocol):
    @property
    def store(self) -> Store: ...


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change."""

    name: str
    """An e-mail address or the name of an API key."""
    kind: str = "superuser"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    who: str
    kind: str
    action: str
    target: str = ""
    """A job id, a topic or the name of a setting."""
    filter: str = ""
    reason: str = ""
    changed: int | None = None
    skipped: int | None = None

    @property
    def text(self) -> str:
        """What a search looks at."""
        return f"{self.who} {self.kind} {self.action} {self.target} {self.filter} {self.reason}".lower()


class AuditLog:
    def __init__(self, queue: HasStore) -> None:
        self._store = queue.store

    async def add(
        self,
        actor: Actor,
        action: str,
        target: str = "",
        *,
        filter: str = "",
        reason: str = "",
        changed: int | None = None,
        skipped: int | None = None,
        id: str = "",
    ) -> None:
        """`id`: what the entry is about, so that it is written only once."""
        body: Mapping[str, Any] = {
            "who": actor.name,
            "kind": actor.kind,
            "action": action,
            "target": target[:MAX_TEXT],
            "filter": filter[:MAX_TEXT],
            "reason": reason[:MAX_TEXT],
            "changed": changed,
            "skipped": skipped,
        }
        id = id or str(uuid7())
        due = await self._store.now() + KEPT_MS
        await self._store.write_records([RecordWrite(KIND, id, id, to_json(body).decode(), due)])

    async def newest(self, limit: int = 50) -> Sequence[AuditEntry]:
        return [_entry(record) for record in await self._store.find_records(KIND, newest=True, limit=limit)]

    async def search(self, text: str, limit: int = 50, *, who: str = "", among: int = SEARCHED) -> Sequence[AuditEntry]:
        """The newest entries with all words of the text: a person, an action, an id, a filter or a reason.

        `who`: changes by this actor, or by this kind of actor. `among`: how many of the newest entries are read.
        """
        words = text.lower().split()
        entries = await self.newest(among if words or who else limit)
        return [
            entry
            for entry in entries
            if who in ("", entry.who, entry.kind) and all(word in entry.text for word in words)
        ][:limit]

    async def forget_old(self) -> str:
        """Returns what it did, in words."""
        old = await self._store.find_records(KIND, due_before=await self._store.now())
        gone = await self._store.delete_records([(KIND, record.id) for record in old])
        return f"{gone:,} deleted" if gone else "nothing to delete"


def _entry(record: Record) -> AuditEntry:
    at = from_ms(record.created_at)
    assert at is not None
    return AuditEntry(at, **from_json(record.body))
