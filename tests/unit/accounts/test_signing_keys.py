"""Where the key that signs tokens is kept, and which keys are accepted."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from tests.unit.accounts.desk import EMAIL, PASSWORD, Clock, CountingPasswords
from treadle.accounts import Account, Accounts
from treadle.accounts.signing_keys import NAME
from treadle.accounts.throttle import SignInThrottle
from treadle.model.errors import InvalidInput, StoreUnavailable
from treadle.model.settings import Settings
from treadle.store.connect import key_file
from treadle.store.protocol import Store

SECRET = "a secret that an operator has chosen, at random"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db.key"


@pytest.fixture
async def ann(accounts: Accounts) -> Account:
    return await accounts.create_user(EMAIL, PASSWORD)


def at(store: Store, clock: Clock, file: Path | None = None, secret: str = "") -> Accounts:
    passwords, attempts = CountingPasswords(), SignInThrottle(clock)
    return Accounts(store, passwords=passwords, attempts=attempts, clock=clock, key_file=file, secret_key=secret)


async def test_the_key_is_in_a_file_that_only_its_owner_can_read(
    store: Store, clock: Clock, ann: Account, file: Path
) -> None:
    before = os.umask(0)
    try:
        token = await at(store, clock, file).token(ann)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await store.get_records([NAME]) == [None]
    assert [one.name for one in file.parent.iterdir() if "key" in one.name] == [file.name]
    assert await at(store, clock, file).caller(token)
    assert await at(store, clock).caller(token) is None, "the database alone signs nobody in"


async def test_a_key_in_the_database_moves_and_its_tokens_stay_valid(
    store: Store, clock: Clock, ann: Account, file: Path
) -> None:
    old = await at(store, clock).token(ann)
    moved = at(store, clock, file)
    assert await moved.caller(old), "also before it has moved"
    await moved.token(ann)
    assert await store.get_records([NAME]) == [None]
    assert await moved.caller(old)


async def test_servers_that_start_together_agree_on_the_file(
    store: Store, clock: Clock, ann: Account, file: Path
) -> None:
    await at(store, clock).token(ann)
    tokens = await asyncio.gather(*(at(store, clock, file).token(ann) for _ in range(8)))
    assert all([await at(store, clock, file).caller(token) for token in tokens])
    assert [one.name for one in file.parent.iterdir() if "key" in one.name] == [file.name]


async def test_a_chosen_key_signs_and_those_before_are_accepted_until_they_are_rotated(
    store: Store, clock: Clock, ann: Account, file: Path
) -> None:
    before = [await at(store, clock).token(ann), await at(store, clock, file).token(ann)]
    chosen = at(store, clock, file, SECRET)
    token = await chosen.token(ann)
    assert all([await chosen.caller(one) for one in (*before, token)])
    assert await at(store, clock, file).caller(token) is None, "others need it too"
    await chosen.keys.rotate()
    assert not file.exists()
    assert [await chosen.caller(one) for one in before] == [None, None]
    assert await chosen.caller(token)


@pytest.mark.parametrize("in_file", [True, False])
async def test_a_rotated_key_ends_all_tokens_on_every_server(
    store: Store, clock: Clock, ann: Account, file: Path, in_file: bool
) -> None:
    where = file if in_file else None
    server, other = at(store, clock, where), at(store, clock, where)
    old = await server.token(ann)
    assert await other.caller(old)
    await at(store, clock, where).keys.rotate()
    assert [await one.caller(old) for one in (server, other)] == [None, None]
    new = await server.token(ann)
    assert await other.caller(new)
    assert not in_file or stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_key_in_the_database_goes_when_a_chosen_one_is_rotated(
    store: Store, clock: Clock, ann: Account
) -> None:
    await at(store, clock).token(ann)
    await at(store, clock, None, SECRET).keys.rotate()
    assert await store.get_records([NAME]) == [None]


async def test_a_file_that_holds_no_key_is_an_error_that_says_what_to_do(
    store: Store, clock: Clock, ann: Account, file: Path
) -> None:
    file.write_text("short\n")
    with pytest.raises(StoreUnavailable, match="holds no signing key; delete it"):
        await at(store, clock, file).token(ann)


async def test_a_folder_that_takes_no_file_is_an_error_that_says_what_to_do(
    store: Store, clock: Clock, ann: Account, tmp_path: Path
) -> None:
    with pytest.raises(StoreUnavailable, match="set TREADLE_SECRET_KEY"):
        await at(store, clock, tmp_path / "nowhere" / "jobs.db.key").token(ann)


def test_the_file_is_beside_the_database_under_all_its_names(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    expected = tmp_path.resolve() / "jobs.db.key"
    assert key_file(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal") == expected
    assert key_file(f"sqlite:///{tmp_path}/link.db") == expected
    assert key_file("postgresql://localhost/jobs") is None


def test_a_short_key_is_refused_and_no_key_is_shown() -> None:
    with pytest.raises(InvalidInput, match="fewer than 32 characters"):
        Settings(secret_key="too short")
    assert SECRET not in repr(Settings(secret_key=SECRET))
