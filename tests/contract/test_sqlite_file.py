"""What is special about one SQLite file: its one writer, its locks, its disk, its forks."""

import asyncio
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.contract.relational import RelationalDatabase
from tests.waiting import give_way, stays
from treadle.model.errors import InvalidInput, LeaseLost, StoreUnavailable
from treadle.model.status import Status
from treadle.policy.lifecycle import Completed
from treadle.queue import steering
from treadle.store import wakeups
from treadle.store.protocol import Store
from treadle.store.sqlite import fork_gate, lock, writer
from treadle.store.sqlite.lock import WriteLock
from treadle.store.sqlite.store import SqliteStore
from treadle.store.sqlite.writer import Writer
from treadle.store.values import Claim, RecordWrite, Wants
from treadle.store.views import Listing
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import Workbench, eventually, new_job


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
        """A program that does not follow Treadle's locking has the write lock."""
        with closing(sqlite3.connect(self.path(bench), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    async def blocked(self, bench: Workbench) -> tuple[threading.Event, "asyncio.Future[None]"]:
        """Keep the writer busy, so that what comes next gathers into its group; set the event to go on."""
        go, busy = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(_: sqlite3.Connection) -> None:
            loop.call_soon_threadsafe(busy.set)
            go.wait()

        writing = self.store(bench).engine.write(wait)
        await busy.wait()
        return go, writing


class TestBusy(SqlitePart):
    async def test_a_writer_waits_for_the_lock(self, bench: Workbench) -> None:
        with self.write_lock(bench) as other:
            writing = asyncio.create_task(bench.enqueue(1))
            await stays(lambda: not writing.done(), 0.05)
            other.execute("COMMIT")
            (id,) = await writing
        assert await bench.status(id) is Status.PENDING

    async def test_reading_goes_on_while_another_process_has_the_lock(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        with self.write_lock(bench):
            assert await bench.status(id) is Status.PENDING
            assert (await bench.store.stats()).counts["pending"] == 1

    async def test_a_lock_that_stays_is_unavailable_and_passes(
        self, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer, "BUSY_SECONDS", 0.1)
        bench = Workbench(database)
        await bench.open()
        lease = await bench.lease()
        (id,) = await bench.enqueue(1)
        (job,) = await bench.claim(1, lease=lease)
        with self.write_lock(bench):
            for call in (
                bench.store.insert([new_job()]),
                bench.settle(job, Completed()),
                bench.store.renew(lease, 1000),
                steering.cancel(bench.store, [id], ""),
                steering.reschedule(bench.store, [id], run_at=1, priority=1, max_attempts=1),
            ):
                with pytest.raises(StoreUnavailable, match="locked"):
                    await call
        assert await bench.settle(job, Completed())
        assert await bench.store.count(Listing()) == 1
        await bench.close()

    async def test_all_who_wait_are_told_after_one_wait(
        self, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer, "BUSY_SECONDS", 0.2)
        bench = Workbench(database)
        await bench.open()
        go, busy = await self.blocked(bench)
        calls = [asyncio.create_task(bench.store.insert([new_job()])) for _ in range(40)]
        await give_way()
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
        calls.insert(10, asyncio.create_task(bench.store.insert([new_job(id=taken, payload='{"other": 1}')])))
        await give_way()
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
            asyncio.create_task(bench.store.insert([new_job(id=taken, payload='{"other": 1}')])),
        ]
        await give_way()
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
        await give_way()
        commits: list[int] = []
        with closing(sqlite3.connect(self.path(bench), isolation_level=None)) as watcher:
            before = watcher.execute("SELECT count(*) FROM treadle_jobs").fetchone()[0]
            go.set()
            await busy
            while not all(call.done() for call in calls):
                commits.append(watcher.execute("SELECT count(*) FROM treadle_jobs").fetchone()[0])
                await give_way()
        assert set(commits) <= {before, before + 100}, "a group was seen by halves"
        await asyncio.gather(*calls)


class TestFullDisk(SqlitePart):
    async def test_a_full_disk_is_unavailable_and_passes(self, bench: Workbench) -> None:
        engine = self.store(bench).engine
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        used = (await self.store(bench).read("PRAGMA page_count", []))[0][0]
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
        integrity = await self.store(bench).read("PRAGMA integrity_check", [])
        assert integrity == [("ok",)]


class TestTurns(SqlitePart):
    """The lock by which processes take turns has a limit, and stays with the process that took it."""

    @pytest.fixture
    def limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lock, "LIMIT_SECONDS", 0.3)

    @contextmanager
    def taken(self, bench: Workbench) -> Iterator[None]:
        """As by another process that does not go on."""
        with Path(f"{self.path(bench)}.lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    async def test_a_lock_that_is_kept_is_told_in_time_and_nothing_was_written(
        self, bench: Workbench, limit: None
    ) -> None:
        (before,) = await bench.enqueue(1)
        with self.taken(bench):
            asked = time.monotonic()
            answers = await asyncio.gather(*(bench.enqueue(1) for _ in range(20)), return_exceptions=True)
            assert 0.3 <= time.monotonic() - asked < 5
            assert {type(answer) for answer in answers} == {StoreUnavailable}
            assert "write lock" in str(answers[0])
            assert await bench.status(before) is Status.PENDING  # reading goes on
            with pytest.raises(StoreUnavailable):  # the next ones too
                await steering.cancel(bench.store, [before], "")
        assert await bench.store.count(Listing()) == 1

    async def test_writing_goes_on_when_the_lock_is_free_again(self, bench: Workbench, limit: None) -> None:
        for _ in range(2):
            with self.taken(bench), pytest.raises(StoreUnavailable):
                await bench.enqueue(1)
            await bench.enqueue(2)
        assert await bench.store.count(Listing()) == 4

    async def test_a_lock_that_is_kept_for_less_than_the_limit_is_only_waited_for(self, bench: Workbench) -> None:
        with self.taken(bench):
            writing = asyncio.create_task(bench.enqueue(1))
            await stays(lambda: not writing.done(), 0.1)
        await writing

    async def test_a_group_that_is_taken_apart_is_told_together(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One fails, so each gets a separate transaction; but then another process has the lock."""
        monkeypatch.setattr(lock, "LIMIT_SECONDS", 1.0)
        engine = self.store(bench).engine
        release = WriteLock.release
        with ExitStack() as stack:

            def lose(mine: WriteLock) -> None:
                release(mine)
                stack.enter_context(self.taken(bench))

            def fail(_: sqlite3.Connection) -> None:
                raise ValueError("no")

            go, busy = await self.blocked(bench)
            asked = [busy, engine.write(fail), *(engine.write(lambda _: None) for _ in range(8))]
            with monkeypatch.context() as patched:
                patched.setattr(WriteLock, "release", lose)
                go.set()
                started = time.monotonic()
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert time.monotonic() - started < 5, "10 s one after the other"
                assert [type(answer) for answer in answers] == [StoreUnavailable] * 10

    async def test_closing_does_not_wait_for_ever(self, database: RelationalDatabase, limit: None) -> None:
        bench = Workbench(database)
        await bench.open()
        with self.taken(bench):
            writing = asyncio.create_task(bench.enqueue(1))
            await give_way()
            async with asyncio.timeout(60):
                await bench.close()
            with pytest.raises(StoreUnavailable):
                await writing
        await eventually(lambda: not any(thread.name == "treadle-write" for thread in threading.enumerate()))

    async def test_the_thread_that_looks_at_the_clock_leaves_when_all_is_quiet(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lock, "LIMIT_SECONDS", 0.04)
        with self.taken(bench), pytest.raises(StoreUnavailable):
            await bench.enqueue(1)
        await eventually(lambda: not any(thread.name == "treadle-lock" for thread in threading.enumerate()))
        with self.taken(bench), pytest.raises(StoreUnavailable):
            await bench.enqueue(1)

    async def test_a_fork_does_not_keep_the_lock_of_a_parent_that_was_killed(self, bench: Workbench) -> None:
        url = f"sqlite:///{self.path(bench)}"
        parent = subprocess.Popen([sys.executable, "-c", FORK_WHILE_WRITING, url], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            async with asyncio.timeout(60):
                await bench.enqueue(1)
            assert psutil.pid_exists(child)
        finally:
            os.kill(child, signal.SIGKILL)
            parent.stdout.close()

    @pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
    async def test_a_fork_that_leaves_does_not_take_the_lock_from_its_parent(self, bench: Workbench) -> None:
        go, busy = await self.blocked(bench)
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            os._exit(0)
        os.waitpid(child, 0)
        with Path(f"{self.path(bench)}.lock").open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        go.set()
        await busy


FORK_WHILE_WRITING = """
import asyncio, os, sys, time, warnings
from treadle.store.connect import make_store

warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads: that is what happens here

async def main():
    store = make_store(sys.argv[1], stale_after_ms=1)
    await store.open()
    writing = asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(_):
        loop.call_soon_threadsafe(writing.set)
        time.sleep(60)  # until it is killed

    waiting = store.engine.write(write)
    await writing.wait()
    child = os.fork()
    if child == 0:
        time.sleep(60)  # until it is killed
        os._exit(0)
    print(child, flush=True)
    await waiting

asyncio.run(main())
"""


class TestClosing(SqlitePart):
    async def test_a_closed_database_is_one_file(self, tmp_path: Path) -> None:
        """So that it can be copied."""
        for _ in range(10):
            store = SqliteStore(tmp_path / "jobs.db", stale_after_ms=1)
            await store.open()
            job = new_job()
            await store.insert([job])
            await store.get([job.id])
            await store.topics()
            await store.close()
            assert {path.name for path in tmp_path.iterdir()} == {"jobs.db", "jobs.db.lock"}

    async def test_the_writer_closes_last(self, bench: Workbench) -> None:
        """Of two connections that close at the same moment, each can leave the log for the other to delete."""
        engine, go = self.store(bench).engine, threading.Event()
        reading = asyncio.create_task(engine.read_snapshot(lambda _: go.wait(60)))
        await eventually(lambda: engine._read_connections)
        writer = engine._writer
        assert writer
        closing = asyncio.create_task(bench.store.close())
        await stays(writer.is_alive, 0.1)
        go.set()
        await asyncio.gather(reading, closing)
        assert not writer.is_alive()


class TestModes(SqlitePart):
    """The file has the key that signs tokens: it is its owner's alone."""

    @pytest.fixture
    def permissive(self) -> Iterator[None]:
        before = os.umask(0)
        yield
        os.umask(before)

    async def modes(self, path: Path) -> dict[str, str]:
        """Of every file, with the store open and something written."""
        store = SqliteStore(path, stale_after_ms=1)
        await store.open()
        await store.insert([new_job()])
        found = {one.name.removeprefix(path.name): oct(one.stat().st_mode & 0o777) for one in path.parent.iterdir()}
        await store.close()
        return found

    async def test_every_file_is_made_for_its_owner_alone(self, permissive: None, tmp_path: Path) -> None:
        for _ in range(2):  # some of them are made again at each opening
            assert await self.modes(tmp_path / "jobs.db") == dict.fromkeys(["", "-wal", "-shm", ".lock"], "0o600")

    async def test_a_file_that_a_group_shares_stays_shared(self, permissive: None, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        path.touch(0o660)
        assert await self.modes(path) == dict.fromkeys(["", "-wal", "-shm", ".lock"], "0o660")

    async def test_not_everybody_who_may_read_may_take_the_lock(self, permissive: None, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        path.touch(0o644)
        assert (await self.modes(path))[".lock"] == "0o600"


class TestErrors(SqlitePart):
    async def test_an_sqlite_that_is_too_old_is_refused(
        self, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer, "MIN_VERSION", (99, 0, 0))
        with pytest.raises(InvalidInput, match=r"is too old: treadle needs 99\.0\.0"):
            await database.make_store().open()

    async def test_without_a_lock_file_it_works_all_the_same(self, database: RelationalDatabase) -> None:
        """Then SQLite's own locks must do."""
        bench = Workbench(database)
        Path(f"{self.path(bench)}.lock").mkdir()
        await bench.open()
        other = await bench.another()
        await asyncio.gather(*(store.insert([new_job()]) for store in (bench.store, other) * 10))
        assert await bench.store.count(Listing()) == 20
        await bench.close()

    async def test_what_was_asked_before_the_close_is_done(self, database: RelationalDatabase) -> None:
        bench = Workbench(database)
        await bench.open()
        go, busy = await self.blocked(bench)
        job = new_job()
        asked = asyncio.create_task(bench.store.insert([job]))
        await give_way()
        closing = asyncio.create_task(bench.store.close())
        await give_way()
        go.set()
        await asyncio.gather(asked, closing, busy)
        with pytest.raises(StoreUnavailable, match="not open"):
            await bench.store.insert([new_job()])
        assert len(await database.execute("SELECT 1 FROM {jobs}")) == 1

    async def test_a_look_that_fails_leaves_it_to_the_transaction(self, bench: Workbench) -> None:
        def look(_: sqlite3.Connection) -> None:
            raise sqlite3.OperationalError("database is locked")

        engine = self.store(bench).engine
        assert await engine.write(lambda db: db.execute("SELECT 7").fetchone(), look) == (7,)

    async def test_what_sqlite_has_rolled_back_itself_is_not_rolled_back_again(self, bench: Workbench) -> None:
        """As it does when the disk is full or fails."""
        engine = self.store(bench).engine
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            await engine.write(lambda db: db.execute("INSERT OR ROLLBACK INTO treadle_migrations VALUES (1, 'x', 0)"))
        await bench.enqueue(1)

    @pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
    async def test_a_damaged_file_is_told_of(self, database: RelationalDatabase, together: bool) -> None:
        bench = Workbench(database)
        with closing(sqlite3.connect(self.path(bench))) as connection:
            (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'treadle_jobs'").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        with self.path(bench).open("r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\xff" * size)
        await bench.open()
        engine, sql = self.store(bench).engine, "SELECT payload FROM treadle_jobs"
        with pytest.raises(StoreUnavailable, match="is damaged: .*; run treadle doctor"):
            await (engine.read_snapshot(lambda db: db.execute(sql).fetchall()) if together else engine.read(sql, []))
        await bench.close()

    async def test_a_programming_error_is_no_outage(self, bench: Workbench) -> None:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await self.store(bench).engine.read("SELECT 1 FROM no_table", [])

    async def test_a_small_read_that_fails_is_left_to_a_thread(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The event loop never waits for a lock."""
        (saved,) = await bench.store.write_records([RecordWrite("settings", "a", "a", "{}")])
        assert await bench.store.get_records([("settings", "a")]) == [saved]
        engine = self.store(bench).engine
        assert engine._small_reads
        assert engine._small_reads.execute("PRAGMA busy_timeout").fetchone() == (0,)
        shaky = Shaky(engine._small_reads, failures=1)
        shaky.execute("SELECT 1")
        monkeypatch.setattr(engine, "_small_reads", shaky)
        assert await bench.store.get_records([("settings", "a")]) == [saved]
        assert shaky.failures == 0

    async def test_the_watch_goes_on_after_an_error(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, heard = self.store(bench).engine, asyncio.Event()
        shaky = Shaky(engine._connection, failures=3)
        monkeypatch.setattr(engine, "_connection", shaky)
        bench.store.subscribe(lambda _: heard.set())
        await eventually(lambda: not shaky.failures)
        assert not heard.is_set()
        self.commit_elsewhere(bench)
        await asyncio.wait_for(heard.wait(), 60)

    async def test_commits_in_quick_succession_are_all_told(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process claims a job and ends it within milliseconds: its end is told, too."""
        engine = self.store(bench).engine
        watched = Shaky(engine._connection, failures=0)
        monkeypatch.setattr(engine, "_connection", watched)
        heard: list[str] = []
        bench.store.subscribe(heard.append)
        await eventually(lambda: watched.looks)
        with closing(sqlite3.connect(self.path(bench), isolation_level=None)) as other:
            other.execute("CREATE TABLE theirs (a)")
            for _ in range(10):
                await eventually(lambda: wakeups.ENDED in heard)
                heard.clear()
                other.execute("INSERT INTO theirs VALUES (1)")

    async def test_the_watch_leaves_our_own_commits_out(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The verb that made them has already told the listeners in this process."""
        engine = self.store(bench).engine
        watched = Shaky(engine._connection, failures=0)
        monkeypatch.setattr(engine, "_connection", watched)
        heard: list[str] = []
        bench.store.subscribe(heard.append)
        await eventually(lambda: watched.looks)
        await engine.write(lambda db: db.execute("CREATE TABLE mine (a)"))
        for _ in range(5):
            watched.looks = 0
            await engine.write(lambda db: db.execute("INSERT INTO mine VALUES (1)"))
            await eventually(lambda: watched.looks)
        assert heard == []
        self.commit_elsewhere(bench)
        await eventually(lambda: "ready" in heard)

    def commit_elsewhere(self, bench: Workbench) -> None:
        """By a program that sends no hint."""
        with closing(sqlite3.connect(self.path(bench), isolation_level=None)) as connection:
            connection.execute("CREATE TABLE theirs (a)")


class TestClaimsBehindNewJobs(SqlitePart):
    """A claim through the same writer is woken before the commit, so one commit often stores and claims a job."""

    async def claim_when_told(self, bench: Workbench) -> tuple[list[str], "asyncio.Future[Claim]"]:
        lease = await bench.lease()
        heard: list[str] = []
        claiming: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()

        def hear(hint: str) -> None:
            heard.append(hint)
            if len(heard) == 1:
                claim = asyncio.ensure_future(bench.store.claim(lease, Wants(["mail"], [], 10, 10)))
                claim.add_done_callback(lambda done: claiming.set_result(done.result()))

        bench.store.subscribe(hear, claims=True)
        return heard, claiming

    async def test_stored_and_claimed_in_one_commit(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        heard, claiming = await self.claim_when_told(bench)
        go, busy = await self.blocked(bench)
        transactions: list[int] = []
        original = Writer._transaction

        def note(engine: Writer, *args: Any) -> list[Any]:
            answers = original(engine, *args)
            transactions.append(len(answers))
            return answers

        monkeypatch.setattr(Writer, "_transaction", note)
        inserting = asyncio.create_task(bench.store.insert([job := new_job()]))
        await eventually(lambda: heard == ["ready"])
        go.set()
        await asyncio.gather(busy, inserting)
        assert [one.id for one in (await claiming).jobs] == [job.id]
        await stays(lambda: heard == ["ready"], 0.05)  # it is not told twice
        assert transactions == [], "the insert and its claim joined the transaction that was under way"

    async def test_no_look_is_taken_past_what_is_to_be_written(self, bench: Workbench) -> None:
        """A look from before the insert would find nothing."""
        lease = await bench.lease()
        for _ in range(50):
            inserting = asyncio.create_task(bench.store.insert([job := new_job()]))
            await give_way()
            claim = await bench.store.claim(lease, Wants(["mail"], [], 10, 10))
            assert [one.id for one in claim.jobs] == [job.id]
            await inserting

    async def test_a_claim_that_fails_does_not_take_the_insert_along(self, bench: Workbench) -> None:
        gone = await bench.lease()
        await bench.store.close_lease(gone)
        go, busy = await self.blocked(bench)
        inserting = asyncio.create_task(bench.store.insert([job := new_job()]))
        claiming = asyncio.create_task(bench.store.claim(gone, Wants(["mail"], [], 10, 10)))
        await give_way()
        go.set()
        with pytest.raises(LeaseLost):
            await claiming
        await asyncio.gather(busy, inserting)
        assert await bench.claimable(["mail"]) == [job.id]

    async def test_others_are_told_when_it_is_there(self, bench: Workbench) -> None:
        heard: list[str] = []
        bench.store.subscribe(heard.append)
        go, busy = await self.blocked(bench)
        inserting = asyncio.create_task(bench.store.insert([new_job()]))
        await stays(lambda: not heard, 0.05)
        go.set()
        await asyncio.gather(busy, inserting)
        await eventually(lambda: "ready" in heard)


class Shaky:
    """A connection with statements that fail at first, except for the very first one."""

    def __init__(self, connection: sqlite3.Connection, failures: int) -> None:
        self.connection = connection
        self.failures = failures
        self.looks = 0

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        if self.looks and self.failures:
            self.failures -= 1
            raise sqlite3.OperationalError("disk I/O error")
        self.looks += 1
        return self.connection.execute(sql, values)


class TestLargePayloads(SqlitePart):
    async def test_a_claim_measures_no_more_payloads_than_it_takes(self, bench: Workbench) -> None:
        """SQLite reads a payload to measure it, and the claim has the write lock."""
        assert isinstance(bench.store, SqliteStore)
        measured: list[int] = []

        def length(value: bytes) -> int:
            measured.append(len(value))
            return len(value)

        bench.store.engine._connection.create_function("length", 1, length)
        await bench.enqueue(200, payload='{"x": "%s"}' % ("x" * 10_000))
        claim = await bench.store.claim(await bench.lease(), Wants(["mail"], [], 200, 200, max_bytes=50_000))
        assert len(claim.jobs) == 4
        assert len(measured) <= 6, "one too many, and one that the driver reads ahead"


class TestTurningToWal:
    """A file that another program has locked while it is converted."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "new.db"

    @pytest.fixture
    def other(self, path: Path) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield connection

    def test_it_tries_until_it_can(
        self, path: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses: list[float] = []

        def let_go(seconds: float) -> None:
            pauses.append(seconds)
            other.execute("ROLLBACK")

        monkeypatch.setattr(time, "sleep", let_go)
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            writer._turn_to_wal(connection)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert len(pauses) == 1

    @pytest.mark.usefixtures("other")
    def test_but_not_for_ever(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "BUSY_SECONDS", 0)
        with pytest.raises(StoreUnavailable, match="can't open .*new.db: database is locked"):
            writer.Writer(path).connect()


class TestFork(SqlitePart):
    def forked(self, bench: Workbench) -> tuple[int, int]:
        """A child with its own new store, which says "began", writes a job and says how that went; its pid and pipe."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            answer = b"written"
            try:
                asyncio.events._set_running_loop(None)
                os.write(writing, b"began ")
                asyncio.run(self._write(bench.database.make_store()))
            except BaseException as error:
                answer = repr(error).encode()
            finally:
                os.write(writing, answer)
                os._exit(0)
        os.close(writing)
        return child, reading

    async def _write(self, store: Store) -> None:
        await store.open()
        await store.insert([new_job()])
        await store.close()

    async def test_a_fork_waits_for_the_transaction_under_way(self, bench: Workbench) -> None:
        go, busy = await self.blocked(bench)
        forking = asyncio.create_task(asyncio.to_thread(self.forked, bench))
        await eventually(fork_gate._forking.locked)
        assert not forking.done()
        go.set()
        child, reading = await forking
        try:
            async with asyncio.timeout(60):
                assert await asyncio.to_thread(os.read, reading, 100) == b"began "
                assert await asyncio.to_thread(os.read, reading, 100) == b"written"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
        await busy
        assert await bench.store.count(Listing()) == 1
        await bench.enqueue(1)

    async def test_a_child_that_was_forked_inside_a_transaction_blocks_no_other_writer(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its copy of SQLite counts the write lock as held for ever."""
        monkeypatch.setattr(fork_gate, "LIMIT_SECONDS", 0)
        go, busy = await self.blocked(bench)
        child, reading = await asyncio.to_thread(self.forked, bench)
        go.set()
        await busy
        try:
            async with asyncio.timeout(60):
                assert await asyncio.to_thread(os.read, reading, 100) == b"began "
                other = await bench.another()
                for store in (bench.store, other) * 20:
                    await bench.enqueue(1, store=store)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
        assert await bench.store.count(Listing()) == 40


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
            "from treadle.store.connect import make_store\n"
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
