"""Limits on failed sign-ins.

Counted in this process: a client may fail 5 times a minute for one identity and 30 times in total. Attempts of one
client run one after another; in parallel, a thousand of them would all start before the first one failed.

An address may have many people behind it. So after 30 failures the next attempts from there are slowed down to 30 a
minute and not refused: a right password still signs in, and a wrong one is answered with the limit.

Guessing from many addresses is slowed down as well: after 10 failures of one identity over all addresses, the next
attempt has to wait 1 s, then 2 s, 4 s and so on, up to a minute. An address that has signed in with this identity
before does not wait, so other people's guesses can't lock the owner out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from treadle.accounts.errors import SignInFailed, TooManyAttempts

WINDOW = 60.0
PER_IDENTITY = 5
PER_CLIENT = 30
# The longest line of waiting attempts per client, and how many clients are remembered.
MAX_WAITING = 50
MAX_CLIENTS = 10_000
# Per identity over all addresses: this many failures are free, then each attempt waits. A quiet period resets the
# count.
FREE_FAILURES = 10
LONGEST_WAIT = 60.0
FORGOTTEN_AFTER = 900.0
MAX_IDENTITIES = 10_000
MAX_KNOWN = 20


class _Client:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
        self.failures: deque[tuple[float, str]] = deque()

    def forget_before(self, at: float) -> None:
        while self.failures and self.failures[0][0] <= at:
            self.failures.popleft()

    def forget_identity(self, identity: str) -> None:
        self.failures = deque(one for one in self.failures if one[1] != identity)


class _Identity:
    """The attempts on one account, from all addresses."""

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = float("-inf")
        self.trying = 0
        self.known: deque[str] = deque(maxlen=MAX_KNOWN)

    def wait(self, now: float) -> float:
        """How long the next attempt from an unknown address has to wait. Pending attempts count: they may fail."""
        if now - self.failed_at > FORGOTTEN_AFTER:
            self.failures = 0
        tried = self.failures + self.trying
        if tried < FREE_FAILURES:
            return 0.0
        delay: float = min(2.0 ** min(tried - FREE_FAILURES, 6), LONGEST_WAIT)
        return delay if self.trying else max(self.failed_at + delay - now, 0.0)


class SignInThrottle:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._clients: dict[str, _Client] = {}
        self._identities: dict[str, _Identity] = {}

    @asynccontextmanager
    async def attempt(self, client: str, identity: str) -> AsyncIterator[None]:
        """Wraps one attempt: SignInFailed counts as a failure, success clears the failures of this identity."""
        one = self._client(client)
        if one.waiting >= MAX_WAITING:
            raise TooManyAttempts(1)
        one.waiting += 1
        try:
            async with one.turn:
                self._check(one, identity)
                wait = self._too_many(one)
                if wait and client not in self._identity(identity).known:
                    await self._sleep(WINDOW / PER_CLIENT)
                try:
                    async with self._of_identity(client, identity):
                        yield
                except SignInFailed:
                    one.failures.append((self._clock(), identity))
                    if wait:
                        raise TooManyAttempts(wait) from None
                    raise
                one.forget_identity(identity)
        finally:
            one.waiting -= 1

    @asynccontextmanager
    async def _of_identity(self, client: str, identity: str) -> AsyncIterator[None]:
        found = self._identity(identity)
        wait = 0.0 if client in found.known else found.wait(self._clock())
        if wait > 0:
            raise TooManyAttempts(_seconds(wait))
        found.trying += 1
        try:
            yield
        except SignInFailed:
            found.failures += 1
            found.failed_at = self._clock()
            raise
        else:
            found.failures = 0
            if client not in found.known:
                found.known.append(client)
        finally:
            found.trying -= 1

    def _identity(self, name: str) -> _Identity:
        found = self._identities.pop(name, None) or _Identity()
        if len(self._identities) >= MAX_IDENTITIES:
            oldest = next((key for key, one in self._identities.items() if not one.trying), None)
            if oldest is not None:
                del self._identities[oldest]
        self._identities[name] = found  # most recently used last
        return found

    def _check(self, one: _Client, identity: str) -> None:
        now = self._clock()
        one.forget_before(now - WINDOW)
        own = [at for at, who in one.failures if who == identity]
        if len(own) >= PER_IDENTITY:
            raise TooManyAttempts(_seconds(own[-PER_IDENTITY] + WINDOW - now))

    def _too_many(self, one: _Client) -> int:
        """When the client has fewer failures than the limit again, in seconds; 0: it has."""
        if len(one.failures) < PER_CLIENT:
            return 0
        return _seconds(one.failures[-PER_CLIENT][0] + WINDOW - self._clock())

    def _client(self, name: str) -> _Client:
        found = self._clients.pop(name, None) or _Client()
        if len(self._clients) >= MAX_CLIENTS:
            self._forget_idle()
        self._clients[name] = found  # most recently used last
        return found

    def _forget_idle(self) -> None:
        """Drop clients without recent failures; if all have some, the least recently used tenth."""
        horizon = self._clock() - WINDOW
        for one in self._clients.values():
            one.forget_before(horizon)
        idle = [name for name, one in self._clients.items() if not one.waiting and not one.failures]
        away = [name for name, one in self._clients.items() if not one.waiting]
        for name in idle or away[: MAX_CLIENTS // 10]:
            del self._clients[name]


def _seconds(wait: float) -> int:
    return max(1, math.ceil(wait))
