"""Accounts, API keys and callers as values, with their validation."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeGuard

from pydantic_core import from_json, to_json

from treadle.model.caller import Caller as ApplicationUser
from treadle.model.errors import InvalidInput
from treadle.model.job import from_ms, rfc3339
from treadle.model.payload import dumps_object
from treadle.store.values import Record

Collection = Literal["users", "_superusers"]
USERS: Collection = "users"
SUPERUSERS: Collection = "_superusers"
# PocketBase's ids for these collections, which its clients expect.
COLLECTION_IDS: Mapping[Collection, str] = {USERS: "_pb_users_auth_", SUPERUSERS: "pbc_3142635823"}

SCOPES = frozenset("enqueue manage workers topics templates schedules webhooks settings metrics".split())

MIN_PASSWORD = 8
MAX_PASSWORD = 1000
MAX_EMAIL = 254
MAX_DATA_BYTES = 16_384
MAX_NAME = 100

# Built-in fields of an account, and names that could be mistaken for them.
RESERVED = frozenset(
    "id collectionId collectionName email emailVisibility verified created updated "
    "password passwordConfirm passwordHash oldPassword tokenKey expand".split()
)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID = re.compile(r"[a-z0-9]{15}")
_EMAIL = re.compile(r"""[^\s@<>()\[\]\\,;:"]{1,64}@[^\s@<>()\[\]\\,;:"]+""")


@dataclass(frozen=True, slots=True)
class Account:
    """A user or a superuser. Secrets are never printed and never part of its JSON."""

    id: str
    collection: Collection
    email: str
    verified: bool
    created: datetime
    updated: datetime
    data: Mapping[str, Any]
    password_hash: str = field(repr=False)
    token_key: str = field(repr=False)
    """Part of the key that signs the account's tokens; replacing it invalidates all of them."""
    version: int = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """The account as PocketBase writes a record, with the user's data at the top level."""
        return {
            **self.data,
            "id": self.id,
            "collectionId": COLLECTION_IDS[self.collection],
            "collectionName": self.collection,
            "email": self.email,
            "emailVisibility": False,
            "verified": self.verified,
            "created": record_time(self.created),
            "updated": record_time(self.updated),
        }


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key for a service. Only the hash of its secret is stored."""

    id: str
    name: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None
    created_by: str = ""
    """A superuser's address, or "command line"; empty if unknown."""
    last_used_at: datetime | None = None
    """To the minute."""

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "scopes": sorted(self.scopes),
            "createdAt": rfc3339(self.created_at),
            "createdBy": self.created_by or None,
            "expiresAt": rfc3339(self.expires_at),
            "lastUsedAt": rfc3339(self.last_used_at),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """Who sent the request. The same token gives the same object until the account changes."""

    kind: Literal["anonymous", "user", "superuser", "api_key"]
    record: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What rules see as `@request.auth.*`. Empty for an API key, because scopes decide what it may do, not rules."""
    scopes: frozenset[str] = frozenset()
    account_id: str | None = None
    """The id of the account or of the API key."""
    account: Account | None = field(default=None, repr=False)
    """The account when the token was checked; new tokens are made from it. None for the application's own users."""
    name: str = "anonymous"
    """For the audit log: an e-mail address or the name of an API key."""

    anonymous: ClassVar[Caller]

    @property
    def is_superuser(self) -> bool:
        return self.kind == "superuser"

    def may(self, scope: str) -> bool:
        """Superusers may do everything, API keys what their scopes allow, others nothing that needs a scope."""
        return self.is_superuser or scope in self.scopes

    @classmethod
    def of_account(cls, account: Account) -> Caller:
        kind: Literal["user", "superuser"] = "superuser" if account.collection == SUPERUSERS else "user"
        record = MappingProxyType(account.as_json())
        return cls(kind, record, account_id=account.id, account=account, name=account.email)

    @classmethod
    def of_application(cls, user: ApplicationUser) -> Caller:
        """A user whom the host application vouches for. Equal users give the same object, so that rules are bound to
        them once."""
        return _of_application(user.id, user.email, to_json(checked_data(user.data)), user.superuser)

    @classmethod
    def of_key(cls, key: ApiKey) -> Caller:
        return cls("api_key", scopes=key.scopes, account_id=key.id, name=key.name)


Caller.anonymous = Caller("anonymous")


