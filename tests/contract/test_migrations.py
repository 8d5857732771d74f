"""The schema: applied whole or not at all, by one of many, and never by code that is too old."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.relational import RelationalDatabase
from treadle.model.errors import SchemaMismatch
from treadle.store.sql import migrate as migrating
from treadle.store.sql.migrate import Migration, migrations
from treadle.testing.workbench import Workbench, new_job

pytestmark = pytest.mark.empty_database

# Half of the schema, then the process or its backend is gone.
KILLED_HALF_WAY = """
import asyncio, os, sqlite3, sys
from treadle.store.connect import make_store
from treadle.store.sql import migrate as migrating
from treadle.store.sqlite import writer

url = sys.argv[1]
dialect = "sqlite" if url.startswith("sqlite") else "postgres"
(first, *_) = migrating.migrations(dialect)
half = first.sql[: first.sql.index("CREATE TABLE", len(first.sql) // 2)]
die = "SELECT die();" if dialect == "sqlite" else "SELECT pg_terminate_backend(pg_backend_pid());"
migrating.migrations = lambda _: [migrating.Migration(1, first.name, half + die)]

connect = writer.Writer.connect
def connect_with_death(self):
    connection = connect(self)
    connection.create_function("die", 0, lambda: os.kill(os.getpid(), 9))
    return connection
writer.Writer.connect = connect_with_death

asyncio.run(make_store(url, stale_after_ms=1).open())
"""


@pytest.fixture
def database(url: str) -> RelationalDatabase:
    """An empty one."""
    return RelationalDatabase(url)


async def opened_once(database: RelationalDatabase) -> None:
    store = database.make_store()
    await store.open()
    await store.close()


def test_migrations_are_numbered_without_gaps_and_alike_in_both_dialects() -> None:
    sqlite, postgres = migrations("sqlite"), migrations("postgres")
    assert [one.number for one in sqlite] == list(range(1, len(sqlite) + 1))
    assert [one.name for one in sqlite] == [one.name for one in postgres]


def test_only_sql_files_are_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "migrations/another"
    folder.mkdir(parents=True)
    (folder / "0001_start.sql").write_text("SELECT 1")
    (folder / "0001_start.sql.orig").write_text("SELECT 2")
    monkeypatch.setattr(migrating, "files", lambda package: tmp_path)
    assert migrations("another") == [Migration(1, "0001_start", "SELECT 1")]


async def test_an_empty_database_is_migrated_at_the_first_opening(database: RelationalDatabase) -> None:
    store = database.make_store()
    with pytest.raises(SchemaMismatch, match="migrate"):
        await store.open(migrate=False)
    store = database.make_store()
    await store.open()
    assert await store.migrate(dry_run=True) == []
    await store.close()
    store = database.make_store()
    await store.open(migrate=False)
    await store.insert([new_job()])
    await store.close()


async def test_migrating_says_what_it_did(database: RelationalDatabase) -> None:
    store = database.make_store()
    with pytest.raises(SchemaMismatch) as missing:
        await store.open(migrate=False)
    names = [one.name for one in migrations(database.dialect)]
    assert names[0] in str(missing.value)
    await opened_once(database)
    store = database.make_store()
    await store.open()
    assert await store.migrate() == []
    await store.close()


async def test_applied_migrations_are_listed_with_their_time(database: RelationalDatabase) -> None:
    store = database.make_store()
    await store.open()
    now = await store.now()
    found = await store.migrations()
    await store.close()
    assert [one.name for one in found] == [one.name for one in reversed(migrations(database.dialect))]
    # SQLite keeps whole seconds, and the clock of this test's database may be set while it runs.
    assert all(now - 60_000 <= one.applied_at <= now for one in found)


@pytest.mark.fault
async def test_a_migration_killed_half_way_leaves_nothing_and_the_next_start_does_it(
    database: RelationalDatabase,
) -> None:
    command = [sys.executable, "-c", KILLED_HALF_WAY, database.url]
    killed = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    if database.dialect == "sqlite":
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    else:
        assert b"StoreUnavailable" in killed.stderr
    left = (
        "SELECT name FROM sqlite_master WHERE name LIKE 'treadle%'"
        if database.dialect == "sqlite"
        else "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'treadle'"
    )
    assert await database.execute(left) == []
    bench = Workbench(database)
    await bench.open()
    (id,) = await bench.enqueue(1)
    assert await bench.claimable() == [id]
    await bench.close()
    assert await database.problems() == []


async def test_a_failing_migration_leaves_the_old_schema(
    database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Workbench(database)
    await bench.open()
    (id,) = await bench.enqueue(1)
    await bench.close()
    real = list(migrations(database.dialect))
    broken = Migration(real[-1].number + 1, "9998_broken", "CREATE TABLE treadle_half (a INTEGER);\nSELECT nonsense;")
    with monkeypatch.context() as patch:
        patch.setattr(migrating, "migrations", lambda _: [*real, broken])
        with pytest.raises(Exception, match="nonsense"):
            await opened_once(database)
    bench = Workbench(database)
    await bench.open()
    assert await bench.claimable() == [id]
    with pytest.raises(Exception, match="treadle_half"):
        await database.execute("SELECT * FROM treadle_half")
    await bench.close()


async def test_a_newer_database_is_refused(database: RelationalDatabase) -> None:
    await opened_once(database)
    applied = {"sqlite": "datetime('now')", "postgres": "now()"}[database.dialect]
    await database.execute("INSERT INTO {migrations} (number, name, applied_at) VALUES (9999, '9999_x', %s)" % applied)
    for migrate in (True, False):
        with pytest.raises(SchemaMismatch, match="9999.*upgrade treadle"):
            await database.make_store().open(migrate)


async def test_the_next_migration_keeps_the_jobs(database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Workbench(database)
    await bench.open()
    (id,) = await bench.enqueue(1)
    await bench.close()
    real = list(migrations(database.dialect))
    table = "treadle.extra" if database.dialect == "postgres" else "treadle_extra"
    extra = Migration(real[-1].number + 1, "0099_extra", f"CREATE TABLE {table} (a INTEGER);")
    monkeypatch.setattr(migrating, "migrations", lambda _: [*real, extra])
    store = database.make_store()
    with pytest.raises(SchemaMismatch, match="0099_extra"):
        await store.open(migrate=False)
    bench = Workbench(database)
    await bench.open()
    assert await bench.claimable() == [id]
    await bench.close()
