"""How often signing in may fail.

Counted in this process: 5 failures a minute for one identity from one client, 30 for all that a client
tries. Attempts of one client come one after the other: a thousand at once would all have been let
in before the first of them had failed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from treadle.accounts.errors import SignInFailed, TooManyAttempts

WINDOW = 60.0
PER_IDENTITY = 5
PER_CLIENT = 30
# So many may stand in line for one client, and so many clients are remembered.
MAX_WAITING = 50
MAX_CLIENTS = 10_000


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


class Attempts:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: dict[str, _Client] = {}

    @asynccontextmanager
    async def attempt(self, client: str, identity: str) -> AsyncIterator[None]:
        """Around one attempt: SignInFailed inside counts, success clears what the identity had."""
        one = self._client(client)
        if one.waiting >= MAX_WAITING:
            raise TooManyAttempts(1)
        one.waiting += 1
        try:
            async with one.turn:
                self._check(one, identity)
                try:
                    yield
                except SignInFailed:
                    one.failures.append((self._clock(), identity))
                    raise
                one.forget_identity(identity)
        finally:
            one.waiting -= 1

    def _check(self, one: _Client, identity: str) -> None:
        now = self._clock()
        one.forget_before(now - WINDOW)
        times = [at for at, _ in one.failures]
        own = [at for at, who in one.failures if who == identity]
        # The one whose end makes room again, for each of the two limits.
        blocking = [found[-most] for found, most in ((own, PER_IDENTITY), (times, PER_CLIENT)) if len(found) >= most]
        if blocking:
            raise TooManyAttempts(max(1, math.ceil(max(blocking) + WINDOW - now)))

    def _client(self, name: str) -> _Client:
        found = self._clients.pop(name, None) or _Client()
        if len(self._clients) >= MAX_CLIENTS:
            self._forget_idle()
        self._clients[name] = found  # last in line: the first are those that have been away longest
        return found

    def _forget_idle(self) -> None:
        """Those without a failure that still counts; if all have one, the tenth that was away longest."""
        horizon = self._clock() - WINDOW
        for one in self._clients.values():
            one.forget_before(horizon)
        idle = [name for name, one in self._clients.items() if not one.waiting and not one.failures]
        away = [name for name, one in self._clients.items() if not one.waiting]
        for name in idle or away[: MAX_CLIENTS // 10]:
            del self._clients[name]
