"""Fixtures for every test: `url` runs a test once on each store."""

import asyncio
import signal
import tempfile
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("treadle.testing.contract", "tests.contract.relational")

from tests.servers import PgBouncer, PostgresServer, find_pgbouncer, find_postgres, memory_disk, needed  # noqa: E402
from treadle import Queue  # noqa: E402

pytest_plugins = ["tests.selection", "tests.measuring", "tests.repeating"]
TEMPLATE = "migrated"


def pytest_configure() -> None:
    # In the background a shell switches SIGINT off, and so would have it every process that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A fresh database without jobs, once on each store."""
    database: str = request.getfixturevalue(f"{request.param}_url")
    return database


@pytest.fixture
def sqlite_url() -> Iterator[str]:
    """In memory where there is room: these tests are about behaviour; the fault tests are about the disk."""
    with tempfile.TemporaryDirectory(prefix="treadle-", dir=memory_disk(), ignore_cleanup_errors=True) as folder:
        yield f"sqlite:///{folder}/jobs.db"


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh PostgreSQL database, dropped after the test even if connections are open. It already has
    Treadle's tables, which halves the time; with `empty_database` it has none."""
    empty = request.node.get_closest_marker("empty_database")
    template = "template1" if empty else request.getfixturevalue("migrated_template")
    with postgres_server.database(template) as name:
        yield postgres_server.url(name)


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> str:
    """The name of a database with Treadle's tables, to be copied."""

    async def migrate() -> None:
        async with Queue(postgres_server.create_database(TEMPLATE)):
            pass

    asyncio.run(migrate())
    return TEMPLATE


@pytest.fixture
def pgbouncer_url(postgres_server: PostgresServer, pgbouncer: PgBouncer) -> Iterator[str]:
    """A fresh empty PostgreSQL database, reached through PgBouncer in transaction mode."""
    with postgres_server.database() as name:
        yield pgbouncer.url(name)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One fast server (no fsync) for all tests of a process. Tests that break servers start their own."""
    binaries = needed(find_postgres)
    with PostgresServer(binaries, log=tmp_path_factory.mktemp("postgres") / "server.log") as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PgBouncer]:
    needed(find_pgbouncer)
    with PgBouncer(postgres_server, log=tmp_path_factory.mktemp("pgbouncer") / "server.log") as bouncer:
        yield bouncer
