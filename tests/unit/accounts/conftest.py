"""Accounts on each store, with a test clock and cheap hashes."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.accounts.desk import Clock, CountingPasswords, desk
from treadle.accounts import Accounts
from treadle.store.connect import make_store
from treadle.store.protocol import Store


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = make_store(url, stale_after_ms=1)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def passwords() -> CountingPasswords:
    return CountingPasswords()


@pytest.fixture
async def accounts(store: Store, clock: Clock, passwords: CountingPasswords) -> AsyncIterator[Accounts]:
    accounts = desk(store, clock, passwords)
    yield accounts
    await accounts.close()
