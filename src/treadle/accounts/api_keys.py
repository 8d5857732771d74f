"""API keys: for services, with scopes in place of a password. Shown once, stored hashed."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from pydantic_core import from_json, to_json

from treadle.accounts.account import ApiKey, api_key_from, checked_key_name, checked_scopes, digest, new_id
from treadle.accounts.background_writes import BackgroundWrites
from treadle.accounts.errors import ApiKeyNotFound
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.job import to_ms
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

log = logging.getLogger("treadle.http")

KIND = "api_keys"
PREFIX = "trdl_"
MAX_SECRET = 100
NOTED_EVERY_MS = 60_000


class ApiKeys:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._noting: set[str] = set()
        self._writes = BackgroundWrites()

    async def create(
        self, name: str, scopes: Iterable[str], expires_at: datetime | None = None, *, created_by: str = ""
    ) -> tuple[ApiKey, str]:
        """Create a key. Its secret is returned here and can't be read later."""
        body = {
            "name": checked_key_name(name),
            "scopes": sorted(checked_scopes(scopes)),
            "expiresAt": self._checked_expiry(expires_at),
            "createdBy": created_by,
        }
        secret = PREFIX + secrets.token_urlsafe(32)
        write = RecordWrite(KIND, new_id(), digest(secret), to_json(body).decode())
        (record,) = await self._store.write_records([write])
        assert record is not None, "two random keys can't be the same"
        return api_key_from(record), secret

    async def list(self) -> Sequence[ApiKey]:
        """Oldest first, expired ones too."""
        return [api_key_from(record) for record in await self._store.find_records(KIND)]

    async def revoke(self, id: str) -> None:
        """Delete the key; requests with it fail from now on."""
        if not await self._store.delete_records([(KIND, id)]):
            raise ApiKeyNotFound(f"there is no API key {id[:40]}", id=id[:40])

    async def find(self, secret: str) -> ApiKey | None:
        """The key with this secret, if it is still valid."""
        if len(secret) > MAX_SECRET:
            return None
        found = await self._store.find_records(KIND, key=digest(secret))
        key = api_key_from(found[0]) if found else None
        if key is None or self._expired(key):
            return None
        self._note_use_soon(found[0], key)
        return key

    async def close(self) -> None:
        await self._writes.close()

    def _note_use_soon(self, record: Record, key: ApiKey) -> None:
        """In the background, because a request must not wait for a database that is busy writing. At most once a minute
        for each key, no matter how many requests and servers use it."""
        now = int(self._clock() * 1000)
        if key.id in self._noting or (key.last_used_at and now - to_ms(key.last_used_at) < NOTED_EVERY_MS):
            return
        self._noting.add(key.id)
        self._writes.start(self._note_use(record, key, now), "treadle-api-key-use")

    async def _note_use(self, record: Record, key: ApiKey, now: int) -> None:
        body = to_json({**from_json(record.body), "lastUsedAt": now}).decode()
        try:
            # By its version: another server may have noted it in the meantime, and a revoked key must stay away.
            await self._store.write_records([RecordWrite(KIND, key.id, record.key, body, version=record.version)])
        except TreadleError as error:
            log.warning("could not note the use of API key %s: %s", key.name, error)  # the request itself may work
        finally:
            self._noting.discard(key.id)

    def _expired(self, key: ApiKey) -> bool:
        return key.expires_at is not None and key.expires_at.timestamp() <= self._clock()

    def _checked_expiry(self, expires_at: datetime | None) -> int | None:
        if expires_at is None:
            return None
        ms = to_ms(expires_at, "expires_at")
        if ms <= self._clock() * 1000:
            raise InvalidInput(f"expires_at: {expires_at.isoformat()} is in the past", field="expires_at")
        return ms
