"""Helpers for tests of accounts."""

from __future__ import annotations

from argon2 import PasswordHasher

from treadle.accounts import Accounts, Passwords, SignInThrottle
from treadle.store.protocol import Store

EMAIL = "Ann@Example.com"
PASSWORD = "correct horse"
CLIENT = "192.0.2.1"
DAY = 86_400


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class CountingPasswords(Passwords):
    """As cheap as argon2 gets, and it records what it was asked to check; None stands for no account's password."""

    def __init__(self) -> None:
        super().__init__(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        self.checked: list[str | None] = []
        self.most = 0
        self._now = 0

    async def matches(self, password_hash: str | None, password: str) -> bool:
        self.checked.append(password_hash)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            return await super().matches(password_hash, password)
        finally:
            self._now -= 1


def desk(store: Store, clock: Clock, passwords: Passwords | None = None) -> Accounts:
    """Accounts with the test's clock, for tokens and for attempts."""
    return Accounts(store, passwords=passwords or CountingPasswords(), attempts=SignInThrottle(clock), clock=clock)
