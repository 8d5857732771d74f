"""Password hashes."""

import asyncio
from typing import Literal

import pytest
from argon2 import PasswordHasher, extract_parameters

from tests.waiting import give_way
from treadle.accounts import Passwords
from treadle.accounts.passwords import _nobodys_hash


async def test_the_hash_is_argon2id_with_its_own_salt() -> None:
    passwords = Passwords()
    first, second = await asyncio.gather(passwords.hash("correct horse"), passwords.hash("correct horse"))
    assert first.startswith("$argon2id$")
    assert first != second
    assert await passwords.matches(first, "correct horse")
    assert not await passwords.matches(first, "Correct horse")


async def test_nobodys_password_costs_what_a_real_one_costs() -> None:
    hasher = PasswordHasher()
    assert extract_parameters(_nobodys_hash(hasher)) == extract_parameters(hasher.hash("correct horse"))
    assert not await Passwords().matches(None, "correct horse")


@pytest.mark.parametrize("broken", ["x", "$argon2id$", "$argon2id$v=19$m=8,t=1,p=1$AAAA$AAAA", "$2b$12$abc"])
async def test_a_damaged_hash_matches_nothing(broken: str) -> None:
    assert not await Passwords().matches(broken, "correct horse")


async def test_half_a_surrogate_pair_is_no_reason_to_fail() -> None:
    passwords = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    hashed = await passwords.hash("pass\ud800word")
    assert await passwords.matches(hashed, "pass\ud800word")
    assert not await passwords.matches(hashed, "pass\ud801word")


async def test_the_event_loop_goes_on_while_a_password_is_hashed() -> None:
    passwords = Passwords(PasswordHasher(time_cost=8))
    hashing = asyncio.create_task(passwords.hash("correct horse"))
    turns = 0
    while not hashing.done():
        turns += 1
        await give_way()
    assert turns > 10


class Crowd(PasswordHasher):
    """Counts who is inside at the same time."""

    inside = most = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            return super().verify(hash, password)
        finally:
            self.inside -= 1


async def test_only_a_few_are_hashed_concurrently() -> None:
    crowd = Crowd(time_cost=2, memory_cost=1024, parallelism=1)
    passwords = Passwords(crowd)
    hashed = await passwords.hash("correct horse")
    assert all(await asyncio.gather(*(passwords.matches(hashed, "correct horse") for _ in range(20))))
    assert 1 <= crowd.most <= 2
