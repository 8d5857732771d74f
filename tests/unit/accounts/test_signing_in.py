"""Signing in, and who a token belongs to."""

import asyncio
from typing import Any

import pytest

from tests.unit.accounts.desk import CLIENT, DAY, EMAIL, PASSWORD, Clock, CountingPasswords, desk
from treadle.accounts import Account, Accounts, Caller, SignInFailed, TooManyAttempts
from treadle.store.connect import make_store
from treadle.store.protocol import Store
from treadle.store.values import RecordWrite


@pytest.fixture
async def ann(accounts: Accounts) -> Account:
    return await accounts.create_user(EMAIL, PASSWORD, {"role": "editor"})


async def refused(accounts: Accounts, *words: Any) -> str:
    with pytest.raises(SignInFailed) as refusal:
        await accounts.sign_in(*words)
    return refusal.value.message


async def test_the_right_password_in_any_spelling_of_the_address(accounts: Accounts, ann: Account) -> None:
    for identity in (EMAIL, "ann@example.com", " ANN@EXAMPLE.COM "):
        assert await accounts.sign_in("users", identity, PASSWORD, CLIENT) == ann


async def test_wrong_and_unknown_sound_the_same(accounts: Accounts, ann: Account) -> None:
    texts = {
        await refused(accounts, "users", EMAIL, "wrong password", CLIENT),
        await refused(accounts, "users", EMAIL, "", CLIENT),
        await refused(accounts, "users", EMAIL, "x" * 100_000, CLIENT),
        await refused(accounts, "users", "nobody@example.com", PASSWORD, CLIENT),
        await refused(accounts, "users", "a\x00b\ud800", PASSWORD, CLIENT),
        await refused(accounts, "users", "", PASSWORD, CLIENT),
        await refused(accounts, "users", ann.id, PASSWORD, CLIENT),
        await refused(accounts, "_superusers", EMAIL, PASSWORD, CLIENT),
    }
    assert texts == {"Failed to authenticate."}


async def test_an_unknown_account_costs_as_much_as_a_known_one(
    accounts: Accounts, ann: Account, passwords: CountingPasswords
) -> None:
    await refused(accounts, "users", "nobody@example.com", PASSWORD, CLIENT)
    await refused(accounts, "users", EMAIL, "wrong password", CLIENT)
    await refused(accounts, "users", EMAIL, "x" * 1001, CLIENT)
    assert passwords.checked == [None, ann.password_hash, None]


async def test_a_thousand_and_one_characters_are_not_a_thousand(accounts: Accounts) -> None:
    await accounts.create_user(EMAIL, "x" * 1000)
    assert (await accounts.sign_in("users", EMAIL, "x" * 1000, CLIENT)).email == EMAIL
    await refused(accounts, "users", EMAIL, "x" * 1001, CLIENT)


async def test_a_flood_is_stopped(accounts: Accounts, ann: Account, passwords: CountingPasswords, clock: Clock) -> None:
    guesses = (accounts.sign_in("users", EMAIL, f"guess {i}", CLIENT) for i in range(40))
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    assert sum(isinstance(answer, SignInFailed) for answer in answers) == 5
    late = [answer for answer in answers if isinstance(answer, TooManyAttempts)]
    assert len(late) == 35
    assert {answer.retry_after for answer in late} == {60}
    assert len(passwords.checked) == 5, "the others cost nothing"
    with pytest.raises(TooManyAttempts):
        await accounts.sign_in("users", "ANN@example.com", PASSWORD, CLIENT)
    assert (await accounts.sign_in("users", EMAIL, PASSWORD, "192.0.2.2")).email == EMAIL
    clock.now += 60
    assert (await accounts.sign_in("users", EMAIL, PASSWORD, CLIENT)).email == EMAIL


async def test_a_token_belongs_to_its_account(accounts: Accounts, ann: Account) -> None:
    root = await accounts.upsert_superuser("root@example.com", PASSWORD)
    for account, kind in ((ann, "user"), (root, "superuser")):
        caller = await accounts.caller(await accounts.token(account))
        assert caller is not None
        assert (caller.kind, caller.account_id, caller.account) == (kind, account.id, account)
        assert dict(caller.record) == account.as_json()
        assert caller.scopes == frozenset()


async def test_every_process_knows_it(accounts: Accounts, ann: Account, url: str, clock: Clock) -> None:
    token = await accounts.token(ann)
    other = make_store(url, stale_after_ms=1)
    await other.open()
    caller = await desk(other, clock).caller(token)
    assert caller is not None
    assert caller.account_id == ann.id
    known = await accounts.caller(await desk(other, clock).token(ann))
    assert known is not None
    assert known.account_id == ann.id
    await other.close()


async def test_processes_that_start_together_agree_on_the_key(store: Store, ann: Account, clock: Clock) -> None:
    tokens = await asyncio.gather(*(desk(store, clock).token(ann) for _ in range(8)))
    assert all([await desk(store, clock).caller(token) for token in tokens])
    assert len({await desk(store, clock).keys.current() for _ in range(8)}) == 1


async def test_a_token_of_another_install_is_nobodys(
    accounts: Accounts, ann: Account, store: Store, clock: Clock
) -> None:
    token = await accounts.token(ann)
    await store.delete_records([("install", "signing")])
    assert await accounts.caller(token) is None
    await accounts.token(ann)
    assert await accounts.caller(token) is None


