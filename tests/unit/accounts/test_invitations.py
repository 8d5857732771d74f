"""Invitations: links with which other superusers are made, once each."""

import asyncio

import pytest

from tests.unit.accounts.desk import CLIENT, DAY, EMAIL, PASSWORD, Clock, desk
from treadle.accounts import Account, AccountExists, Accounts, SetupRefused
from treadle.model.errors import InvalidInput
from treadle.store.protocol import Store


@pytest.fixture
async def root(accounts: Accounts) -> Account:
    return await accounts.upsert_superuser("first@example.com", PASSWORD)


async def test_an_invitation_is_valid_only_while_its_maker_is(accounts: Accounts, root: Account) -> None:
    maker = await accounts.upsert_superuser("maker@example.com", PASSWORD)
    token, other = await accounts.invite(maker), await accounts.invite(root)
    await accounts.delete("_superusers", maker.id)
    with pytest.raises(SetupRefused, match="ask for a new one"):
        await accounts.redeem_invitation(token, EMAIL, PASSWORD)
    assert (await accounts.redeem_invitation(other, EMAIL, PASSWORD)).email == EMAIL


async def test_an_invitation_makes_another_superuser_once(accounts: Accounts, root: Account, store: Store) -> None:
    token = await accounts.invite(root)
    assert token not in str(await store.find_records("invitation")), "only a hash is stored"
    account = await accounts.redeem_invitation(token, EMAIL, PASSWORD)
    assert await accounts.sign_in("_superusers", EMAIL, PASSWORD, CLIENT) == account
    with pytest.raises(SetupRefused, match="ask for a new one"):
        await accounts.redeem_invitation(token, "other@example.com", PASSWORD)
    assert len(await accounts.list("_superusers")) == 2


async def test_one_of_many_concurrent_calls_gets_through(accounts: Accounts, root: Account) -> None:
    token = await accounts.invite(root)
    tries = (accounts.redeem_invitation(token, f"user{i}@example.com", PASSWORD) for i in range(8))
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(answer, Account) for answer in answers) == 1
    assert sum(isinstance(answer, SetupRefused) for answer in answers) == 7
    assert len(await accounts.list("_superusers")) == 2


async def test_two_invitations_do_not_end_each_other(accounts: Accounts, root: Account) -> None:
    first, second = await accounts.invite(root), await accounts.invite(root)
    for number, token in enumerate((second, first)):
        await accounts.redeem_invitation(token, f"user{number}@example.com", PASSWORD)
    assert len(await accounts.list("_superusers")) == 3


async def test_an_address_that_is_taken_or_a_typo_does_not_use_it_up(accounts: Accounts, root: Account) -> None:
    token = await accounts.invite(root)
    with pytest.raises(AccountExists):
        await accounts.redeem_invitation(token, "First@example.com", "another password")
    for email, password in (("nobody", PASSWORD), (EMAIL, "short")):
        with pytest.raises(InvalidInput):
            await accounts.redeem_invitation(token, email, password)
    assert (await accounts.redeem_invitation(token, EMAIL, PASSWORD)).email == EMAIL
    await accounts.sign_in("_superusers", "first@example.com", PASSWORD, CLIENT)


async def test_a_day_later_it_is_not_valid(accounts: Accounts, root: Account, store: Store, clock: Clock) -> None:
    token = await accounts.invite(root)
    clock.now += DAY
    with pytest.raises(SetupRefused):
        await accounts.redeem_invitation(token, EMAIL, PASSWORD)
    await accounts.invite(root)
    assert len(await store.find_records("invitation")) == 1, "old ones are swept away"


@pytest.mark.parametrize("token", ["", "x", "\x00", "\ud800", "x" * 10_000])
async def test_a_wrong_link_is_refused(accounts: Accounts, root: Account, token: str) -> None:
    await accounts.invite(root)
    with pytest.raises(SetupRefused):
        await accounts.redeem_invitation(token, EMAIL, PASSWORD)
    assert await accounts.list("_superusers") == [root]


async def test_a_set_up_link_is_no_invitation_and_the_other_way_round(accounts: Accounts) -> None:
    setup = await accounts.setup_token()
    assert setup is not None
    with pytest.raises(SetupRefused):
        await accounts.redeem_invitation(setup, EMAIL, PASSWORD)
    root = await accounts.redeem_setup(setup, EMAIL, PASSWORD)
    with pytest.raises(SetupRefused):
        await accounts.redeem_setup(await accounts.invite(root), "other@example.com", PASSWORD)


async def test_two_superusers_deleted_at_the_same_instant_leave_one(store: Store, root: Account, clock: Clock) -> None:
    for turn in range(10):
        others = [desk(store, clock) for _ in range(2)]
        second = await others[0].upsert_superuser(f"second{turn}@example.com", PASSWORD)
        [first] = [one for one in await others[0].list("_superusers") if one.id != second.id]
        deletions = (one.delete("_superusers", id) for one, id in zip(others, (first.id, second.id), strict=True))
        answers = await asyncio.gather(*deletions, return_exceptions=True)
        assert sorted(type(one).__name__ for one in answers) == ["Account", "LastSuperuser"], answers
        assert len(await others[0].list("_superusers")) == 1
