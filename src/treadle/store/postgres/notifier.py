"""Wake-ups between processes on PostgreSQL, by NOTIFY and LISTEN.

They are only hints: polling finds what they miss. Behind a pooler in transaction mode there is no LISTEN.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from typing import Any

import asyncpg

from treadle.store.postgres.pools import Pool, Pools
from treadle.store.wakeups import ALL, Wakeups

log = logging.getLogger("treadle.postgres")

CHANNEL = "treadle"
# A notification needs no durability. Without this its commit would wait for the disk.
TELL_SETTINGS = {"synchronous_commit": "off"}
# A second NOTIFY within this time adds nothing, because a woken process looks at everything.
NOTIFY_PAUSE = 0.004
# How long a closing process waits for its last hints to be sent.
LAST_HINTS_S = 1.0
# How often to check the connection: it can die silently, for example when a firewall forgets it or a host is gone.
CHECK_S = 10.0
ANSWER_S = 5.0


class Notifier:
    def __init__(self, pools: Pools, hub: Wakeups) -> None:
        self.hub = hub
        self.listening = False
        self._pools = pools
        self._tells: Pool | None = None
        self._listener: asyncio.Task[None] | None = None
        self._to_tell: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._teller: int | None = None
        self._closing = False

    def open(self) -> None:
        self._tells = Pool(lambda: self._pools.connect(TELL_SETTINGS), 1)

    async def close(self) -> None:
        self._closing = True
        tasks = [task for task in (self._telling, self._listener) if task]
        if self._listener:
            self._listener.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._to_tell:  # the loop is ending and has cancelled the sending task
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LAST_HINTS_S):
                    await self._notify(self._to_tell)
        if self._tells:
            await self._tells.close()

    # -- sending -------------------------------------------------------------------------------

    def tell(self, hints: Sequence[str]) -> None:
        """Deliver hints here right away, and to other processes by one NOTIFY for everything within a moment.

        NOTIFY takes a lock on the whole database at commit, so it is never part of the engine's own transactions.
        """
        self.hub.publish(hints)
        self._to_tell.update(hints)
        if (self._telling is None or self._telling.done()) and not self._closing:
            self._telling = asyncio.create_task(self._tell_others())

    async def _tell_others(self) -> None:
        while self._to_tell:
            hints, self._to_tell = self._to_tell, set()
            try:
                await self._notify(hints)
            except asyncio.CancelledError:
                self._to_tell |= hints
                raise
            except Exception as error:
                log.debug("notify failed, polling will do: %s", error)
            if not self._closing:
                await asyncio.sleep(NOTIFY_PAUSE)

    async def _notify(self, hints: set[str]) -> None:
        assert self._tells, "it is open"
        # Without a generator (`Pool.connection`): a loop that is ending starts no new ones.
        connection = await self._tells.take()
        try:
            self._teller = connection.get_server_pid()
            await connection.execute(f"NOTIFY {CHANNEL}, '{','.join(sorted(hints))}'")
        finally:
            self._tells.give_back(connection)

    # -- listening -----------------------------------------------------------------------------

    def listen(self) -> None:
        """Start listening, once. Behind a pooler there is nothing to listen to."""
        if not self._pools.pooled and self._listener is None:
            self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """Keep one connection listening. After a reconnect, wake all subscribers: hints may have been missed."""
        pause = 0.1
        while True:
            try:
                await self._listen_once()
                pause = 0.1
            except Exception as error:
                log.debug("listen failed, trying again: %s", error)
            finally:
                self.listening = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 5.0)

    async def _listen_once(self) -> None:
        connection = await asyncpg.connect(self._pools.url, timeout=10)
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, self._heard)
            self.listening = True
            self.hub.publish(ALL)
            while not await _within(CHECK_S, lost):
                await connection.execute("SELECT 1", timeout=ANSWER_S)
        finally:
            connection.terminate()

    def _heard(self, _connection: Any, pid: int, _channel: str, payload: str) -> None:
        if pid != self._teller:  # this process's own hints were delivered right away
            self.hub.publish([hint for hint in payload.split(",") if hint in ALL])


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
