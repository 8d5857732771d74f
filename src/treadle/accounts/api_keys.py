"""API keys: for services, with scopes in place of a password. Shown once, stored hashed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from pydantic_core import to_json

from treadle.accounts.account import ApiKey, api_key_from, checked_key_name, checked_scopes, digest, new_id
from treadle.accounts.errors import ApiKeyNotFound
from treadle.model.errors import InvalidInput
from treadle.model.job import to_ms
from treadle.store.protocol import Store
from treadle.store.values import RecordWrite

KIND = "api_keys"
PREFIX = "trdl_"
MAX_SECRET = 100


class ApiKeys:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def create(self, name: str, scopes: Iterable[str], expires_at: datetime | None = None) -> tuple[ApiKey, str]:
        """Create a key. Its secret is returned here and can't be read later."""
        body = {
            "name": checked_key_name(name),
            "scopes": sorted(checked_scopes(scopes)),
            "expiresAt": self._checked_expiry(expires_at),
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
        return None if key is None or self._expired(key) else key

    def _expired(self, key: ApiKey) -> bool:
        return key.expires_at is not None and key.expires_at.timestamp() <= self._clock()

    def _checked_expiry(self, expires_at: datetime | None) -> int | None:
        if expires_at is None:
            return None
        ms = to_ms(expires_at, "expires_at")
        if ms <= self._clock() * 1000:
            raise InvalidInput(f"expires_at: {expires_at.isoformat()} is in the past", field="expires_at")
        return ms
