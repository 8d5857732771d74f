"""Password hashes: argon2id, off the event loop, a few in parallel."""

from __future__ import annotations

import asyncio
from base64 import b64encode

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

# Each hash takes 64 MiB and all cores for a moment; running more in parallel makes every one slower.
AT_ONCE = 2


class Passwords:
    """One for each event loop."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._nobodys = _nobodys_hash(self._hasher)

    async def hash(self, password: str) -> str:
        async with self._turn:
            return await asyncio.to_thread(self._hasher.hash, _bytes(password))

    async def matches(self, password_hash: str | None, password: str) -> bool:
        """Whether this is the password. None, for an unknown account, takes just as long and returns False."""
        async with self._turn:
            fits = await asyncio.to_thread(self._fits, password_hash or self._nobodys, password)
        return fits and password_hash is not None

    def _fits(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, _bytes(password))
        except (VerificationError, InvalidHashError):
            return False


def _bytes(password: str) -> bytes:
    """JSON can carry half a surrogate pair, which must not cause an error here."""
    return password.encode("utf-8", "surrogatepass")


def _nobodys_hash(hasher: PasswordHasher) -> str:
    """A hash that matches no password and takes as long to check as a real one."""
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, digest = (b64encode(bytes(size)).decode().rstrip("=") for size in (hasher.salt_len, hasher.hash_len))
    return f"$argon2id$v=19${costs}${salt}${digest}"