@lru_cache(maxsize=512)
def _of_application(id: str, email: str, data: bytes, superuser: bool) -> Caller:
    collection = SUPERUSERS if superuser else USERS
    named = {"id": id, "email": email, "collectionId": COLLECTION_IDS[collection], "collectionName": collection}
    record = MappingProxyType({**from_json(data), **named})
    return Caller("superuser" if superuser else "user", record, account_id=id, name=email or id)


# -- records ---------------------------------------------------------------------------------------


def account_from(record: Record) -> Account:
    body = from_json(record.body)
    return Account(
        id=record.id,
        collection=USERS if record.kind == USERS else SUPERUSERS,
        email=body["email"],
        verified=body["verified"],
        created=instant(record.created_at),
        updated=instant(record.updated_at),
        data=body["data"],
        password_hash=body["passwordHash"],
        token_key=body["tokenKey"],
        version=record.version,
    )


def account_body(email: str, password_hash: str, token_key: str, verified: bool, data: Mapping[str, Any]) -> str:
    return to_json(
        {
            "email": email,
            "passwordHash": password_hash,
            "tokenKey": token_key,
            "verified": verified,
            "data": dict(data),
        }
    ).decode()


def api_key_from(record: Record) -> ApiKey:
    body = from_json(record.body)
    return ApiKey(
        id=record.id,
        name=body["name"],
        scopes=frozenset(body["scopes"]),
        created_at=instant(record.created_at),
        expires_at=from_ms(body["expiresAt"]),
        created_by=body.get("createdBy", ""),
        last_used_at=from_ms(body.get("lastUsedAt")),
    )


def instant(ms: int) -> datetime:
    when = from_ms(ms)
    assert when is not None
    return when


def record_time(when: datetime) -> str:
    """As PocketBase writes it: 2026-01-01 00:00:00.000Z."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


# -- what may be in them ---------------------------------------------------------------------------


def new_id() -> str:
    """15 letters and digits, like PocketBase's ids."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(15))


def is_id(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def new_token_key() -> str:
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """The hash stored in place of a secret. Secrets are long and random, so a fast hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def checked_collection(name: str) -> Collection:
    if name == USERS:
        return USERS
    if name == SUPERUSERS:
        return SUPERUSERS
    raise InvalidInput(f"{name[:40]!r} is not a collection; there are {USERS} and {SUPERUSERS}", field="collection")


def checked_email(email: str) -> str:
    """The address without surrounding blanks. Only sending a mail could tell whether it exists."""
    text = email.strip() if isinstance(email, str) else ""
    if len(text) > MAX_EMAIL or not text.isprintable() or not _EMAIL.fullmatch(text):
        raise InvalidInput(
            f"email: {str(email)[:60]!r} is not an e-mail address; write it like ann@example.com", field="email"
        )
    return text


def email_key(email: str) -> str:
    """The lookup key of an address, the same for upper and lower case."""
    return email.strip().lower()


def checked_password(password: str) -> str:
    if not isinstance(password, str) or not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise InvalidInput(
            f"password: use {MIN_PASSWORD} to {MAX_PASSWORD:,} characters"
            + (f", not {len(password):,}" if isinstance(password, str) else ""),
            field="password",
        )
    return password


def checked_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """A user's extra fields as plain JSON. Their names must not look like built-in fields."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"data: must be an object, not {type(data).__name__}", field="data")
    text = dumps_object(dict(data), "data")
    size = len(text.encode())
    if size > MAX_DATA_BYTES:
        raise InvalidInput(f"data: is {size:,} bytes of JSON, the limit is {MAX_DATA_BYTES:,}", field="data")
    plain: dict[str, Any] = from_json(text)
    if taken := sorted(RESERVED & plain.keys()):
        raise InvalidInput(f"data: {', '.join(taken)} can't be set here; choose other names", field="data")
    return plain


def checked_key_name(name: str) -> str:
    text = name.strip() if isinstance(name, str) else ""
    if not text or len(text) > MAX_NAME or not text.isprintable():
        raise InvalidInput(f"name: use 1 to {MAX_NAME} printable characters, such as ci", field="name")
    return text


def checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    wanted = frozenset([scopes] if isinstance(scopes, str) else scopes)
    if unknown := sorted(str(one)[:40] for one in wanted - SCOPES):
        raise InvalidInput(f"scopes: there is no {', '.join(unknown)}; there are {_all_scopes()}", field="scopes")
    if not wanted:
        raise InvalidInput(f"scopes: name at least one of {_all_scopes()}", field="scopes")
    return wanted


def _all_scopes() -> str:
    return ", ".join(sorted(SCOPES))
