"""How scripts and queries run. The verbs are written on top of it; each SQL store says how it is done there."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import to_json

from treadle.store.sql.changes import Reading
from treadle.store.sql.queries import load
from treadle.store.sql.scripts import Script
from treadle.telemetry.slow_statements import SlowStatements

T = TypeVar("T")


class SqlRunner(ABC):
    """Runs a script in a transaction, or a query."""

    dialect: str
    slow_advice: str
    """What to do if a statement takes much longer than usual."""

    def __init__(self) -> None:
        self.queries = load(self.dialect)
        self.slow = SlowStatements(self.slow_advice)

    @abstractmethod
    async def transact(self, make: Callable[[], Script[T]], tell: Sequence[str] = ()) -> T:
        """Run the script that `make` returns in one transaction; then send the hints `tell`."""

    async def transact_or_busy(self, make: Callable[[], Script[T]], tell: Sequence[str] = ()) -> T:
        """Like `transact`; StoreBusy if the script needs a row that a user's transaction has locked."""
        return await self.transact(make, tell)

    async def transact_patiently(
        self, keys: Sequence[Hashable], make: Callable[[], Script[T]], tell: Sequence[str] = ()
    ) -> T:
        """Like `transact`, but waits at most 5 seconds for locked rows, without a connection; then StoreUnavailable.
        `keys`: what the script needs; calls for the same key wait for each other."""
        return await self.transact(make, tell)

    @abstractmethod
    def _tell(self, hints: Sequence[str]) -> None:
        """Send hints after the commit that they are about."""

    @abstractmethod
    async def read(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Read rows, outside of any transaction."""

    @abstractmethod
    async def read_snapshot(self, make: Callable[[], Reading[T]]) -> T:
        """Run all queries of the reading that `make` returns on one snapshot of the database."""

    @abstractmethod
    async def search(self, make: Callable[[], Reading[T]], *, together: bool = False) -> T:
        """A read with a cost that the caller decides: kept apart from other reads, QueryTooSlow after two seconds.

        `together`: all queries on one snapshot.
        """

    async def read_by_key(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Read rows by their keys: a statement with the same plan for all values."""
        return await self.read(sql, values)

    async def read_small(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Read a few rows of a small table that is read all the time."""
        return await self.read(sql, values)

    async def _ask(self, name: str, rows: Sequence[Mapping[str, Any]] | None = None) -> list[Any]:
        sql = self.queries[name].sql
        began = time.perf_counter()
        found = await self.read(sql, [] if rows is None else [to_json(rows).decode()])
        self.slow.observe(name, time.perf_counter() - began)
        return found

    async def _change(self, name: str, rows: Sequence[Mapping[str, Any]], tell: Sequence[str] = ()) -> list[Any]:
        """Run one statement in its own transaction."""

        def single() -> Script[list[Any]]:
            return (yield name, rows)

        return await self.transact(single, tell)
