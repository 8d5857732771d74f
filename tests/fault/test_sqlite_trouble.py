"""Faults 24 to 26 on SQLite: another program holds the lock, a reader stays for long, the disk is full."""

import asyncio
import contextlib
import functools
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.audit import audit, in_order
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.zygote import Zygote
from tests.waiting import certainly, nothing_live, until
from treadle import Queue, Worker
from treadle.model.errors import StoreUnavailable
from treadle.store.sqlite import health, writer


@pytest.fixture
def crew(sqlite_url: str, tmp_path: Path, zygote: Zygote) -> Iterator[Crew]:
    crew = Crew(sqlite_url, tmp_path, zygote)
    yield crew
    crew.kill_all()


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@contextlib.contextmanager
def outsider(url: str) -> Iterator[sqlite3.Connection]:
    """Another program on the same file that does not follow Treadle's locking."""
    connection = sqlite3.connect(path_of(url), isolation_level=None, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


async def test_a_program_that_holds_the_write_lock_delays_work_and_ends_nothing(crew: Crew) -> None:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        for _ in range(2):
            crew.hire(lease="20s", slots=3)
        expected: set[str] = set()
        with outsider(crew.url) as other:
            for _ in range(scaled(2, 20)):
                jobs = await queue.enqueue_many("slow", [{"ms": 50}] * 20, max_attempts=1)
                expected.update(job.id for job in jobs)
                size = crew.journal.size
                await until(functools.partial(_more_than, size, crew), 60, crew.tails)
                other.execute("BEGIN IMMEDIATE")
                asked = asyncio.create_task(queue.enqueue("quick", max_attempts=1))
                await asyncio.sleep(0.5)  # how long the lock is held
                assert not asked.done()
                other.execute("ROLLBACK")
                expected.add((await asked).id)
        await until(lambda: nothing_live(queue), 60, crew.tails)
        await crew.dismiss()
        ledger = await audit(queue, crew.journal, expected=expected)
        assert ledger.with_status("completed") == expected
        assert not any(ledger.events.values())


def _more_than(size: int, crew: Crew) -> bool:
    return crew.journal.size > size


async def test_a_lock_held_longer_than_any_wait_is_reported_and_retried(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLITE_BUSY in every verb: StoreUnavailable for the caller, another try for the worker, no ending for the job."""
    monkeypatch.setattr(writer, "BUSY_SECONDS", 0.05)
    gate, ran = asyncio.Event(), []
    async with Queue(sqlite_url) as queue:

        @queue.job(max_attempts=1)
        async def waiting(n: dict[str, int]) -> None:
            ran.append(n["n"])
            await gate.wait()

        worker = Worker(queue, slots=4, lease="20s", poll_interval="50ms")
        working = asyncio.create_task(worker.run())
        jobs = [await waiting.enqueue({"n": n}) for n in range(4)]
        await until(lambda: len(ran) == 4)
        with outsider(sqlite_url) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                await waiting.enqueue({"n": 4})
            with pytest.raises(StoreUnavailable):
                await queue.cancel(jobs[0].id)
            assert (await queue.get(jobs[0].id)).status == "processing"
            gate.set()
            await until(lambda: worker.metrics.store_errors >= 2)
            other.execute("ROLLBACK")
        for job in jobs:
            await job.result("60s")
        assert sorted(ran) == [0, 1, 2, 3]
        worker.stop()
        await working
        await in_order(queue)


async def test_a_long_reader_does_not_block_writers_and_doctor_reports_it(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LARGE_WAL", 2_000_000)
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        with outsider(crew.url) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM treadle_jobs").fetchone() == (0,)
            crew.hire()
            jobs = await queue.enqueue_many("quick", [{"text": "x" * 2000}] * scaled(600, 5_000))
            await until(lambda: nothing_live(queue), 60, crew.tails)
            assert reader.execute("SELECT count(*) FROM treadle_jobs").fetchone() == (0,)
            (wal,) = [one for one in await queue.store.examine() if one.check == "wal size"]
            assert wal.level == "warn"
            reader.execute("COMMIT")
        await crew.dismiss()
        await audit(queue, crew.journal, expected={job.id for job in jobs})


async def test_reads_work_again_after_a_moment_without_file_descriptors(crew: Crew) -> None:
    """A reader's connection that could not be opened must not be remembered for ever."""
    hand = crew.hire("starve")
    assert await hand.gone() == 0, hand.tail()
    assert [entry.phase for entry in crew.journal.entries()] == ["unavailable", "back"]


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="treadle-small-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        if not mounted:
            pytest.skip("NOT TESTED: a small disk needs root and the right to mount one")
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_full_disk_is_told_harms_nothing_and_work_goes_on_when_there_is_room(
    tmp_path: Path, zygote: Zygote
) -> None:
    """Fault 25, on a real one."""
    with small_disk(12) as disk:
        crew = Crew(f"sqlite:///{disk / 'jobs.db'}", tmp_path, zygote)
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 6_000_000)
        try:
            async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
                crew.hire(lease="2s", slots=2)
                await until(queue.store.workers, 60, crew.tails)
                acknowledged = await _fill(queue, {"text": "x" * 50_000, "ms": 20})
                await in_order(queue)
                await _worker_hits_the_wall(crew)
                ballast.unlink()
                acknowledged.add((await certainly(queue.enqueue, "quick")).id)
                await until(lambda: nothing_live(queue), 60, crew.tails)
                await crew.dismiss()
                ledger = await audit(queue, crew.journal, expected=acknowledged, lost=crew.lost())
                assert ledger.with_status("completed") == acknowledged
                print(f"\n{len(acknowledged)} jobs, {ledger.count('job:reclaimed')} reclaimed")
        finally:
            crew.kill_all()


async def _fill(queue: Queue, payload: dict[str, Any]) -> set[str]:
    """Enqueue until there is no room; what was acknowledged by then."""
    there: set[str] = set()

    async def enqueue_for_ever() -> None:
        while True:
            there.add((await queue.enqueue("slow", payload)).id)

    with pytest.raises(StoreUnavailable, match="full"):
        await enqueue_for_ever()
    return there


async def _worker_hits_the_wall(crew: Crew) -> None:
    await until(lambda: "full" in crew.hands[0].log.read_text(), 60, crew.tails)


async def test_a_database_that_may_not_grow_is_told_and_goes_on_when_it_may(sqlite_url: str) -> None:
    """Fault 25 without a disk to spare: SQLite's own limit."""
    async with Queue(sqlite_url) as queue:
        store: Any = queue.store

        async def allow(pages: int) -> None:
            await store.engine.write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchall())

        await allow(100)
        acknowledged = await _fill(queue, {"text": "x" * 10_000})
        await in_order(queue)
        assert await queue.count() == len(acknowledged)
        await allow(1 << 30)
        acknowledged.add((await certainly(queue.enqueue, "quick")).id)
        assert {job.id for job in await queue.list(limit=1000)} == acknowledged
        await in_order(queue)
