"""When a superuser was last seen, to the minute."""

from tests.unit.accounts.desk import EMAIL, PASSWORD, Clock, desk
from treadle.accounts import Accounts
from treadle.model.job import to_ms
from treadle.store.protocol import Store


async def seen(accounts: Accounts) -> dict[str, int]:
    return {id: to_ms(at) for id, at in (await accounts.last_seen.all()).items()}


async def test_it_is_noted_at_most_once_a_minute(accounts: Accounts, clock: Clock) -> None:
    start = int(clock.now * 1000)
    assert await seen(accounts) == {}
    await accounts.last_seen.note("ann")
    clock.now += 59
    await accounts.last_seen.note("ann")
    assert await seen(accounts) == {"ann": start}
    clock.now += 1
    await accounts.last_seen.note("ann")
    assert await seen(accounts) == {"ann": start + 60_000}


async def test_each_server_notes_it(accounts: Accounts, store: Store, clock: Clock) -> None:
    await accounts.last_seen.note("ann")
    clock.now += 5
    other = desk(store, clock)
    await other.last_seen.note("ann")
    assert await seen(accounts) == {"ann": int(clock.now * 1000)}


async def test_it_goes_with_the_account(accounts: Accounts) -> None:
    await accounts.upsert_superuser("first@example.com", PASSWORD)
    account = await accounts.upsert_superuser(EMAIL, PASSWORD)
    await accounts.last_seen.note(account.id)
    assert await accounts.list("_superusers") == [await accounts.get("_superusers", "first@example.com"), account], (
        "being seen is no change of the account"
    )
    await accounts.delete("_superusers", EMAIL)
    assert await seen(accounts) == {}
