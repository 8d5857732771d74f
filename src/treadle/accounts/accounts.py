"""Sign-in, and finding the account behind a token.

An account is one record in the store. Every request with a token reads that record again, so a changed password, a
deleted account or a revoked key takes effect at the next request.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from treadle.accounts import links, signing_keys, tokens
from treadle.accounts.account import (
    MAX_EMAIL,
    MAX_PASSWORD,
    SUPERUSERS,
    USERS,
    Account,
    Caller,
    Collection,
    account_body,
    account_from,
    checked_collection,
    checked_data,
    checked_email,
    checked_password,
    email_key,
    new_id,
    new_token_key,
)
from treadle.accounts.api_keys import PREFIX, ApiKeys
from treadle.accounts.errors import AccountExists, AccountNotFound, LastSuperuser, SetupRefused, SignInFailed
from treadle.accounts.last_seen import KIND as LAST_SEEN
from treadle.accounts.last_seen import LastSeen
from treadle.accounts.passwords import Passwords
from treadle.accounts.signing_keys import ReadRecords, SigningKeys
from treadle.accounts.throttle import SignInThrottle
from treadle.model.errors import StoreUnavailable, VersionConflict
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

SIGNED_OUT = "signed_out"
# Begins the key of a superuser that is being deleted; no e-mail address has a blank.
RETIRED = "deleted "
# How often to retry when other writers keep changing the same record.
TRIES = 10

AccountEdit = Callable[[Account], Account]


class Accounts:
    """Users, superusers, API keys and tokens in a store; one for each event loop, like the store."""

    def __init__(
        self,
        store: Store,
        *,
        passwords: Passwords | None = None,
        attempts: SignInThrottle | None = None,
        clock: Callable[[], float] = time.time,
        records: ReadRecords | None = None,
        key_file: Path | None = None,
        secret_key: str = "",
    ) -> None:
        """`records` reads the records of callers; by default, the store's method of that name. `key_file` and
        `secret_key`: see `SigningKeys`."""
        self._store = store
        self._records = records or store.get_records
        self._passwords = passwords or Passwords()
        self._attempts = attempts or SignInThrottle()
        self._clock = clock
        self.keys = SigningKeys(store, key_file, secret_key, self._records)
        self.api_keys = ApiKeys(store, clock)
        self.last_seen = LastSeen(store, clock)

    async def close(self) -> None:
        """End what is still written in the background."""
        await self.api_keys.close()
        await self.last_seen.close()

    # -- accounts ------------------------------------------------------------------------------

    async def superuser_exists(self) -> bool:
        return bool(await self._store.find_records(SUPERUSERS, limit=1))

    async def upsert_superuser(self, email: str, password: str) -> Account:
        """Create a superuser, or set a new password for an existing one."""
        email = checked_email(email)
        hashed = await self._passwords.hash(checked_password(password))
        body = account_body(email, hashed, new_token_key(), verified=True, data={})
        for _ in range(TRIES):
            found = await self._by_key(SUPERUSERS, email_key(email))
            id, version = (new_id(), None) if found is None else (found.id, found.version)
            record = await self._write(RecordWrite(SUPERUSERS, id, email_key(email), body, version=version))
            if record is not None:
                return account_from(record)
        raise _busy(email)

    async def create_user(
        self, email: str, password: str, data: Mapping[str, Any] | None = None, *, verified: bool = False
    ) -> Account:
        """Create a user; AccountExists if the address is taken."""
        email, fields = checked_email(email), checked_data(data or {})
        hashed = await self._passwords.hash(checked_password(password))
        body = account_body(email, hashed, new_token_key(), verified, fields)
        record = await self._write(RecordWrite(USERS, new_id(), email_key(email), body))
        if record is None:
            raise _taken(email)
        return account_from(record)

    async def update_user(
        self,
        user: str,
        *,
        email: str | None = None,
        password: str | None = None,
        data: Mapping[str, Any] | None = None,
        verified: bool | None = None,
    ) -> Account:
        """Change the given fields of the user with this id or address. `data` is merged, and null removes a field.

        A new password or address invalidates all tokens of the user.
        """
        new_email = None if email is None else checked_email(email)
        fields = None if data is None else checked_data(data)
        hashed = None if password is None else await self._passwords.hash(checked_password(password))

        def change(account: Account) -> Account:
            if new_email is not None:
                account = replace(account, email=new_email, token_key=new_token_key())
            if hashed is not None:
                account = replace(account, password_hash=hashed, token_key=new_token_key())
            if fields is not None:
                account = replace(account, data=_merged(account.data, fields))
            return account if verified is None else replace(account, verified=verified)

        return await self._change(USERS, user, change)

    async def revoke_tokens(self, collection: str, account: str) -> Account:
        """Invalidate all tokens of the account with this id or address; its password stays."""
        return await self._change(
            checked_collection(collection), account, lambda found: replace(found, token_key=new_token_key())
        )

    async def delete(self, collection: str, account: str) -> Account:
        """Delete the account with this id or address, and with it its tokens; returns the deleted account."""
        found = await self.get(collection, account)
        if found.collection == SUPERUSERS:
            await self._retire(found)
        if not await self._store.delete_records([(found.collection, found.id)]):
            raise _unknown(account)
        await self._store.delete_records([(LAST_SEEN, found.id)])
        return found

    async def _retire(self, account: Account) -> None:
        """Mark a superuser as deleted, unless it is the last one.

        The mark and a guard that all deletions change are written together. So of two superusers that are deleted at
        the same time, the second is seen to be the last.
        """
        for _ in range(TRIES):
            (guard,) = await self._store.get_records([(signing_keys.INSTALL, SUPERUSERS)])
            records = await self._store.find_records(SUPERUSERS)
            if not any(one.id != account.id and not _is_retired(one) for one in records):
                raise LastSuperuser(f"{account.email} is the only superuser; create another one first")
            record = next((one for one in records if one.id == account.id), None)
            if record is None or _is_retired(record):
                return
            body = account_body(account.email, account.password_hash, new_token_key(), account.verified, account.data)
            writes = [
                RecordWrite(signing_keys.INSTALL, SUPERUSERS, SUPERUSERS, "{}", version=guard and guard.version),
                RecordWrite(SUPERUSERS, record.id, RETIRED + record.id, body, version=record.version),
            ]
            try:
                await self._store.write_records(writes, atomic=True)
            except VersionConflict:
                continue
            return
        raise _busy(account.email)

    async def get(self, collection: str, account: str) -> Account:
        """The account with this id or address; AccountNotFound if there is none."""
        record = await self._find(checked_collection(collection), account)
        if record is None:
            raise _unknown(account)
        return account_from(record)

    async def list(self, collection: str, limit: int = 1000) -> Sequence[Account]:
        """Oldest first."""
        found = await self._store.find_records(checked_collection(collection), limit=limit)
        return [account_from(one) for one in found]

    async def _find(self, collection: Collection, account: str) -> Record | None:
        if "@" in account:
            return await self._by_key(collection, email_key(account))
        return (await self._store.get_records([(collection, account)]))[0]

    async def _by_key(self, collection: Collection, key: str) -> Record | None:
        return next(iter(await self._store.find_records(collection, key=key)), None)

    async def _write(self, write: RecordWrite) -> Record | None:
        return (await self._store.write_records([write]))[0]

    async def _change(self, collection: Collection, name: str, change: AccountEdit) -> Account:
        for _ in range(TRIES):
            account = await self.get(collection, name)
            wanted = change(account)
            checked_data(wanted.data)
            key = email_key(wanted.email)
            body = account_body(wanted.email, wanted.password_hash, wanted.token_key, wanted.verified, wanted.data)
            record = await self._write(RecordWrite(collection, account.id, key, body, version=account.version))
            if record is not None:
                return account_from(record)
            other = await self._by_key(collection, key)
            if other is not None and other.id != account.id:
                raise _taken(wanted.email)
        raise _busy(name)

    # -- signing in ----------------------------------------------------------------------------

    async def sign_in(self, collection: str, identity: str, password: str, client: str) -> Account:
        """The account with this address and password. `client` is the IP address that the attempt comes from.

        SignInFailed does not tell which of the two was wrong, and its timing does not tell whether the account exists.
        """
        found = checked_collection(collection)
        key = email_key(identity)[: MAX_EMAIL + 1]
        async with self._attempts.attempt(client, f"{found}/{key}"):
            record = await self._by_key(found, key)
            account = None if record is None else account_from(record)
            hashed = account.password_hash if account and len(password) <= MAX_PASSWORD else None
            if not await self._passwords.matches(hashed, password[:MAX_PASSWORD]) or account is None:
                raise SignInFailed
        return account

    async def token(self, account: Account, instead_of: str | None = None) -> str:
        """A token for an account that has just signed in. It is invalid if the password has changed since.

        `instead_of`: a valid token of the account. The new one belongs to the same session.
        """
        old = tokens.claimed(instead_of) if instead_of else None
        session = old.session if old else secrets.token_hex(16)
        return tokens.sign(account, await self.keys.current(), self._clock(), session)

    async def sign_out(self, token: str) -> None:
        """End the session of this token: all its tokens are invalid from now on, on every server."""
        claims = tokens.claimed(token)
        if claims is None or await self.caller(token) is None:
            return
        now = await self._store.now()
        old = await self._store.find_records(SIGNED_OUT, due_before=now)
        await self._store.delete_records([(SIGNED_OUT, one.id) for one in old])
        due = now + 1000 * tokens.LIFETIME_SECONDS[claims.collection]  # then its newest token has expired
        await self._write(RecordWrite(SIGNED_OUT, claims.session, claims.session, "{}", due))

    async def caller(self, token: str) -> Caller | None:
        """The caller behind this token or API key; None if it is invalid or no longer valid."""
        if token.startswith(PREFIX):
            key = await self.api_keys.find(token)
            return None if key is None else Caller.of_key(key)
        claims = tokens.claimed(token)
        if claims is None or claims.expires <= self._clock():
            return None
        names = [signing_keys.NAME, (claims.collection, claims.id), (SIGNED_OUT, claims.session)]
        install, record, ended = await self._records(names)
        return None if record is None or ended else _bearer(token, self.keys.accepted(install), record)

    async def accepted_keys(self) -> tuple[str, ...]:
        """All keys that what was signed before may have."""
        (install,) = await self._records([signing_keys.NAME])
        return self.keys.accepted(install)

    # -- setting up ----------------------------------------------------------------------------

    async def setup_token(self) -> str | None:
        """The token of a link that creates the first superuser; None if one exists. Valid for a day, stored hashed."""
        return None if await self.superuser_exists() else await links.issue(self._store, links.SETUP, self._now_ms())

    async def redeem_setup(self, token: str, email: str, password: str) -> Account:
        """Create the first superuser; SetupRefused if the token is invalid or a superuser exists by now."""
        link = await links.find(self._store, links.SETUP, token, self._now_ms())
        if await self.superuser_exists():
            raise SetupRefused
        # All set-up links insert the same id, so only one of several concurrent requests succeeds.
        record = await self._write(await self._new_superuser(links.FIRST_SUPERUSER, email, password))
        if record is None:
            raise SetupRefused
        await links.use_up(self._store, link)
        return account_from(record)

    async def invite(self, by: Account) -> str:
        """The token of a link that creates another superuser. Valid for a day, once, and while `by` exists; stored
        hashed."""
        return await links.issue(self._store, links.INVITATION, self._now_ms(), by.id)

    async def redeem_invitation(self, token: str, email: str, password: str) -> Account:
        """Create a superuser; SetupRefused if the token is invalid, AccountExists if the address is taken."""
        link = await links.find(self._store, links.INVITATION, token, self._now_ms())
        # The account gets the id of the link, so only one of several concurrent requests succeeds.
        record = await self._write(await self._new_superuser(link.id, email, password))
        if record is None:
            other = await self._by_key(SUPERUSERS, email_key(email))
            raise SetupRefused(links.NOT_INVITED) if other is None or other.id == link.id else _taken(email)
        await links.use_up(self._store, link)
        return account_from(record)

    async def _new_superuser(self, id: str, email: str, password: str) -> RecordWrite:
        """Validated before a link is used up, so that a typo does not cost it."""
        email = checked_email(email)
        hashed = await self._passwords.hash(checked_password(password))
        return RecordWrite(
            SUPERUSERS, id, email_key(email), account_body(email, hashed, new_token_key(), verified=True, data={})
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _is_retired(record: Record) -> bool:
    return record.key.startswith(RETIRED)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**old, **new}.items() if name not in new or value is not None}


@lru_cache(maxsize=512)
def _bearer(token: str, keys: tuple[str, ...], record: Record) -> Caller | None:
    """The caller that the token belongs to. Cached: the same records always give the same caller."""
    account = account_from(record)
    genuine = any(tokens.is_genuine(token, account, key) for key in keys)
    return Caller.of_account(account) if genuine else None


def _unknown(account: str) -> AccountNotFound:
    return AccountNotFound(f"there is no account {account[:80]}", account=account[:80])


def _taken(email: str) -> AccountExists:
    return AccountExists(f"{email} belongs to another account", field="email")


def _busy(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"account {name[:80]} is changed too often just now; try again")
