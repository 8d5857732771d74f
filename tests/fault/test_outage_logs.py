"""What an outage of the store leaves in the log: a line when it begins, now and then, and when it ends."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fault.scale import scaled
from tests.servers import PostgresServer
from tests.waiting import until
from treadle import Queue, Worker
from treadle.store.sqlite import writer
from treadle.telemetry import outages

OUTAGE_S = scaled(3, 20)


@contextlib.asynccontextmanager
async def at_work(queue: Queue) -> AsyncIterator[None]:
    """A worker with something to write, its maintenance, and a listener: all that calls the store again and again."""
    started = 0

    @queue.job(max_attempts=10)
    async def slow() -> None:
        nonlocal started
        started += 1
        await asyncio.sleep(0.5)  # into the outage

    listener = await queue.feed.listener()
    worker = Worker(queue, slots=4, lease="60s", poll_interval="100ms", reap_interval="200ms")
    working = asyncio.create_task(worker.run())
    await slow.enqueue_many([{}] * 4)
    await until(lambda: started == 4)
    yield
    await until(lambda: worker.metrics.completed >= 4)
    await listener.close()
    worker.stop()
    await working


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def told_again(caplog: pytest.LogCaptureFixture) -> bool:
    return any(" s now; waiting: " in line for line in lines(caplog))


async def assert_told_once(caplog: pytest.LogCaptureFixture, begins: str, since: float) -> None:
    await until(lambda: "the store is back" in caplog.text, 30)
    most = time.monotonic() - since  # a server takes its time to stop and to start
    first, *repeated, last = lines(caplog)
    assert first.startswith(begins)
    assert last.startswith("the store is back after")
    assert all(" s now; waiting: " in line for line in repeated)
    assert OUTAGE_S - 2 <= len(repeated) <= most, lines(caplog)
    assert "asyncpg" not in caplog.text
    assert "__aexit__" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_postgres_away(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(outages, "REPEAT_S", 1.0)
    with own_postgres.database() as name:
        async with Queue(own_postgres.url(name)) as queue, at_work(queue):
            since = time.monotonic()
            await asyncio.to_thread(own_postgres.stop)
            await asyncio.sleep(OUTAGE_S)  # how long it is away
            await until(lambda: told_again(caplog))
            await asyncio.to_thread(own_postgres.start)
            where = f"PostgreSQL at 127.0.0.1:{own_postgres.port}/{name}"
            await assert_told_once(caplog, f"{where} can't be used just now", since)


async def test_sqlite_locked(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(outages, "REPEAT_S", 1.0)
    monkeypatch.setattr(writer, "BUSY_SECONDS", 0.05)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    async with Queue(sqlite_url) as queue, at_work(queue):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            since = time.monotonic()
            await asyncio.sleep(OUTAGE_S)  # how long it is away
            await until(lambda: told_again(caplog))
            other.execute("ROLLBACK")
        await assert_told_once(caplog, f"{path} can't be used just now: database is locked", since)
