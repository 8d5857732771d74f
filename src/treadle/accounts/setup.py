"""The set-up link, which lets the person who starts the server create the first superuser.

Every server that starts without a superuser prints a link. Only the newest link is valid.
"""

from __future__ import annotations

import secrets

from pydantic_core import from_json, to_json

from treadle.accounts.account import digest, new_id
from treadle.accounts.errors import SetupRefused
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

KIND = "setup"
LIFETIME_MS = 86_400_000
FIRST_SUPERUSER = "firstsuperuser0"


async def issue(store: Store, now_ms: int) -> str:
    """Create a new link; older ones become invalid."""
    await use_up(store)
    secret = secrets.token_urlsafe(32)
    body = to_json({"expiresAt": now_ms + LIFETIME_MS}).decode()
    await store.write_records([RecordWrite(KIND, new_id(), digest(secret), body)])
    return secret


async def find(store: Store, secret: str, now_ms: int) -> Record:
    """The link's record; SetupRefused if it is not valid."""
    found = await store.find_records(KIND, key=digest(secret))
    if not found or _expired(found[0], now_ms):
        raise SetupRefused
    return found[0]


async def use_up(store: Store) -> None:
    """Invalidate all links."""
    await store.delete_records([(KIND, record.id) for record in await store.find_records(KIND)])


def _expired(record: Record, now_ms: int) -> bool:
    return bool(from_json(record.body)["expiresAt"] <= now_ms)
