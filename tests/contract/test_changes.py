"""What happened since the last look, on both stores; PostgreSQL's transactions commit in any order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tests.contract.relational import RelationalDatabase
from treadle.policy.lifecycle import Completed, Failed
from treadle.queue import steering
from treadle.store.postgres.store import PostgresStore
from treadle.store.sql import scripts
from treadle.store.sql.scripts import Script
from treadle.store.sql.scripts.steer import cancel
from treadle.testing import contract
from treadle.testing.contract.watching import Watched, Watcher, id_of, names
from treadle.testing.workbench import Workbench, eventually, new_job, settlement


class TestChanges(contract.ChangesContract): ...


class TestSnapshot(contract.SnapshotContract): ...


class TestBusyChanges(contract.BusyChangesContract): ...


class Undo(Exception):
    """Rolls a transaction back."""


class TestOpenTransactions(Watched):
    """Numbers are handed out before the commit: a lower one may become visible after a higher one."""

    @pytest.fixture
    def database(self, postgres_database: RelationalDatabase) -> RelationalDatabase:
        return postgres_database

    @pytest.fixture
    async def connect(
        self, postgres_database: RelationalDatabase
    ) -> AsyncIterator[Callable[[], Awaitable[asyncpg.Connection]]]:
        async with contextlib.AsyncExitStack() as stack:

            async def connect() -> asyncpg.Connection:
                connection = await asyncpg.connect(postgres_database.url)
                stack.push_async_callback(connection.close)
                return connection

            yield connect

    async def test_the_lower_number_commits_last(self, bench: Workbench, watcher: Watcher, connect: Any) -> None:
        first, second = await connect(), await connect()
        early, late = new_job(), new_job()
        slow = first.transaction()
        await slow.start()
        await bench.store.insert([early], connection=first)
        async with second.transaction():
            await bench.store.insert([late], connection=second)
        assert [id_of(change) for change in await watcher.look()] == [late.id]
        assert await watcher.look() == []
        await slow.commit()
        assert [id_of(change) for change in await watcher.look()] == [early.id]
        assert await watcher.look() == []
        assert watcher.cursor.jobs.gaps == ()

    async def test_one_that_stays_open_while_much_else_happens(
        self, bench: Workbench, watcher: Watcher, connect: Any
    ) -> None:
        connection = await connect()
        slow = connection.transaction()
        await slow.start()
        early = new_job()
        await bench.store.insert([early], connection=connection)
        seen: list[str] = []
        for _ in range(20):
            id = await bench.make("completed")
            seen += [id] * 3
            await watcher.look()
        assert [id_of(change) for change in watcher.seen] == seen
        await slow.commit()
        assert names(await watcher.look()) == ["enqueued"]
        assert watcher.seen[-1].job is not None
        assert watcher.seen[-1].job.id == early.id

    async def test_one_that_is_rolled_back_is_never_told_and_soon_forgotten(
        self, bench: Workbench, watcher: Watcher, connect: Any
    ) -> None:
        connection = await connect()
        slow = connection.transaction()
        await slow.start()
        await bench.store.insert([new_job(), new_job()], connection=connection)
        await bench.enqueue(1)
        assert await watcher.news() == ["enqueued"]
        assert watcher.cursor.jobs.gaps, "it may still come"
        await slow.rollback()
        assert await watcher.news() == []
        assert watcher.cursor.jobs.gaps == ()

    async def test_one_that_was_open_before_the_first_look(self, bench: Workbench, connect: Any) -> None:
        connection = await connect()
        slow = connection.transaction()
        await slow.start()
        early = new_job()
        await bench.store.insert([early], connection=connection)
        await bench.enqueue(2)
        watcher = Watcher(bench.store)
        assert await watcher.news() == []
        await slow.commit()
        assert [id_of(change) for change in await watcher.look()] == [early.id]

    async def test_a_transaction_that_began_after_the_one_that_was_seen_first(
        self, bench: Workbench, watcher: Watcher, connect: Any
    ) -> None:
        """Its id is above every id that has ended, so the snapshot's upper end says nothing about it."""
        first, second = await connect(), await connect()
        before, early, late = new_job(), new_job(), new_job()
        await bench.enqueue(1)  # its lane is there: only these two transactions have ids of their own
        await watcher.look()
        outer, inner = first.transaction(), second.transaction()
        await outer.start()
        await inner.start()
        await bench.store.insert([before], connection=first)
        await bench.store.insert([early], connection=second)
        await bench.store.insert([late], connection=first)
        await outer.commit()
        assert [id_of(change) for change in await watcher.look()] == [before.id, late.id]
        assert await watcher.look() == []
        await inner.commit()
        assert [id_of(change) for change in await watcher.look()] == [early.id]
        assert watcher.cursor.jobs.gaps == ()

    async def test_a_gap_is_watched_after_an_older_transaction_has_ended(
        self, bench: Workbench, watcher: Watcher, connect: Any
    ) -> None:
        oldest, first, second = await connect(), await connect(), await connect()
        before, early, late = new_job(), new_job(), new_job()
        await bench.enqueue(1)
        await watcher.look()
        transactions = [connection.transaction() for connection in (oldest, first, second)]
        for transaction in transactions:
            await transaction.start()
        await oldest.execute("SELECT pg_current_xact_id()")
        await bench.store.insert([before], connection=first)
        await bench.store.insert([early], connection=second)
        await bench.store.insert([late], connection=first)
        await transactions[1].commit()
        assert [id_of(change) for change in await watcher.look()] == [before.id, late.id]
        await transactions[0].rollback()
        assert await watcher.look() == []
        await transactions[2].commit()
        assert [id_of(change) for change in await watcher.look()] == [early.id]

    async def test_one_above_all_that_ended_was_open_before_the_first_look(
        self, bench: Workbench, connect: Any
    ) -> None:
        first, second = await connect(), await connect()
        early = new_job()
        await bench.enqueue(1)
        outer, inner = first.transaction(), second.transaction()
        await outer.start()
        await inner.start()
        await bench.store.insert([new_job()], connection=first)
        await bench.store.insert([early], connection=second)
        await bench.store.insert([new_job()], connection=first)
        await outer.commit()
        watcher = Watcher(bench.store)
        assert await watcher.news() == []
        await inner.commit()
        assert [id_of(change) for change in await watcher.look()] == [early.id]

    async def test_moves_in_a_transaction_that_began_later(
        self, bench: Workbench, watcher: Watcher, connect: Any
    ) -> None:
        first, second = await connect(), await connect()
        one, two, three = [await bench.enqueue_one(topic=topic) for topic in ("one", "two", "three")]
        await watcher.look()
        outer, inner = first.transaction(), second.transaction()
        await outer.start()
        await inner.start()
        await finish(bench.store, first, cancel({one: ""}))
        await finish(bench.store, second, cancel({two: ""}))
        await finish(bench.store, first, cancel({three: ""}))
        await outer.commit()
        assert [id_of(change) for change in await watcher.look()] == [one, three]
        assert await watcher.look() == []
        await inner.commit()
        assert [id_of(change) for change in await watcher.look()] == [two]
        assert watcher.cursor.events.gaps == ()

    async def test_a_quiet_database_costs_no_transaction_ids(self, bench: Workbench, watcher: Watcher) -> None:
        """Only a gap makes a look ask for one, because transaction ids are limited."""
        await bench.enqueue(3)
        assert await watcher.news() == ["enqueued"] * 3
        before = await next_transaction(bench.store)
        for _ in range(20):
            await watcher.look()
        # Asking for the number is one, and a notification or the server's own upkeep may be another.
        assert await next_transaction(bench.store) - before < 10

    async def test_a_number_that_was_only_reserved_when_the_gap_was_seen(
        self, bench: Workbench, watcher: Watcher, connect: Any
    ) -> None:
        """The transaction has written nothing yet; its id must be known all the same."""
        connection = await connect()
        job = new_job(idempotency_key="k")
        await bench.enqueue(1)  # its lane is there: nothing else is written before the number is taken
        await watcher.look()
        slow = connection.transaction()
        await slow.start()
        script = scripts.insert([job], True)
        answer = await step_until(bench.store, connection, script, "reserve_numbers")
        await bench.enqueue(1)
        assert await watcher.news() == ["enqueued"]
        assert await watcher.news() == []
        await finish(bench.store, connection, script, answer)
        await slow.commit()
        assert [id_of(change) for change in await watcher.look()] == [job.id]

    async def test_inside_a_savepoint(self, bench: Workbench, watcher: Watcher, connect: Any) -> None:
        connection = await connect()
        kept, undone = new_job(), new_job()
        async with connection.transaction():
            async with connection.transaction():
                await bench.store.insert([kept], connection=connection)
            with contextlib.suppress(Undo):
                async with connection.transaction():
                    await bench.store.insert([undone], connection=connection)
                    raise Undo
            await bench.enqueue(1)
            assert await watcher.news() == ["enqueued"]
        assert [id_of(change) for change in await watcher.look()] == [kept.id]
        assert watcher.cursor.jobs.gaps == ()

    async def test_a_large_one_is_read_page_by_page(self, bench: Workbench, watcher: Watcher, connect: Any) -> None:
        connection = await connect()
        watcher.page = 10
        slow = connection.transaction()
        await slow.start()
        jobs = [new_job() for _ in range(105)]
        await bench.store.insert(jobs, connection=connection)
        await bench.enqueue(1)
        await watcher.look()
        await slow.commit()
        assert [id_of(change) for change in await watcher.look()] == [job.id for job in jobs]
        assert watcher.cursor.jobs.gaps == ()

    async def test_moves_that_commit_in_the_other_order(self, bench: Workbench, watcher: Watcher, connect: Any) -> None:
        connection = await connect()
        first, second = await bench.enqueue_one(topic="one"), await bench.enqueue_one(topic="another")
        await watcher.look()
        slow = connection.transaction()
        await slow.start()
        await finish(bench.store, connection, cancel({first: ""}))
        await steering.cancel(bench.store, [second], "")
        assert [id_of(change) for change in await watcher.look()] == [second]
        await slow.commit()
        assert [id_of(change) for change in await watcher.look()] == [first]
        assert await watcher.look() == []
        assert watcher.cursor.events.gaps == ()

    async def test_an_ending_that_commits_late_comes_before_what_follows_it(
        self, bench: Workbench, watcher: Watcher, connect: Any
    ) -> None:
        connection = await connect()
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        slow = connection.transaction()
        await slow.start()
        ending = settlement(job, Failed("Boom", "Boom"))
        await finish(bench.store, connection, scripts.settle([ending]))
        await bench.make("cancelled", topic="other")
        assert await watcher.news() == ["enqueued", "enqueued", "cancelled"]
        requeue = asyncio.create_task(steering.requeue(bench.store, [id]))
        await slow.commit()
        await requeue
        await steering.requeue(bench.store, [id])
        await watcher.look()
        assert watcher.stories()[id] == ["enqueued", "started", "failed", "requeued"]

    async def test_many_who_open_and_roll_back(self, bench: Workbench, watcher: Watcher, connect: Any) -> None:
        made: list[str] = []

        async def one(number: int) -> None:
            connection = await connect()
            for turn in range(10):
                jobs = [new_job() for _ in range(turn % 3 + 1)]
                with contextlib.suppress(Undo):
                    async with connection.transaction():
                        await bench.store.insert(jobs, connection=connection)
                        await asyncio.sleep(0.001 * (number * turn % 7))  # how long it stays open
                        if (number + turn) % 3 == 0:
                            raise Undo
                    made.extend(job.id for job in jobs)
                await watched()

        async def watched() -> None:
            async with lock:
                await watcher.look()

        lock = asyncio.Lock()
        await asyncio.gather(*(one(number) for number in range(6)))
        await watcher.look()
        assert sorted(id_of(change) for change in watcher.seen) == sorted(made)
        assert watcher.cursor.jobs.gaps == ()

    async def test_a_lot_of_gaps_that_cannot_be_decided(
        self, bench: Workbench, watcher: Watcher, connect: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A transaction that stays open for hours keeps every gap undecided: then everything has to be looked at."""
        monkeypatch.setattr("treadle.store.sql.changes.MOST_GAPS", 3)
        stuck, other = await connect(), await connect()
        async with stuck.transaction():
            await stuck.execute("SELECT pg_current_xact_id()")
            for _ in range(5):
                with contextlib.suppress(Undo):
                    async with other.transaction():
                        await bench.store.insert([new_job()], connection=other)
                        raise Undo
                await bench.enqueue(1)
            changes = await bench.store.changes(watcher.cursor)
            assert changes.lost
            assert names(changes.events) == ["enqueued"] * 5
            await bench.enqueue(1)
            changes = await bench.store.changes(changes.cursor)
            assert (changes.lost, names(changes.events)) == (False, ["enqueued"])

    async def test_another_process_by_its_own_store(self, bench: Workbench, watcher: Watcher) -> None:
        assert isinstance(bench.store, PostgresStore)
        elsewhere = PostgresStore(f"{bench.store.url}?application_name=elsewhere", stale_after_ms=1)
        await elsewhere.open()
        job = new_job()
        await elsewhere.insert([job])
        await bench.settle(await bench.claim_one(store=elsewhere), Completed(), store=elsewhere)
        await elsewhere.close()

        async def told() -> bool:
            await watcher.look()
            return watcher.stories()[job.id] == ["enqueued", "started", "completed"]

        await eventually(told)


async def next_transaction(store: Any) -> int:
    return int((await store.read("SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)", []))[0][0])


async def step_until(store: Any, connection: Any, script: Script[Any], query: str) -> Any:
    """Run a script on a connection up to this query; its rows."""
    name, rows = next(script)
    while True:
        answer = await run_query(store, connection, name, rows)
        if name == query:
            return answer
        name, rows = script.send(answer)


async def finish(store: Any, connection: Any, script: Script[Any], answer: Any = None) -> Any:
    """Run the rest of a script; the commit is the caller's."""
    try:
        name, rows = next(script) if answer is None else script.send(answer)
        while True:
            name, rows = script.send(await run_query(store, connection, name, rows))
    except StopIteration as stop:
        return stop.value


async def run_query(store: PostgresStore, connection: Any, name: str, rows: Any) -> Any:
    from pydantic_core import to_json

    sql = store.queries[name].sql
    return await connection.fetch(sql, *([to_json(rows).decode()] if "$1" in sql else []))
