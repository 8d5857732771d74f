"""Connections are opened when needed, reused, and closed when something is wrong with them."""

import asyncio
import contextlib
import gc
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.waiting import give_way, stays, until
from treadle import Queue, WrongState
from treadle.store.postgres import pools
from treadle.store.postgres.pools import Pool
from treadle.testing.workbench import eventually


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[Pool]:
    made = Pool(lambda: asyncpg.connect(postgres_url), 2)
    yield made
    await made.close()


async def pid(connection: Any) -> int:
    return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def test_the_same_connection_serves_again(pool: Pool) -> None:
    async with pool.connection() as connection:
        first = await pid(connection)
    async with pool.connection() as connection:
        assert await pid(connection) == first


async def test_a_statement_goes_where_it_was_planned_before(pool: Pool) -> None:
    one, two = await pool.take("SELECT 1"), await pool.take("SELECT 2")
    for first, second in ((one, two), (two, one)):  # whichever came back last
        pool.give_back(first)
        pool.give_back(second)
        assert await pool.take("SELECT 1") is one
        assert await pool.take("SELECT 1") is two, "better than none"
    pool.give_back(one)
    one.terminate()
    assert await pool.take("SELECT 1") not in (one, two)


async def test_no_more_connections_than_its_size(pool: Pool) -> None:
    seen = set()

    async def use() -> None:
        async with pool.connection() as connection:
            seen.add(await pid(connection))
            await connection.execute("SELECT pg_sleep(0.01)")

    await asyncio.gather(*(use() for _ in range(10)))
    assert len(seen) == 2


async def test_a_closed_connection_is_replaced(pool: Pool) -> None:
    async with pool.connection() as connection:
        first = await pid(connection)
    connection.terminate()
    async with pool.connection() as connection:
        assert await pid(connection) != first


async def test_a_connection_left_in_a_transaction_is_thrown_away(pool: Pool) -> None:
    async with pool.connection() as connection:
        first = await pid(connection)
        await connection.execute("BEGIN")
    async with pool.connection() as connection:
        assert await pid(connection) != first


async def test_a_statement_that_was_given_up_does_not_spoil_the_connection(pool: Pool) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), pool.connection() as connection:
            await connection.execute("SELECT pg_sleep(30)")
    async with asyncio.timeout(60), pool.connection() as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_who_can_not_connect_takes_no_place(postgres_url: str) -> None:
    pool = Pool(lambda: asyncpg.connect(postgres_url, user="nobody_there"), 1)
    for _ in range(3):
        with pytest.raises(asyncpg.PostgresError):
            await pool.take()
    await pool.close()


async def test_unused_connections_are_closed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "IDLE_S", 0.05)
    pool = Pool(lambda: asyncpg.connect(postgres_url), 2)
    async with pool.connection() as one, pool.connection() as two:
        pass
    await until(lambda: one.is_closed() and two.is_closed())
    await pool.close()


async def test_what_was_used_a_moment_ago_stays(pool: Pool) -> None:
    async with pool.connection() as one, pool.connection() as two:
        pass
    (first, since), second = pool._idle
    pool._idle = [(first, since - pools.IDLE_S), second]
    pool._drop_old()
    assert {one.is_closed(), two.is_closed()} == {True, False}
    async with pool.connection() as connection:
        assert connection is second[0]


async def test_closing_waits_for_what_is_under_way(postgres_url: str) -> None:
    pool = Pool(lambda: asyncpg.connect(postgres_url), 1)
    begun, go = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        async with pool.connection() as connection:
            begun.set()
            await go.wait()
            return await pid(connection)

    working = asyncio.create_task(work())
    await begun.wait()
    closing = asyncio.create_task(pool.close())
    await stays(lambda: not closing.done(), 0.05)
    go.set()
    await closing
    assert await working


async def test_who_comes_or_waits_while_it_closes_is_told(pool: Pool) -> None:
    held = [await pool.take(), await pool.take()]
    waiting = asyncio.create_task(pool.take())
    await give_way()
    closing = asyncio.create_task(pool.close())
    await give_way()
    for connection in held:
        pool.give_back(connection)
    await closing
    for late in (waiting, pool.take()):
        with pytest.raises(ConnectionAbortedError):
            await late


async def test_a_connection_that_comes_too_late_is_closed(postgres_url: str) -> None:
    async def connect() -> Any:
        made.append(await asyncpg.connect(postgres_url))
        return made[0]

    made: list[Any] = []
    pool = Pool(connect, 1)
    taking = asyncio.create_task(pool.take())
    await give_way()
    await pool.close()
    with pytest.raises(ConnectionAbortedError):
        await taking
    assert made[0].is_closed()


async def test_closing_does_not_wait_for_ever(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "CLOSE_S", 0.05)
    pool = Pool(lambda: asyncpg.connect(postgres_url), 1)
    connection = await pool.take()
    await pool.close()
    assert connection.is_closed()
    pool.give_back(connection)


async def give_up(pool: Pool, connection: Any, sql: str) -> None:
    """On a statement that only begins then."""
    given_up = asyncio.Event()

    async def work() -> None:
        await given_up.wait()
        await connection.execute(sql)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pool.finish(connection, work())
    given_up.set()


async def test_work_goes_on_when_its_caller_gives_up_and_the_connection_serves_again(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await pool.take()
    first = await pid(connection)
    await connection.execute("CREATE TEMPORARY TABLE done (n integer)")
    await give_up(pool, connection, "INSERT INTO done VALUES (1)")
    await eventually(lambda: bool(pool._idle))
    async with pool.connection() as again:
        assert await pid(again) == first
        assert await again.fetchval("SELECT count(*) FROM done") == 1
    assert not caplog.records


async def test_an_error_after_the_caller_has_given_up_is_not_logged(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await pool.take()
    await give_up(pool, connection, "SELECT 1 / 0")
    await eventually(lambda: bool(pool._idle))
    gc.collect()
    assert not caplog.records


async def test_a_connection_that_its_caller_did_not_wait_for_serves_the_next(postgres_url: str) -> None:
    opened: list[Any] = []
    go = asyncio.Event()

    async def connect() -> Any:
        await go.wait()
        opened.append(await asyncpg.connect(postgres_url))
        return opened[-1]

    pool = Pool(connect, 2)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pool.take()
    go.set()
    async with asyncio.timeout(60), pool.connection() as one, pool.connection() as two:
        assert {one, two} == set(opened)
    await pool.close()


async def test_callers_that_give_up_leave_no_trace_in_the_log(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncpg opens connections to cancel statements, and says so when it can't."""
    dice = random.Random(8)
    async with Queue(postgres_url) as queue:
        job = await queue.enqueue("mail")

        async def impatient() -> None:
            for _ in range(25):
                call = dice.choice(
                    [
                        lambda: queue.enqueue("mail"),
                        lambda: queue.enqueue("mail", idempotency_key=str(dice.random())),
                        lambda: queue.enqueue_many("mail", [{}] * 5),
                        lambda: queue.list(limit=10),
                        lambda: queue.get(job.id),
                        lambda: queue.cancel(job.id),
                    ]
                )
                with contextlib.suppress(TimeoutError, WrongState):
                    await asyncio.wait_for(call(), dice.choice([0.0005, 0.001, 0.002, 0.004]))

        await asyncio.gather(*(impatient() for _ in range(12)))
        async with asyncio.timeout(30):
            await queue.enqueue("mail")
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []
