"""Making, changing and deleting accounts."""

import asyncio

import pytest

from tests.unit.accounts.desk import CLIENT, EMAIL, PASSWORD, Clock, desk
from treadle.accounts import AccountExists, AccountNotFound, Accounts, LastSuperuser, SignInFailed
from treadle.model.errors import InvalidInput
from treadle.store.connect import make_store
from treadle.store.protocol import Store


async def can_sign_in(accounts: Accounts, email: str, password: str, collection: str = "users") -> bool:
    try:
        await accounts.sign_in(collection, email, password, CLIENT)
    except SignInFailed:
        return False
    return True


async def test_a_user_is_made(accounts: Accounts) -> None:
    user = await accounts.create_user(EMAIL, PASSWORD, {"role": "editor"})
    assert (user.email, user.verified, user.data, user.collection) == (EMAIL, False, {"role": "editor"}, "users")
    assert user.created == user.updated
    assert await accounts.get("users", user.id) == await accounts.get("users", "ann@EXAMPLE.com") == user
    assert await accounts.list("users") == [user]
    assert await accounts.list("_superusers") == []
    assert await can_sign_in(accounts, EMAIL, PASSWORD)


async def test_nothing_that_is_stored_holds_the_password(accounts: Accounts, store: Store) -> None:
    await accounts.create_user(EMAIL, PASSWORD)
    await accounts.upsert_superuser(EMAIL, PASSWORD)
    for kind in ("users", "_superusers"):
        for record in await store.find_records(kind):
            assert PASSWORD not in record.body
            assert "$argon2id$" in record.body


async def test_an_address_is_given_once_in_any_case(accounts: Accounts) -> None:
    await accounts.create_user(EMAIL, PASSWORD)
    with pytest.raises(AccountExists, match="ANN@example.com belongs to another account"):
        await accounts.create_user("ANN@example.com", PASSWORD)
    await accounts.upsert_superuser(EMAIL, PASSWORD)
    assert len(await accounts.list("users")) == len(await accounts.list("_superusers")) == 1


@pytest.mark.parametrize(
    ("email", "password", "data"),
    [("nobody", PASSWORD, {}), (EMAIL, "short", {}), (EMAIL, PASSWORD, {"id": "root"})],
)
async def test_what_is_refused_leaves_nothing(
    accounts: Accounts, email: str, password: str, data: dict[str, str]
) -> None:
    with pytest.raises(InvalidInput):
        await accounts.create_user(email, password, data)
    assert await accounts.list("users") == []


async def test_only_what_is_given_is_changed(accounts: Accounts) -> None:
    user = await accounts.create_user(EMAIL, PASSWORD, {"role": "editor", "team": "a", "old": 1})
    changed = await accounts.update_user(user.id, data={"role": "admin", "old": None, "new": [1]})
    assert changed.data == {"role": "admin", "team": "a", "new": [1]}
    changed = await accounts.update_user(EMAIL, verified=True)
    assert (changed.verified, changed.data["team"], changed.email) == (True, "a", EMAIL)
    assert changed.token_key == user.token_key
    assert changed.updated >= changed.created == user.created
    assert await can_sign_in(accounts, EMAIL, PASSWORD)


async def test_a_new_password(accounts: Accounts) -> None:
    user = await accounts.create_user(EMAIL, PASSWORD)
    changed = await accounts.update_user(EMAIL, password="another horse")
    assert changed.token_key != user.token_key
    assert not await can_sign_in(accounts, EMAIL, PASSWORD)
    assert await can_sign_in(accounts, EMAIL, "another horse")


async def test_a_new_address(accounts: Accounts) -> None:
    await accounts.create_user(EMAIL, PASSWORD)
    await accounts.create_user("bob@example.com", PASSWORD)
    changed = await accounts.update_user(EMAIL, email="Zoe@example.com")
    assert changed.email == "Zoe@example.com"
    assert await can_sign_in(accounts, "zoe@example.com", PASSWORD)
    assert not await can_sign_in(accounts, EMAIL, PASSWORD)
    with pytest.raises(AccountExists):
        await accounts.update_user("zoe@example.com", email="BOB@example.com")
    assert (await accounts.update_user("bob@example.com", email="Bob@example.com")).email == "Bob@example.com"


