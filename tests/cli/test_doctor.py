"""`treadle doctor`."""

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.command import Command
from treadle import Concurrency, Queue
from treadle.queue.sync import SyncQueue
from treadle.store.values import Wants


def limited_queue(treadle: Command) -> SyncQueue:
    """With a topic that runs one job per account at a time."""
    queue = Queue(treadle.database)
    queue.register("sync", lambda payload: None, concurrency=Concurrency(keys=["input.account"]))
    return queue.sync


def claim_one(url: str) -> None:
    """One job under the limit runs, and stays with its worker."""

    async def claim() -> None:
        async with Queue(url) as queue:
            lease = await queue.store.open_lease("busy", 3_600_000)
            assert (await queue.store.claim(lease, Wants(["sync"]))).jobs

    asyncio.run(claim())


def findings(ran: Any) -> dict[str, dict[str, str]]:
    return {item["check"]: item for item in ran.json["items"]}


COMMON = {
    *("connection", "clock", "wal size", "places", "concurrency", "migrations"),
    *("retention", "retention hooks", "access", "versions", "signing key"),
}
OF_SQLITE = COMMON | {"sqlite version", "journal", "permissions", "file system", "integrity"}
OF_POSTGRES = COMMON | {"server version", "listen", "oldest transaction", "bloat", "durability"}


@pytest.mark.every_store
def test_a_database_that_is_well(treadle: Command) -> None:
    with limited_queue(treadle) as queue:
        queue.enqueue_many("sync", [{"account": 1}] * 3)
        queue.enqueue("mail")
    assert treadle.database
    claim_one(treadle.database)
    ran = treadle("doctor", "--json")
    found = findings(ran)
    assert set(found) == (OF_SQLITE if str(treadle.database).startswith("sqlite") else OF_POSTGRES)
    # The tests' server runs without fsync, and that is what it says.
    unfit = {check for check, item in found.items() if item["level"] == "fail"} - {"durability"}
    assert unfit == set()
    assert found["places"]["message"] == "every job is in exactly one place"
    assert found["concurrency"]["message"] == "1 keys in use, all counted right"
    assert ran.code == (0 if ran.json["ok"] else 1)
    text = treadle("doctor").out
    assert all(check in text for check in found)


def test_a_narrow_terminal(alone: Command, sqlite_url: str) -> None:
    alone.bare("migrate", "--db", sqlite_url).done()
    text = alone.bare("doctor", "--db", sqlite_url, COLUMNS="40").done().out
    assert max(len(line) for line in text.splitlines()[1:]) <= 40


def test_it_makes_no_database(alone: Command) -> None:
    ran = alone.bare("doctor", "--json")
    assert ran.code == 1
    assert ran.json["ok"] is False
    assert findings(ran)["connection"]["message"] == "the database does not exist"
    assert list(alone.folder.iterdir()) == []


@pytest.mark.empty_database
def test_it_applies_no_migration(treadle: Command, sqlite_url: str) -> None:
    if treadle.database == sqlite_url:
        Path(sqlite_url.removeprefix("sqlite:///")).touch()
    for _ in range(2):
        ran = treadle("doctor", "--json")
        assert ran.code == 1
        assert findings(ran)["connection"]["level"] == "ok"
        assert findings(ran)["migrations"]["level"] == "fail"
        assert "run treadle migrate" in findings(ran)["migrations"]["message"]


def test_a_newer_database(treadle: Command) -> None:
    from tests.cli.test_usage import pretend_newer

    treadle("migrate").done()
    pretend_newer(treadle)
    ran = treadle("doctor", "--json")
    assert ran.code == 1
    assert "upgrade treadle" in findings(ran)["migrations"]["message"]


def test_a_server_that_is_away(alone: Command) -> None:
    ran = alone.bare("doctor", "--json", "--db", "postgresql://ann:s3cr3t@127.0.0.1:1/x")
    assert ran.code == 1
    assert ran.json["database"] == "postgresql://ann:…@127.0.0.1:1/x"
    assert "can't be used just now" in findings(ran)["connection"]["message"]
    assert "s3cr3t" not in ran.out


def test_a_bad_url_is_bad_usage(alone: Command) -> None:
    assert "is not a database URL" in alone.bare("doctor", "--db", "mysql://x").refused(2)


def change(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(statement.replace("treadle.", "treadle_"))
        connection.close()
    else:
        with psycopg.connect(url) as server:
            server.execute(statement.encode())


def test_a_job_in_no_place_is_found(treadle: Command) -> None:
    assert treadle.database
    with Queue(treadle.database).sync as queue:
        job = queue.enqueue("mail")
    change(treadle.database, "DELETE FROM treadle.ready")
    ran = treadle("doctor", "--json")
    assert ran.code == 1
    assert findings(ran)["places"]["level"] == "fail"
    assert f"{job.id} (0 places)" in findings(ran)["places"]["message"]


def test_a_key_that_is_counted_wrong_is_found(treadle: Command) -> None:
    assert treadle.database
    with limited_queue(treadle) as queue:
        queue.enqueue("sync", {"account": 1})
    claim_one(treadle.database)
    change(treadle.database, "UPDATE treadle.limits SET running = 7")
    ran = treadle("doctor", "--json")
    assert ran.code == 1
    assert "counts 7, not 1" in findings(ran)["concurrency"]["message"]


def test_a_pooler_is_told(alone: Command, pgbouncer_url: str) -> None:
    alone.bare("migrate", "--db", pgbouncer_url).done()
    ran = alone.bare("doctor", "--json", "--db", pgbouncer_url)
    assert findings(ran)["listen"]["level"] == "warn"


def test_a_damaged_file_is_told(alone: Command) -> None:
    url = "sqlite:///jobs.db"
    with Queue(f"sqlite:///{alone.folder}/jobs.db").sync as queue:
        queue.enqueue_many("mail", [{"text": "x" * 500}] * 200)
    path = alone.folder / "jobs.db"
    data = bytearray(path.read_bytes())
    page = 4096
    for start in range(20 * page, len(data), page):
        data[start : start + 200] = os.urandom(200)
    path.write_bytes(data)
    ran = alone.bare("doctor", "--json", "--db", url)
    assert ran.code == 1
    assert "Traceback" not in ran.err


def test_what_the_queue_itself_knows(treadle: Command) -> None:
    async def make() -> None:
        async with Queue(treadle.database) as queue:
            job = await queue.enqueue("mail")
            await queue.cancel(job.id)
            await queue.site.change(
                {"enqueue_rule": "@request.auth.id != ''", "stale_after_ms": 0, "delete_after_ms": 0}
            )
            for version in ("1.0", "1.1"):
                await queue.store.open_lease(f"w{version}", 3_600_000, {"slots": 1, "version": version})

    asyncio.run(make())
    found = findings(treadle("doctor", "--json"))
    assert found["versions"]["level"] == "warn"
    assert found["versions"]["message"] == "2 versions of Treadle run side by side: 1.0, 1.1"
    assert found["access"]["level"] == "warn"
    assert found["access"]["message"] == "enqueue_rule names no scopeId: users can enqueue jobs in the name of others"
    assert found["retention"]["level"] == "ok", "a pass may be late"
