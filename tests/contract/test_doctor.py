"""What `doctor` says about a database with problems."""

import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tests.contract.relational import RelationalDatabase
from tests.faulty import Around, FaultyStore
from treadle.store.postgres import health as postgres_health
from treadle.store.postgres.store import PostgresStore
from treadle.store.protocol import Store
from treadle.store.sqlite import health as sqlite_health
from treadle.store.sqlite import writer
from treadle.store.views import Finding
from treadle.testing.contract import ContractPart
from treadle.testing.workbench import DAY, Workbench


async def finding(store: Store, check: str) -> Finding:
    (found,) = [one for one in await store.examine() if one.check == check]
    return found


class TestSqlite(ContractPart):
    @pytest.fixture
    def database(self, sqlite_database: RelationalDatabase) -> RelationalDatabase:
        return sqlite_database

    def path(self, database: RelationalDatabase) -> Path:
        return Path(database.url.removeprefix("sqlite:///"))

    @pytest.mark.parametrize(("fixed_in", "level"), [((3, 0, 0), "ok"), ((99, 0, 0), "warn")])
    async def test_its_version(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch, fixed_in: tuple[int, int, int], level: str
    ) -> None:
        monkeypatch.setattr(sqlite_health, "WAL_RESET_FIXED", fixed_in)
        found = await finding(bench.store, "sqlite version")
        assert found.level == level
        assert sqlite3.sqlite_version in found.message

    async def test_another_journal_than_the_wal(
        self, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a file system that has no shared memory."""
        with closing(sqlite3.connect(self.path(database))) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        monkeypatch.setattr(writer, "_turn_to_wal", lambda connection: None)
        store = database.make_store()
        await store.open()
        found = await finding(store, "journal")
        await store.close()
        assert (found.level, found.message) == ("fail", "journal mode is delete")

    async def test_a_wal_that_has_grown_large(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        await bench.enqueue(1)
        assert (await finding(bench.store, "wal size")).level == "ok"
        monkeypatch.setattr(sqlite_health, "LARGE_WAL", 1)
        assert (await finding(bench.store, "wal size")).level == "warn"

    @pytest.mark.parametrize(("mode", "who"), [(0o644, "everybody"), (0o660, "a group")])
    async def test_files_that_others_can_read(
        self, database: RelationalDatabase, bench: Workbench, mode: int, who: str
    ) -> None:
        await bench.enqueue(1)  # SQLite gives an empty WAL the mode of its database again
        files = [Path(f"{self.path(database)}{suffix}") for suffix in ("", "-wal", "-shm", ".lock")]
        for file in files:
            file.chmod(0o600)
        assert (await finding(bench.store, "permissions")).level == "ok"
        for file in files[1:3]:
            file.chmod(mode)
        found = await finding(bench.store, "permissions")
        assert found.level == "warn"
        assert found.message.startswith(f"open to {who} on this machine: ")
        assert found.advice == f"chmod 600 {files[1]} {files[2]}"

    async def test_a_network_file_system(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        here = (await finding(bench.store, "file system")).message
        monkeypatch.setattr(sqlite_health, "NETWORK_FILE_SYSTEMS", {here})
        found = await finding(bench.store, "file system")
        assert (found.level, found.message) == ("fail", f"{here} is a network file system")

    async def test_a_system_that_does_not_tell_its_file_systems(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path) -> str:
            raise FileNotFoundError(path)

        monkeypatch.setattr(Path, "read_text", refuse)
        found = await finding(bench.store, "file system")
        assert (found.level, found.message) == ("ok", "unknown")

    async def test_a_damaged_file(self, database: RelationalDatabase) -> None:
        with closing(sqlite3.connect(self.path(database), isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'treadle_notes') "
                "WHERE name = 'treadle_topics'"
            )
        store = database.make_store()
        await store.open()
        found = await finding(store, "integrity")
        await store.close()
        assert found.level == "fail"
        assert "restore" in found.advice


class TestPostgres(ContractPart):
    @pytest.fixture
    def database(self, postgres_database: RelationalDatabase) -> RelationalDatabase:
        return postgres_database

    async def test_a_server_that_is_too_old(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_health, "MIN_VERSION", 10**9)
        found = await finding(bench.store, "server version")
        assert found.level == "fail"
        assert "or newer" in found.advice

    @pytest.mark.parametrize(("seconds", "way"), [(5000, "+"), (-5000, "-")])
    async def test_a_clock_that_is_off(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch, seconds: int, way: str
    ) -> None:
        monkeypatch.setattr(postgres_health, "time", SimpleNamespace(time=lambda: time.time() + seconds))
        found = await finding(bench.store, "clock")
        assert found.level == "warn"
        assert f"this machine is {way}" in found.message

    async def test_a_pooler_in_between(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(bench.store, PostgresStore)
        assert (await finding(bench.store, "listen")).level == "ok"
        monkeypatch.setattr(bench.store.pools, "pooled", True)
        assert (await finding(bench.store, "listen")).level == "warn"

    async def test_a_transaction_that_stays_open(
        self, bench: Workbench, database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_health, "OLD_TRANSACTION_SECONDS", 0)
        with psycopg.connect(database.url) as forgotten:
            forgotten.execute("SELECT 1")
            found = await finding(bench.store, "oldest transaction")
        assert found.level == "warn"
        assert "idle in transaction for 0 s" in found.message
        assert "pg_terminate_backend" in found.advice

    async def test_many_dead_rows(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_health, "MANY_DEAD", 0)
        found = await finding(bench.store, "bloat")
        assert found.level == "warn"
        assert found.advice.startswith("VACUUM treadle.")

    @pytest.mark.parametrize(
        ("sync", "fsync", "level"), [("off", "off", "fail"), ("off", "on", "warn"), ("on", "on", "ok")]
    )
    async def test_how_sure_a_commit_is(self, bench: Workbench, sync: str, fsync: str, level: str) -> None:
        """The tests' server runs without fsync, and that can't be changed for one session."""

        async def read(call: Around, sql: str, values: list[Any]) -> Any:
            return [(sync, fsync)] if "'fsync'" in sql else await call(sql, values)

        faults = FaultyStore(bench.store)
        faults.around("read", read)
        found = {one.check: one for one in await postgres_health.examine(cast(PostgresStore, faults))}
        assert found["durability"].level == level

    async def test_a_user_who_may_not_look_at_the_wal(self, bench: Workbench, database: RelationalDatabase) -> None:
        await database.execute(
            "CREATE ROLE doctors_patient LOGIN",
            "GRANT USAGE ON SCHEMA treadle TO doctors_patient",
            "GRANT SELECT ON ALL TABLES IN SCHEMA treadle TO doctors_patient",
        )
        try:
            store = PostgresStore(re.sub("//.*@", "//doctors_patient@", database.url), stale_after_ms=DAY)
            await store.open(migrate=False)
            found = await finding(store, "wal size")
            await store.close()
        finally:
            await database.execute("DROP OWNED BY doctors_patient", "DROP ROLE doctors_patient")
        assert found.message == "not readable for this user"
