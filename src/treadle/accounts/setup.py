"""The set-up link: whoever starts the server first becomes its first superuser, once.

Every server that starts without a superuser prints a link of its own; each works until one of them was used.
"""

from __future__ import annotations

import secrets

from pydantic_core import from_json, to_json

from treadle.accounts.account import digest, new_id
from treadle.accounts.errors import SetupRefused
from treadle.store.base import Record, Store

KIND = "setup"
LIFETIME_MS = 86_400_000


async def issue(store: Store, now_ms: int) -> str:
    for record in await store.list_records(KIND):
        if _expired(record, now_ms):
            await store.delete_record(KIND, record.id)
    secret = secrets.token_urlsafe(32)
    body = to_json({"expiresAt": now_ms + LIFETIME_MS}).decode()
    await store.put_record(KIND, new_id(), digest(secret), body)
    return secret


async def find(store: Store, secret: str, now_ms: int) -> Record:
    """The link's record; SetupRefused if it is not valid."""
    record = await store.find_record(KIND, digest(secret))
    if record is None or _expired(record, now_ms):
        raise SetupRefused
    return record


async def use_up(store: Store, record: Record) -> None:
    """Of any number that come with the same link one gets through; then all links are gone."""
    if not await store.delete_record(KIND, record.id):
        raise SetupRefused
    for other in await store.list_records(KIND):
        await store.delete_record(KIND, other.id)


def _expired(record: Record, now_ms: int) -> bool:
    return bool(from_json(record.body)["expiresAt"] <= now_ms)
