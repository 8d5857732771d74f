"""Links that create a superuser. Each works once, for a day, and is stored hashed.

Every server that starts without a superuser prints a set-up link; only the newest one is valid. A superuser makes
invitations for others.
"""

from __future__ import annotations

import secrets

from pydantic_core import from_json, to_json

from treadle.accounts.account import SUPERUSERS, digest, new_id
from treadle.accounts.errors import SetupRefused
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

SETUP = "setup"
INVITATION = "invitation"
LIFETIME_MS = 86_400_000
FIRST_SUPERUSER = "firstsuperuser0"
NOT_INVITED = "this invitation is not valid or has been used already; ask for a new one"


async def issue(store: Store, kind: str, now_ms: int, by: str | None = None) -> str:
    """Create a link, made by the account `by`. Deletes expired ones; a new set-up link makes all older ones invalid."""
    found = await store.find_records(kind)
    await store.delete_records([(kind, one.id) for one in found if kind == SETUP or _expired(one, now_ms)])
    secret = secrets.token_urlsafe(32)
    body = to_json({"expiresAt": now_ms + LIFETIME_MS, "by": by}).decode()
    await store.write_records([RecordWrite(kind, new_id(), digest(secret), body)])
    return secret


async def find(store: Store, kind: str, secret: str, now_ms: int) -> Record:
    """The link's record; SetupRefused if it is not valid."""
    found = await store.find_records(kind, key=digest(secret))
    if not found or _expired(found[0], now_ms) or not await _stands(store, found[0]):
        raise SetupRefused(NOT_INVITED if kind == INVITATION else "")
    return found[0]


async def _stands(store: Store, link: Record) -> bool:
    """An invitation is worth as much as the account that made it: nothing, if that was deleted."""
    by = from_json(link.body).get("by")
    return link.kind != INVITATION or (by is not None and (await store.get_records([(SUPERUSERS, by)]))[0] is not None)


async def use_up(store: Store, link: Record) -> None:
    await store.delete_records([(link.kind, link.id)])


def _expired(record: Record, now_ms: int) -> bool:
    return bool(from_json(record.body)["expiresAt"] <= now_ms)
