"""Tokens are JWTs, signed with the key of the installation and the key of the account."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jwt

from treadle.accounts.account import COLLECTION_IDS, SUPERUSERS, USERS, Account, Collection, digest, is_id

ALGORITHM = "HS256"
MAX_BYTES = 4096
LIFETIME_SECONDS = {USERS: 5 * 86_400, SUPERUSERS: 86_400}
_COLLECTIONS = {id: name for name, id in COLLECTION_IDS.items()}


class Claims(NamedTuple):
    collection: Collection
    id: str
    expires: int
    session: str
    """Shared by the tokens that one sign-in led to: its own and those that it was exchanged for."""


def sign(account: Account, install_key: str, now: float, session: str = "") -> str:
    claims = {
        "id": account.id,
        "collectionId": COLLECTION_IDS[account.collection],
        "type": "auth",
        "refreshable": True,
        **({"session": session} if session else {}),
        "exp": int(now) + LIFETIME_SECONDS[account.collection],
    }
    return jwt.encode(claims, _key(account, install_key), ALGORITHM)


def claimed(token: str) -> Claims | None:
    """The account that the token claims to belong to, unverified, so that its key can be looked up."""
    return _read(token) if len(token) <= MAX_BYTES and token.isascii() else None


@lru_cache(maxsize=1024)
def _read(token: str) -> Claims | None:
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None
    collection_id, id, expires = claims.get("collectionId"), claims.get("id"), claims.get("exp")
    collection = _COLLECTIONS.get(collection_id) if isinstance(collection_id, str) else None
    if collection is None or not is_id(id) or type(expires) is not int or claims.get("type") != "auth":
        return None
    return Claims(collection, id, expires, _session(claims.get("session"), token))


def _session(value: Any, token: str) -> str:
    """Of an older token, or one that we did not sign, the token itself."""
    known = isinstance(value, str) and 16 <= len(value) <= 64 and value.isascii() and value.isalnum()
    return str(value) if known else digest(token)


def is_genuine(token: str, account: Account, install_key: str) -> bool:
    """Whether we signed it. We choose the algorithm, never the token."""
    try:
        jwt.decode(token, _key(account, install_key), [ALGORITHM], options={"verify_exp": False})
    except (jwt.PyJWTError, ValueError):
        return False
    return True


def _key(account: Account, install_key: str) -> str:
    return account.token_key + install_key