async def test_tokens_end_by_themselves(accounts: Accounts, ann: Account, clock: Clock) -> None:
    root = await accounts.upsert_superuser("root@example.com", PASSWORD)
    tokens = [await accounts.token(ann), await accounts.token(root)]
    clock.now += DAY - 1
    assert all([await accounts.caller(token) for token in tokens])
    clock.now += 1
    assert [await accounts.caller(token) is not None for token in tokens] == [True, False]
    clock.now += 4 * DAY
    assert [await accounts.caller(token) for token in tokens] == [None, None]


async def test_a_fresh_token_from_an_old_one(accounts: Accounts, ann: Account, clock: Clock) -> None:
    token = await accounts.token(ann)
    clock.now += 4 * DAY
    caller = await accounts.caller(token)
    assert caller is not None
    assert caller.account is not None
    fresh = await accounts.token(caller.account)
    clock.now += 4 * DAY
    assert await accounts.caller(token) is None
    assert await accounts.caller(fresh)


async def test_a_changed_password_ends_every_token(accounts: Accounts, ann: Account) -> None:
    tokens = [await accounts.token(ann), await accounts.token(ann)]
    await accounts.update_user(EMAIL, password="another horse")
    assert [await accounts.caller(token) for token in tokens] == [None, None]
    again = await accounts.sign_in("users", EMAIL, "another horse", CLIENT)
    assert await accounts.caller(await accounts.token(again))


async def test_a_sign_in_with_the_old_password_during_the_change_is_refused(accounts: Accounts, ann: Account) -> None:
    signed_in = await accounts.sign_in("users", EMAIL, PASSWORD, CLIENT)
    caller = await accounts.caller(await accounts.token(signed_in))
    assert caller is not None
    assert caller.account is not None
    await accounts.update_user(EMAIL, password="another horse")
    assert await accounts.caller(await accounts.token(signed_in)) is None
    assert await accounts.caller(await accounts.token(caller.account)) is None


async def test_a_superusers_new_password_does_too(accounts: Accounts) -> None:
    token = await accounts.token(await accounts.upsert_superuser(EMAIL, PASSWORD))
    await accounts.upsert_superuser(EMAIL, PASSWORD)
    assert await accounts.caller(token) is None


async def test_a_new_address_a_delete_or_a_revoke_ends_every_token(accounts: Accounts, ann: Account) -> None:
    token = await accounts.token(ann)
    moved = await accounts.update_user(EMAIL, email="zoe@example.com")
    assert await accounts.caller(token) is None
    token = await accounts.token(moved)
    revoked = await accounts.revoke_tokens("users", moved.id)
    assert await accounts.caller(token) is None
    token = await accounts.token(revoked)
    assert await accounts.caller(token)
    await accounts.delete("users", moved.id)
    assert await accounts.caller(token) is None


async def test_other_changes_end_no_session_and_are_seen_immediately(accounts: Accounts, ann: Account) -> None:
    token = await accounts.token(ann)
    await accounts.update_user(EMAIL, data={"role": "admin"}, verified=True)
    caller = await accounts.caller(token)
    assert caller is not None
    assert (caller.record["role"], caller.record["verified"]) == ("admin", True)


async def test_a_users_token_opens_no_other_account(accounts: Accounts, ann: Account, store: Store) -> None:
    """Even one with the same id: the collection is part of what is signed, and each account has its own key."""
    token = await accounts.token(ann)
    [record] = await store.get_records([("users", ann.id)])
    assert record is not None
    await store.write_records([RecordWrite("_superusers", ann.id, record.key, record.body)])
    caller = await accounts.caller(token)
    assert caller is not None
    assert caller.kind == "user"


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "trdl_", "trdl_x", "trdl_" + "x" * 5000, "trdl_\x00\ud800", "é"])
async def test_what_is_no_token_is_nobodys(accounts: Accounts, ann: Account, token: str) -> None:
    await accounts.token(ann)
    assert await accounts.caller(token) is None
    assert Caller.anonymous.account_id is None


async def test_no_token_is_valid_before_the_install_has_a_key(accounts: Accounts, ann: Account, clock: Clock) -> None:
    from treadle.accounts import tokens

    assert await accounts.caller(tokens.sign(ann, "", clock())) is None


async def test_signing_out_ends_the_session_and_no_other(accounts: Accounts, ann: Account) -> None:
    first, other = await accounts.token(ann), await accounts.token(ann)
    exchanged = await accounts.token(ann, instead_of=first)
    await accounts.sign_out(exchanged)
    assert [await accounts.caller(token) for token in (first, exchanged)] == [None, None]
    assert await accounts.caller(other) is not None
    await accounts.sign_out("x.y.z")
    await accounts.sign_out(first)  # a second time


async def test_a_session_that_was_ended_is_forgotten_when_its_tokens_have_expired(
    accounts: Accounts, ann: Account, store: Store
) -> None:
    token = await accounts.token(ann)
    await accounts.sign_out(token)
    [record] = await store.find_records("signed_out")
    assert record.due is not None
    assert record.due - await store.now() > 4 * DAY * 1000
    assert token not in str(record)
