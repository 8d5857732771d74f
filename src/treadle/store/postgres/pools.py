"""Connections to one PostgreSQL server, and the handling of outages.

There are three pools. The engine's statements run with planner settings that keep them on their indexes regardless of
statistics: each was written for one plan, and a hash join over `unnest` once made one ten times slower. Reads run with
the server's defaults and are planned for their values. Searches can be arbitrarily expensive, so they use separate
connections that stop a statement after two seconds.

Behind a pooler in transaction mode, LISTEN, prepared statements and session settings don't work. The store detects this
on opening, because the backend's pid differs from the one the pooler reports. It then sends the settings with each
transaction and leaves wake-ups to polling.

asyncpg's own pool shields, wraps and resets a connection on each use, which costs as much as a short statement. The
store leaves no state behind after a transaction, so these pools reuse a healthy connection without a reset and drop a
broken one. Work on a connection runs in its own task, which ends even if the caller gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import asyncpg

from treadle.model.errors import InvalidInput, StoreUnavailable
from treadle.store.sql.lists import SEARCH_SECONDS, too_slow

T = TypeVar("T")
Work = Callable[[Any], Coroutine[Any, Any, T]]

PLAN_SETTINGS = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    # A process frozen inside a transaction must not keep its locks, such as the one on its lease.
    "idle_in_transaction_session_timeout": "10000",
    # A role's lock timeout is meant for people; the engine sets its own limits in its statements.
    "lock_timeout": "0",
}
# Reads look up some thousand rows by their numbers, or count what waits. With the default cost of a page the planner
# reads whole tables instead, and starting parallel workers takes longer than the read (counting 150,000 pending jobs:
# 12 ms, with workers 25).
READ_SETTINGS = {
    "jit": "off",
    "plan_cache_mode": "force_custom_plan",
    "random_page_cost": "1.1",
    "max_parallel_workers_per_gather": "0",
    # As above. Only a change of the schema or a VACUUM FULL makes a read wait.
    "lock_timeout": "0",
}
SEARCH_SETTINGS = {**READ_SETTINGS, "statement_timeout": f"{SEARCH_SECONDS * 1000:.0f}"}
# No statement of the engine takes nearly this long. Past this limit the connection must be dead.
COMMAND_SECONDS = 60
# An idle connection is closed after this time.
IDLE_S = 60.0
CLOSE_S = 5.0


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


class Pools:
    def __init__(self, url: str) -> None:
        self.url = url
        self.pooled = False
        self._engine: Pool | None = None
        self._reads: Pool | None = None
        self._searches: Pool | None = None

    # -- opening and closing -------------------------------------------------------------------

    async def open(self) -> None:
        self.pooled = await self._behind_pooler()
        self._engine = Pool(lambda: self.connect(PLAN_SETTINGS), 6)
        self._reads = Pool(lambda: self.connect(READ_SETTINGS), 3)
        self._searches = Pool(lambda: self.connect(SEARCH_SETTINGS), 4)

    async def connect(self, settings: dict[str, str]) -> Any:
        own: dict[str, Any] = {"statement_cache_size": 0} if self.pooled else {"server_settings": settings}
        return await asyncpg.connect(self.url, command_timeout=COMMAND_SECONDS, **own)

    async def _behind_pooler(self) -> bool:
        """A pooler makes up the process id that it reports to its clients."""
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
        for pool in (self._engine, self._reads, self._searches):
            if pool is not None:
                await pool.close()
        self._engine = self._reads = self._searches = None

    # -- connections ---------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        """An engine connection in its current state."""
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
        """One statement in its own transaction with the engine's planner settings: the hot path."""
        pool = self._engine
        if self.pooled or pool is None:
            async with self.transaction() as connection:
                return cast(list[Any], await connection.fetch(sql, *values))
        try:
            connection = await pool.take(sql)
            return cast(list[Any], await pool.finish(connection, connection.fetch(sql, *values)))
        except Exception as error:
            raise self._as_told(error) from None

    # -- work that ends even if its caller gives up ----------------------------------------------

    async def change(self, work: Work[T]) -> T:
        """Run `work` in a transaction with the engine's planner settings."""

        async def transaction(connection: Any) -> T:
            async with connection.transaction():
                if self.pooled:
                    await connection.execute(_settings(PLAN_SETTINGS))
                return await work(connection)

        return await self._on(self._engine, transaction)

    async def read(self, work: Work[T]) -> T:
        return await self._on(self._reads, work)

    async def search(self, work: Work[T], together: bool) -> T:
        """On a connection that stops slow statements; `together`: inside a transaction on one snapshot."""

        async def snapshot(connection: Any) -> T:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                if self.pooled:
                    await connection.execute(_settings(SEARCH_SETTINGS))
                return await work(connection)

        async def in_time(connection: Any) -> T:
            try:
                return await (snapshot if together or self.pooled else work)(connection)
            except asyncpg.QueryCanceledError:  # caught here: further out it would pass for an outage
                raise too_slow(SEARCH_SECONDS) from None

        return await self._on(self._searches, in_time)

    async def _on(self, pool: Pool | None, work: Work[T]) -> T:
        if pool is None:
            raise StoreUnavailable("the queue is not open; open it first")
        try:
            connection = await pool.take()
            return cast(T, await pool.finish(connection, work(connection)))
        except asyncpg.LockNotAvailableError as error:
            if pool is self._engine:
                raise
            # A read behind a pooler, which has the role's lock timeout.
            raise StoreUnavailable(f"PostgreSQL can't be read just now: {error}") from None
        except Exception as error:
            raise self._as_told(error) from None


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self._connect = connect
        self._room = asyncio.Semaphore(size)
        self._idle: list[tuple[Any, float]] = []
        """With the time when they came back; the last one in is the first one out, so the others grow old."""
        self._busy: set[Any] = set()
        self._done: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """The statements that each connection has planned."""
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._pid = os.getpid()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        connection = await self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    async def take(self, sql: str = "") -> Any:
        """A connection that must be given back, preferably one that has already planned this statement."""
        await self._room.acquire()
        try:
            self._check_open()
            connection = self._spare(sql) or await self._opened()
        except asyncio.CancelledError:
            raise  # the room is released when the connection is there
        except BaseException:
            self._room.release()
            raise
        self._busy.add(connection)
        if sql:
            self._done.setdefault(connection, set()).add(sql)
        if self._closed:  # while it was being opened
            self.give_back(connection)
            self._check_open()
        return connection

    async def _opened(self) -> Any:
        """A new connection. If the caller gives up, the next one gets it."""
        task = asyncio.ensure_future(self._connect())
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.add_done_callback(self._keep)
            raise
        return task.result()

    def _keep(self, opened: asyncio.Future[Any]) -> None:
        if opened.cancelled() or opened.exception():
            self._room.release()
        else:
            self.give_back(opened.result())

    async def finish(self, connection: Any, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` to its end, even if the caller gives up, and give the connection back.

        asyncpg would cancel the statement over a second connection, in the background, and complain in the log when
        that is interrupted in turn.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        task = loop.create_task(work)
        task.add_done_callback(partial(self.give_back, connection))
        task.add_done_callback(partial(_pass_on, answer))  # cheaper than `asyncio.shield`
        return await answer

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the queue is closing")
        if os.getpid() != self._pid:
            raise InvalidInput("this queue was opened before a fork; open a new one in the child process")

    def _spare(self, sql: str) -> Any:
        # A statement takes twenty times as long on its first run on a connection as on its second.
        for at in reversed(range(len(self._idle))) if sql else ():
            connection = self._idle[at][0]
            if sql in self._done.get(connection, ()) and not connection.is_closed():
                del self._idle[at]
                return connection
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection

    def give_back(self, connection: Any, _done: asyncio.Task[Any] | None = None) -> None:
        self._room.release()
        self._busy.discard(connection)
        # Still in a transaction: its user was cancelled before it could roll back.
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            return
        self._idle.append((connection, time.monotonic()))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._drop_old)

    def _drop_old(self) -> None:
        self._sweep = None
        old = time.monotonic() - IDLE_S
        for connection, since in self._idle:
            if since <= old:
                connection.terminate()
        self._idle = [one for one in self._idle if one[1] > old]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._drop_old)

    async def close(self) -> None:
        """Close idle connections properly; give busy ones a moment to finish."""
        self._closed = True
        if self._sweep:
            self._sweep.cancel()
        idle, self._idle = [connection for connection, _ in self._idle], []
        await asyncio.gather(*(connection.close(timeout=CLOSE_S) for connection in idle), return_exceptions=True)
        until = time.monotonic() + CLOSE_S
        while self._busy and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for connection in list(self._busy):
            connection.terminate()


def _pass_on(answer: asyncio.Future[Any], done: asyncio.Task[Any]) -> None:
    if done.cancelled():
        answer.cancel()
    elif error := done.exception():  # looked at even if its caller is gone, because asyncio logs what no one does
        if not answer.done():
            answer.set_exception(error)
    elif not answer.done():
        answer.set_result(done.result())


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
        return StoreUnavailable(f"PostgreSQL at {where} can't be used just now: {_reason(error)}")
    if isinstance(error, ValueError | OverflowError):
        # The text may quote part of the URL, and with it part of the password.
        return InvalidInput(
            f"the URL of {where} can't be read; check its port, and write @ : / in a password as %40 %3A %2F"
        )
    return error


def _reason(error: Exception) -> str:
    """The server's or system's message. The driver's own messages name its classes and calls."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.ConnectionDoesNotExistError):
        return str(error)
    return "the connection was lost"
