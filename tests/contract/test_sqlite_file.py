"""What is special about one SQLite file: its one writer, its locks, its disk, its forks."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.contract.relational import RelationalDatabase
from treadle.errors import InvalidInput, StoreUnavailable
from treadle.lifecycle import Completed, Status
from treadle.store import sqlite_engine
from treadle.store.base import Listing
from treadle.store.sqlite import SqliteStore
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import Workbench, new_job


@pytest.fixture
def database(sqlite_database: RelationalDatabase) -> RelationalDatabase:
    return sqlite_database


class SqlitePart(ContractPart):
    def store(self, bench: Workbench) -> SqliteStore:
        assert isinstance(bench.store, SqliteStore)
        return bench.store

    def path(self, bench: Workbench) -> Path:
        return self.store(bench).path

    @contextmanager
    def write_lock(self, bench: Workbench) -> Iterator[sqlite3.Connection]:
        """Somebody who does not know our manners has the write lock."""
        with closing(sqlite3.connect(self.path(bench), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    async def blocked(self, bench: Workbench) -> tuple[threading.Event, "asyncio.Task[None]"]:
        """Keep the writer busy, so that what comes next gathers into one group; set the event to go on."""
        go, busy = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(_: sqlite3.Connection) -> None:
            loop.call_soon_threadsafe(busy.set)
            go.wait()

        task = asyncio.create_task(self.store(bench).engine.write(wait))
        await busy.wait()
        return go, task


class TestBusy(SqlitePart):
    async def test_a_writer_waits_for_the_lock(self, bench: Workbench) -> None:
        with self.write_lock(bench) as other:
            writing = asyncio.create_task(bench.enqueue(1))
            await asyncio.sleep(0.05)
            assert not writing.done()
            other.execute("COMMIT")
            (id,) = await writing
        assert await bench.status(id) is Status.PENDING

    async def test_reading_goes_on_while_somebody_has_the_lock(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        with self.write_lock(bench):
            assert await bench.status(id) is Status.PENDING
            assert (await bench.store.stats()).counts["pending"] == 1

    async def test_a_lock_that_stays_is_unavailable_and_passes(
        self, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_engine, "BUSY_SECONDS", 0.1)
        bench = Workbench(database)
        await bench.open()
        lease = await bench.lease()
        (id,) = await bench.enqueue(1)
        (job,) = await bench.claim(1, lease=lease)
        with self.write_lock(bench):
            for call in (
                bench.store.insert([new_job()]),
                bench.settle(job, Completed()),
                bench.store.extend(lease, 1000),
                bench.store.cancel([id], ""),
                bench.store.reschedule(id, run_at=1, priority=1, max_attempts=1),
            ):
                with pytest.raises(StoreUnavailable, match="locked"):
                    await call
        assert await bench.settle(job, Completed())
        assert await bench.store.count(Listing()) == 1
        await bench.close()

    async def test_all_who_wait_are_told_after_one_wait(
        self, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_engine, "BUSY_SECONDS", 0.2)
        bench = Workbench(database)
        await bench.open()
        go, busy = await self.blocked(bench)
        calls = [asyncio.create_task(bench.store.insert([new_job()])) for _ in range(40)]
        await asyncio.sleep(0)
        with closing(sqlite3.connect(self.path(bench), isolation_level=None, timeout=5)) as other:
            go.set()
            await busy
            started = time.monotonic()
            other.execute("PRAGMA busy_timeout = 5000")
            other.execute("BEGIN IMMEDIATE")
            answers = await asyncio.gather(*calls, return_exceptions=True)
            waited = time.monotonic() - started
            other.execute("ROLLBACK")
        told = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
        assert len(told) in (0, 40), "a group is one transaction"
        assert waited < 4, "each of them waited for itself"
        await bench.close()


class TestGroupCommit(SqlitePart):
    async def test_one_callers_error_is_not_anothers(self, bench: Workbench) -> None:
        (taken,) = await bench.enqueue(1)
        go, busy = await self.blocked(bench)
        jobs = [new_job() for _ in range(20)]
        calls = [asyncio.create_task(bench.store.insert([job])) for job in jobs]
        calls.insert(10, asyncio.create_task(bench.store.insert([new_job(id=taken)])))
        await asyncio.sleep(0)
        go.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await busy
        assert [isinstance(answer, BaseException) for answer in answers] == [i == 10 for i in range(21)]
        assert await bench.statuses([job.id for job in jobs]) == [Status.PENDING] * 20

    async def test_a_lane_that_a_rolled_back_group_registered_is_registered_again(self, bench: Workbench) -> None:
        (taken,) = await bench.enqueue(1)
        go, busy = await self.blocked(bench)
        job = new_job(topic="brand.new")
        calls = [
            asyncio.create_task(bench.store.insert([job])),
            asyncio.create_task(bench.store.insert([new_job(id=taken)])),
        ]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await busy
        assert (await bench.job(job.id)).topic == "brand.new"
        assert await bench.claimable(["brand.new"]) == [job.id]
        assert await bench.claimable(["mail"]) == [taken]

    async def test_a_group_is_one_commit(self, bench: Workbench) -> None:
        """Counted by another connection: its data version changes once per commit of others."""
        await bench.enqueue(1)
        go, busy = await self.blocked(bench)
        calls = [asyncio.create_task(bench.store.insert([new_job()])) for _ in range(100)]
        await asyncio.sleep(0)
        commits: list[int] = []
        with closing(sqlite3.connect(self.path(bench), isolation_level=None)) as watcher:
            before = watcher.execute("SELECT count(*) FROM treadle_jobs").fetchone()[0]
            go.set()
            await busy
            while not all(call.done() for call in calls):
                commits.append(watcher.execute("SELECT count(*) FROM treadle_jobs").fetchone()[0])
                await asyncio.sleep(0)
        assert set(commits) <= {before, before + 100}, "a group was seen by halves"
        await asyncio.gather(*calls)


class TestFullDisk(SqlitePart):
    async def test_a_full_disk_is_unavailable_and_passes(self, bench: Workbench) -> None:
        engine = self.store(bench).engine
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        used = (await bench.store.query("PRAGMA page_count", []))[0][0]  # type: ignore[attr-defined]
        await engine.write(lambda db: db.execute(f"PRAGMA max_page_count = {used + 4}").fetchall())
        stored = 0
        with pytest.raises(StoreUnavailable, match="full"):
            for _ in range(100):
                await bench.enqueue(1, payload='{"a": "%s"}' % ("x" * 2000))
                stored += 1
        assert await bench.store.count(Listing()) == 1 + stored, "something was half-stored"
        with pytest.raises(StoreUnavailable, match="full"):
            await bench.settle(job, Completed('"%s"' % ("x" * 100_000)))
        assert await bench.status(id) is Status.PROCESSING
        await engine.write(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchall())
        assert await bench.settle(job, Completed('"%s"' % ("x" * 100_000)))
        await bench.enqueue(50)
        integrity = await bench.store.query("PRAGMA integrity_check", [])  # type: ignore[attr-defined]
        assert integrity == [("ok",)]


class TestFork(SqlitePart):
    async def test_a_fork_after_opening_refuses_clearly(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            answer = b"no error"
            try:
                asyncio.events._set_running_loop(None)
                asyncio.run(bench.store.insert([new_job()]))
            except InvalidInput as error:
                answer = str(error).encode()
            finally:
                os.write(writing, answer)
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            assert b"before a fork" in pipe.read()
        await bench.enqueue(1)
        assert await bench.store.count(Listing()) == 2


class TestLongReader(SqlitePart):
    async def test_writes_go_on_under_a_long_reader(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        with closing(sqlite3.connect(self.path(bench), isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM treadle_jobs").fetchone() == (1,)
            for _ in range(50):
                await bench.enqueue(20)
            assert reader.execute("SELECT count(*) FROM treadle_jobs").fetchone() == (1,)
            reader.execute("ROLLBACK")
        assert await bench.store.count(Listing()) == 1001


class TestKilled(SqlitePart):
    async def test_what_was_answered_survives_kill_9(self, bench: Workbench) -> None:
        script = (
            "import asyncio, sys\n"
            "from treadle.connect import make_store\n"
            "from treadle.testing.workbench import DAY, new_job\n"
            "async def main():\n"
            "    store = make_store(sys.argv[1], stale_after_ms=DAY)\n"
            "    await store.open()\n"
            "    while True:\n"
            "        job = new_job()\n"
            "        await store.insert([job])\n"
            "        print(job.id, flush=True)\n"
            "asyncio.run(main())\n"
        )
        url = f"sqlite:///{self.path(bench)}"
        process = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        answered = [process.stdout.readline().strip() for _ in range(30)]
        process.send_signal(signal.SIGKILL)
        answered += [line.strip() for line in process.stdout.read().splitlines() if len(line.strip()) == 36]
        process.stdout.close()
        process.wait()
        assert await bench.statuses(answered) == [Status.PENDING] * len(answered)
        await bench.enqueue(1)  # its locks are gone with it
