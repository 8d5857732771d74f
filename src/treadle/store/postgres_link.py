"""Connections to one PostgreSQL server: pools, wake-ups, and what to do when it is away.

Three pools. The engine's own statements run with plan settings that keep them on their indexes
whatever the statistics say (they were written for one plan; a hash join over `unnest` once cost a
factor of ten). Reads run with the server's defaults, planned anew for their values.
Notifications have a connection of their own, which does not wait for the disk.

Behind a pooler in transaction mode a session belongs to nobody: no LISTEN, no prepared statements,
no session settings. That is found out by itself (the backend's pid is not the one that the pooler
told us); then settings travel with each transaction and wake-ups are left to polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import asyncpg

from treadle.errors import InvalidInput, StoreUnavailable
from treadle.store.hints import ALL, Hub
from treadle.store.postgres_pool import Pool

log = logging.getLogger("treadle.postgres")

CHANNEL = "treadle"
PLAN_SETTINGS = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
READ_SETTINGS = {"jit": "off", "plan_cache_mode": "force_custom_plan"}
# A notification needs no durability: without this its commit would wait for the disk.
TELL_SETTINGS = {"synchronous_commit": "off"}
# No statement of ours takes nearly as long: whoever waits longer waits on a dead connection.
COMMAND_SECONDS = 60
# A second NOTIFY within this time adds nothing: whoever was woken looks at everything.
NOTIFY_PAUSE = 0.004


def passing(error: BaseException) -> bool:
    """Errors that come from the server being away or out of something: the same call may work later."""
    # A value that can't be encoded is an InterfaceError too, but no waiting will mend it.
    return not isinstance(error, ValueError) and isinstance(
        error,
        OSError
        | asyncpg.PostgresConnectionError
        | asyncpg.InterfaceError
        | asyncpg.InsufficientResourcesError
        | asyncpg.OperatorInterventionError
        | asyncpg.ReadOnlySQLTransactionError
        | asyncpg.IdleInTransactionSessionTimeoutError
        | asyncpg.exceptions.ConnectionDoesNotExistError
        | asyncpg.InternalClientError
        | TimeoutError,
    )


class Link:
    def __init__(self, url: str, hub: Hub) -> None:
        self.url = url
        self.hub = hub
        self.pooled = False
        self.listening = False
        self._engine: Pool | None = None
        self._reads: Pool | None = None
        self._tells: Pool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_tell: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._teller: int | None = None
        self._closing = False

    # -- opening and closing -------------------------------------------------------------------

    async def open(self) -> None:
        self.pooled = await self._behind_pooler()
        self._engine = Pool(lambda: self._connect(PLAN_SETTINGS), 6)
        self._reads = Pool(lambda: self._connect(READ_SETTINGS), 3)
        self._tells = Pool(lambda: self._connect(TELL_SETTINGS), 1)

    async def _connect(self, settings: dict[str, str]) -> Any:
        own: dict[str, Any] = {"statement_cache_size": 0} if self.pooled else {"server_settings": settings}
        return await asyncpg.connect(self.url, command_timeout=COMMAND_SECONDS, **own)

    async def _behind_pooler(self) -> bool:
        """A pooler invents the process id that it tells its clients."""
        try:
            connection = await asyncpg.connect(self.url, statement_cache_size=0)
            try:
                pid = await connection.fetchval("SELECT pg_backend_pid()", timeout=COMMAND_SECONDS)
                return bool(pid != connection.get_server_pid())
            finally:
                await connection.close()
        except Exception as error:
            raise _explained(error, self.url) from None

    async def close(self) -> None:
        self._closing = True
        if self._telling:
            with contextlib.suppress(Exception):
                await self._telling
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._engine, self._reads, self._tells):
            if pool is not None:
                await pool.close()
        self._engine = self._reads = self._tells = None

    # -- connections ---------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        """An engine connection, as it is."""
        async with self._from(self._engine) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _from(self, pool: Pool | None) -> AsyncIterator[Any]:
        if pool is None:
            raise StoreUnavailable("the queue is not open; open it first")
        try:
            async with pool.connection() as connection:
                yield connection
        except Exception as error:
            raise self._as_told(error) from None

    def _as_told(self, error: Exception) -> Exception:
        known = passing(error) or isinstance(error, asyncpg.InsufficientPrivilegeError)
        return _explained(error, self.url) if known else error

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.acquire() as connection, connection.transaction():
            if self.pooled:
                await connection.execute(_settings(PLAN_SETTINGS))
            yield connection

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        """One statement that is a transaction by itself, with the engine's plan settings: the hot path."""
        pool = self._engine
        if self.pooled or pool is None:
            async with self.transaction() as connection:
                return cast(list[Any], await connection.fetch(sql, *values))
        try:
            connection = await pool.take(sql)
            try:
                return cast(list[Any], await connection.fetch(sql, *values))
            finally:
                pool.give_back(connection)
        except Exception as error:
            raise self._as_told(error) from None

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[Any]:
        async with self._from(self._reads) as connection:
            yield connection

    # -- wake-ups ------------------------------------------------------------------------------

    def tell(self, hints: Sequence[str]) -> None:
        """Give hints here at once, to other processes by one NOTIFY for all that comes within a moment.

        NOTIFY takes a lock on the whole database at commit, so it never rides on the engine's own transactions.
        """
        self.hub.publish(hints)
        self._to_tell.update(hints)
        if (self._telling is None or self._telling.done()) and not self._closing:
            self._telling = asyncio.create_task(self._tell_others())

    async def _tell_others(self) -> None:
        while self._to_tell:
            told, self._to_tell = ",".join(sorted(self._to_tell)), set()
            try:
                async with self._from(self._tells) as connection:
                    self._teller = connection.get_server_pid()
                    await connection.execute(f"NOTIFY {CHANNEL}, '{told}'")
            except Exception as error:
                log.debug("notify failed, polling will do: %s", error)
            if not self._closing:
                await asyncio.sleep(NOTIFY_PAUSE)

    def listen(self) -> None:
        """Start listening once; behind a pooler there is nothing to listen to."""
        if not self.pooled and not self._tasks:
            task = asyncio.create_task(self._listen())
            self._tasks.add(task)

    async def _listen(self) -> None:
        """Keep one connection listening; whatever was missed while it was away is worth a look."""
        pause = 0.1
        while True:
            try:
                await self._listen_once()
                pause = 0.1
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.debug("listen failed, trying again: %s", error)
            self.listening = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 5.0)

    async def _listen_once(self) -> None:
        connection = await asyncpg.connect(self.url, timeout=10)
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, self._heard)
            self.listening = True
            self.hub.publish(ALL)
            await lost.wait()
        finally:
            connection.terminate()

    def _heard(self, _connection: Any, pid: int, _channel: str, payload: str) -> None:
        if pid != self._teller:  # our own were given here at once
            self.hub.publish([hint for hint in payload.split(",") if hint in ALL])


def _settings(settings: dict[str, str]) -> str:
    return "; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items())


def _explained(error: Exception, url: str) -> Exception:
    where = url.rsplit("@", 1)[-1].split("?", maxsplit=1)[0]
    if isinstance(
        error,
        asyncpg.InvalidCatalogNameError
        | asyncpg.InvalidAuthorizationSpecificationError
        | asyncpg.exceptions.ClientConfigurationError,
    ):
        return InvalidInput(f"can't connect to {where}: {error}")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return InvalidInput(
            f"{where}: {error}; this user needs the tables in schema treadle, and to make them CREATE on the database "
            "(run treadle migrate once as a user who may)"
        )
    if passing(error):
        return StoreUnavailable(f"PostgreSQL at {where} can't be used just now: {str(error) or type(error).__name__}")
    if isinstance(error, ValueError | OverflowError):
        # Its text may quote a piece of the URL, and with it of the password.
        return InvalidInput(
            f"the URL of {where} can't be read; check its port, and write @ : / in a password as %40 %3A %2F"
        )
    return error
