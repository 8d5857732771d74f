"""The set-up link: the first superuser, once."""

import asyncio

import pytest

from tests.unit.accounts.desk import CLIENT, DAY, EMAIL, PASSWORD, Clock
from treadle.accounts import Account, Accounts, SetupRefused
from treadle.model.errors import InvalidInput
from treadle.store.protocol import Store
from treadle.store.values import RecordWrite


async def issued(accounts: Accounts) -> str:
    token = await accounts.setup_token()
    assert token is not None
    return token


async def refused(accounts: Accounts, token: str) -> None:
    with pytest.raises(SetupRefused, match="not valid"):
        await accounts.redeem_setup(token, EMAIL, PASSWORD)


async def test_the_link_makes_the_first_superuser(accounts: Accounts) -> None:
    account = await accounts.redeem_setup(await issued(accounts), EMAIL, PASSWORD)
    assert (account.collection, account.email) == ("_superusers", EMAIL)
    assert await accounts.sign_in("_superusers", EMAIL, PASSWORD, CLIENT) == account


async def test_it_works_once(accounts: Accounts) -> None:
    token = await issued(accounts)
    await accounts.redeem_setup(token, EMAIL, PASSWORD)
    await refused(accounts, token)


async def test_one_of_many_concurrent_calls_gets_through(accounts: Accounts) -> None:
    token = await issued(accounts)
    tries = (accounts.redeem_setup(token, f"user{i}@example.com", PASSWORD) for i in range(8))
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(answer, Account) for answer in answers) == 1
    assert sum(isinstance(answer, SetupRefused) for answer in answers) == 7
    assert len(await accounts.list("_superusers")) == 1


async def test_with_a_superuser_there_is_none(accounts: Accounts) -> None:
    token = await issued(accounts)
    await accounts.upsert_superuser(EMAIL, PASSWORD)
    assert await accounts.setup_token() is None
    await refused(accounts, token)


async def test_a_new_link_kills_the_one_before(accounts: Accounts, store: Store) -> None:
    first, second = await issued(accounts), await issued(accounts)
    assert first != second
    await refused(accounts, first)
    await accounts.redeem_setup(second, EMAIL, PASSWORD)
    await refused(accounts, second)
    assert await store.find_records("setup") == []


async def test_two_links_that_race_make_one_superuser(accounts: Accounts, store: Store) -> None:
    """Two servers may have issued a link each before either saw the other's."""
    first = await issued(accounts)
    record = (await store.find_records("setup"))[0]
    second = await issued(accounts)
    await store.write_records([RecordWrite("setup", record.id, record.key, record.body)])
    tries = [accounts.redeem_setup(link, f"{i}@example.com", PASSWORD) for i, link in enumerate((first, second))]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Account", "SetupRefused"]
    assert len(await accounts.list("_superusers")) == 1


async def test_a_day_later_it_is_not_valid(accounts: Accounts, store: Store, clock: Clock) -> None:
    token = await issued(accounts)
    clock.now += DAY
    await refused(accounts, token)
    fresh = await issued(accounts)
    assert len(await store.find_records("setup")) == 1, "old ones are swept away"
    assert (await accounts.redeem_setup(fresh, EMAIL, PASSWORD)).email == EMAIL


async def test_only_a_hash_is_stored(accounts: Accounts, store: Store) -> None:
    token = await issued(accounts)
    assert token not in str(await store.find_records("setup"))


async def test_a_slip_of_the_finger_does_not_use_it_up(accounts: Accounts) -> None:
    token = await issued(accounts)
    for email, password in (("nobody", PASSWORD), (EMAIL, "short")):
        with pytest.raises(InvalidInput):
            await accounts.redeem_setup(token, email, password)
    assert (await accounts.redeem_setup(token, EMAIL, PASSWORD)).email == EMAIL


@pytest.mark.parametrize("token", ["", "x", "\x00", "\ud800", "x" * 10_000])
async def test_a_wrong_link_is_refused(accounts: Accounts, token: str) -> None:
    await issued(accounts)
    await refused(accounts, token)
    assert not await accounts.superuser_exists()
