"""API keys."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.accounts.desk import DAY, Clock
from tests.waiting import until
from treadle.accounts import Accounts, ApiKeyNotFound
from treadle.model.errors import InvalidInput, StoreUnavailable
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite


def after(clock: Clock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock() + seconds, UTC)


async def test_a_key_is_shown_once_and_opens_what_its_scopes_say(accounts: Accounts) -> None:
    key, secret = await accounts.api_keys.create(" ci ", ["enqueue", "metrics"])
    assert (key.name, sorted(key.scopes), key.expires_at) == ("ci", ["enqueue", "metrics"], None)
    assert secret.startswith("trdl_")
    assert len(secret) == 48
    caller = await accounts.caller(secret)
    assert caller is not None
    assert (caller.kind, caller.scopes, caller.account_id, caller.account) == ("api_key", key.scopes, key.id, None)
    assert dict(caller.record) == {}, "no rule takes it for a user"


async def test_only_a_hash_is_stored(accounts: Accounts, store: Store) -> None:
    _, secret = await accounts.api_keys.create("ci", ["enqueue"])
    [record] = await store.find_records("api_keys")
    assert secret not in str(record)
    assert secret.removeprefix("trdl_") not in str(record)


async def test_keys_are_listed_without_their_secrets(accounts: Accounts, clock: Clock) -> None:
    first, _ = await accounts.api_keys.create("ci", ["enqueue"])
    second, _ = await accounts.api_keys.create("ci", ["settings", "manage"], after(clock, 90 * DAY))
    assert await accounts.api_keys.list() == [first, second]
    assert set(first.as_json()) == {"id", "name", "scopes", "createdAt", "createdBy", "expiresAt", "lastUsedAt"}
    assert first.as_json()["expiresAt"] is None
    assert second.as_json()["scopes"] == ["manage", "settings"]
    assert second.as_json()["expiresAt"] == "2027-04-15T08:00:00.000Z"


async def test_a_revoked_key_opens_nothing(accounts: Accounts) -> None:
    key, secret = await accounts.api_keys.create("ci", ["enqueue"])
    _, other = await accounts.api_keys.create("ci", ["enqueue"])
    await accounts.api_keys.revoke(key.id)
    assert await accounts.caller(secret) is None
    assert await accounts.caller(other)
    with pytest.raises(ApiKeyNotFound, match=f"there is no API key {key.id}"):
        await accounts.api_keys.revoke(key.id)


@pytest.mark.parametrize("id", ["", "x", "\x00", "\ud800", "trdl_x"])
async def test_a_key_that_is_not_there_can_not_be_revoked(accounts: Accounts, id: str) -> None:
    with pytest.raises(ApiKeyNotFound):
        await accounts.api_keys.revoke(id)


async def test_the_last_use_of_a_key_is_known_to_the_minute(accounts: Accounts, store: Store, clock: Clock) -> None:
    key, secret = await accounts.api_keys.create("ci", ["enqueue"], created_by="root@example.com")
    assert (key.created_by, key.last_used_at) == ("root@example.com", None)

    async def used() -> datetime | None:
        [listed] = await accounts.api_keys.list()
        assert (listed.name, listed.created_by, listed.created_at) == ("ci", "root@example.com", key.created_at)
        return listed.last_used_at

    async def noted() -> bool:
        await accounts.caller(secret)
        return await used() == after(clock, 0)

    await until(noted)
    clock.now += 59
    await accounts.caller(secret)
    clock.now += 1
    await until(noted)
    [record] = await store.find_records("api_keys")
    assert record.version == 3, "a busy key is not written with each request"


async def test_a_request_does_not_wait_until_the_use_of_its_key_is_noted(
    accounts: Accounts, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret = await accounts.api_keys.create("ci", ["enqueue"])
    write, let_go = store.write_records, asyncio.Event()

    async def slowly(writes: Sequence[RecordWrite]) -> Sequence[Record | None]:
        await let_go.wait()
        return await write(writes)

    monkeypatch.setattr(store, "write_records", slowly)
    caller = await accounts.caller(secret)
    assert caller is not None
    assert caller.account_id == key.id
    [listed] = await accounts.api_keys.list()
    assert listed.last_used_at is None
    let_go.set()

    async def noted() -> bool:
        [listed] = await accounts.api_keys.list()
        return listed.last_used_at is not None

    await until(noted)


async def test_a_key_that_was_not_let_in_was_not_used(accounts: Accounts, clock: Clock) -> None:
    _, secret = await accounts.api_keys.create("ci", ["enqueue"], after(clock, DAY))
    clock.now += DAY
    assert await accounts.caller(secret) is None
    [listed] = await accounts.api_keys.list()
    assert listed.last_used_at is None


async def test_a_use_that_can_t_be_noted_lets_the_request_in(
    accounts: Accounts, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, secret = await accounts.api_keys.create("ci", ["enqueue"])

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(store, "write_records", away)
    assert await accounts.caller(secret)
    await until(lambda: "could not note the use of API key ci: the disk is full" in caplog.text)


async def test_many_requests_at_the_same_moment_note_one_use(accounts: Accounts, store: Store) -> None:
    key, secret = await accounts.api_keys.create("ci", ["enqueue"])
    [before] = await store.find_records("api_keys")
    callers = await asyncio.gather(*(accounts.caller(secret) for _ in range(20)))
    assert {caller.account_id for caller in callers if caller} == {key.id}

    async def noted() -> bool:
        [listed] = await accounts.api_keys.list()
        return listed.last_used_at is not None

    await until(noted)
    await accounts.close()
    [now] = await store.find_records("api_keys")
    assert now.version == before.version + 1


async def test_a_key_revoked_during_a_request_stays_away(
    accounts: Accounts, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret = await accounts.api_keys.create("ci", ["enqueue"])
    write, written = store.write_records, asyncio.Event()

    async def after_a_revocation(*writes: Any, **options: Any) -> Any:
        await accounts.api_keys.revoke(key.id)
        answer = await write(*writes, **options)
        written.set()
        return answer

    monkeypatch.setattr(store, "write_records", after_a_revocation)
    await accounts.caller(secret)
    await written.wait()
    assert await accounts.api_keys.list() == []


async def test_a_key_ends_when_it_was_said_to(accounts: Accounts, clock: Clock) -> None:
    _, secret = await accounts.api_keys.create("ci", ["enqueue"], after(clock, DAY))
    clock.now += DAY - 1
    assert await accounts.caller(secret)
    clock.now += 1
    assert await accounts.caller(secret) is None
    assert len(await accounts.api_keys.list()) == 1, "it can still be seen"


async def test_a_secret_with_anything_more_or_less_is_no_key(accounts: Accounts) -> None:
    _, secret = await accounts.api_keys.create("ci", ["enqueue"])
    for text in (secret[:-1], secret + "x", secret.upper(), f" {secret}", secret.removeprefix("trdl_")):
        assert await accounts.caller(text) is None


async def test_bad_keys_are_refused(accounts: Accounts, clock: Clock) -> None:
    with pytest.raises(InvalidInput, match="in the past"):
        await accounts.api_keys.create("ci", ["enqueue"], after(clock, -1))
    with pytest.raises(InvalidInput, match="no time zone"):
        await accounts.api_keys.create("ci", ["enqueue"], after(clock, DAY).replace(tzinfo=None))
    with pytest.raises(InvalidInput, match="out of range"):
        await accounts.api_keys.create("ci", ["enqueue"], datetime(9999, 1, 1, tzinfo=UTC) + timedelta(days=1))
    with pytest.raises(InvalidInput, match="scopes"):
        await accounts.api_keys.create("ci", [])
    assert await accounts.api_keys.list() == []