async def test_data_that_grows_beyond_its_limit_is_refused(accounts: Accounts) -> None:
    user = await accounts.create_user(EMAIL, PASSWORD, {"a": "x" * 10_000})
    with pytest.raises(InvalidInput, match="limit"):
        await accounts.update_user(EMAIL, data={"b": "x" * 10_000})
    assert await accounts.get("users", EMAIL) == user


@pytest.mark.parametrize("name", ["", "x", "abcdefghij01234", "nobody@example.com", "a\x00b", "a\x00@b", "\ud800"])
async def test_who_is_not_there_can_not_be_changed(accounts: Accounts, name: str) -> None:
    for action in (
        accounts.get("users", name),
        accounts.update_user(name, verified=True),
        accounts.delete("users", name),
        accounts.revoke_tokens("users", name),
    ):
        with pytest.raises(AccountNotFound):
            await action


async def test_an_account_is_deleted(accounts: Accounts) -> None:
    user = await accounts.create_user(EMAIL, PASSWORD)
    assert await accounts.delete("users", EMAIL) == user
    assert await accounts.list("users") == []
    assert not await can_sign_in(accounts, EMAIL, PASSWORD)
    assert (await accounts.create_user(EMAIL, PASSWORD)).id != user.id


async def test_a_superuser_is_made_and_then_changed(accounts: Accounts) -> None:
    assert not await accounts.superuser_exists()
    made = await accounts.upsert_superuser(EMAIL, PASSWORD)
    assert (made.collection, made.verified) == ("_superusers", True)
    assert await accounts.superuser_exists()
    changed = await accounts.upsert_superuser(EMAIL.lower(), "another horse")
    assert (changed.id, changed.email) == (made.id, EMAIL.lower())
    assert changed.token_key != made.token_key
    assert await can_sign_in(accounts, EMAIL, "another horse", "_superusers")
    assert not await can_sign_in(accounts, EMAIL, PASSWORD, "_superusers")
    assert not await can_sign_in(accounts, EMAIL, "another horse", "users")


async def test_the_last_superuser_stays(accounts: Accounts) -> None:
    ann = await accounts.upsert_superuser(EMAIL, PASSWORD)
    with pytest.raises(LastSuperuser, match="only superuser"):
        await accounts.delete("_superusers", EMAIL)
    await accounts.upsert_superuser("bob@example.com", PASSWORD)
    assert await accounts.delete("_superusers", EMAIL) == ann


async def test_the_oldest_are_listed_first(accounts: Accounts) -> None:
    emails = [f"{name}@example.com" for name in "zam"]
    for email in emails:
        await accounts.create_user(email, PASSWORD)
    assert [user.email for user in await accounts.list("users")] == emails
    assert [user.email for user in await accounts.list("users", 2)] == emails[:2]


async def test_many_concurrent_processes(store: Store, clock: Clock, url: str) -> None:
    stores = [make_store(url, stale_after_ms=1) for _ in range(3)]
    for one in stores:
        await one.open()
    desks = [desk(one, clock) for one in [store, *stores]]
    await asyncio.gather(*(one.upsert_superuser(EMAIL, PASSWORD) for one in desks * 2))
    assert len(await desks[0].list("_superusers")) == 1
    answers = await asyncio.gather(*(one.create_user(EMAIL, PASSWORD) for one in desks), return_exceptions=True)
    assert sum(isinstance(answer, AccountExists) for answer in answers) == 3
    changes = ({name: name} for name in "abcdefgh")
    await asyncio.gather(*(desks[i % 4].update_user(EMAIL, data=data) for i, data in enumerate(changes)))
    assert sorted((await desks[0].get("users", EMAIL)).data) == list("abcdefgh")
    for one in stores:
        await one.close()
