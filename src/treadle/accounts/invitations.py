"""Links with which a superuser lets another person become one. Each works once, for a day, and is stored hashed."""

from __future__ import annotations

import secrets

from pydantic_core import from_json, to_json

from treadle.accounts.account import digest, new_id
from treadle.accounts.errors import SetupRefused
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

KIND = "invitation"
LIFETIME_MS = 86_400_000


async def issue(store: Store, now_ms: int) -> str:
    """Create a link; the expired ones are deleted."""
    old = [(KIND, one.id) for one in await store.find_records(KIND) if _expired(one, now_ms)]
    if old:
        await store.delete_records(old)
    secret = secrets.token_urlsafe(32)
    body = to_json({"expiresAt": now_ms + LIFETIME_MS}).decode()
    await store.write_records([RecordWrite(KIND, new_id(), digest(secret), body)])
    return secret


async def find(store: Store, secret: str, now_ms: int) -> Record:
    """The link's record; SetupRefused if it is not valid."""
    found = await store.find_records(KIND, key=digest(secret))
    if not found or _expired(found[0], now_ms):
        raise SetupRefused("this invitation is not valid or has been used already; ask for a new one")
    return found[0]


async def use_up(store: Store, record: Record) -> None:
    await store.delete_records([(KIND, record.id)])


def _expired(record: Record, now_ms: int) -> bool:
    return bool(from_json(record.body)["expiresAt"] <= now_ms)
