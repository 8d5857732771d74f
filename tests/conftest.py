"""Fixtures for every test: `url` runs a test once on each store."""

import signal
import tempfile
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("treadle.testing.contract", "tests.contract.relational")

from tests.servers import PgBouncer, PostgresServer, find_pgbouncer, find_postgres, memory_disk, needed  # noqa: E402


def pytest_configure() -> None:
    # In the background a shell switches SIGINT off, and so would have it every process that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A fresh empty database, once on each store."""
    database: str = request.getfixturevalue(f"{request.param}_url")
    return database


@pytest.fixture
def sqlite_url() -> Iterator[str]:
    """In memory where there is room: these tests are about behaviour; the fault tests are about the disk."""
    with tempfile.TemporaryDirectory(prefix="treadle-", dir=memory_disk(), ignore_cleanup_errors=True) as folder:
        yield f"sqlite:///{folder}/jobs.db"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh empty PostgreSQL database, dropped after the test whoever is still connected."""
    with postgres_server.database() as name:
        yield postgres_server.url(name)


@pytest.fixture
def pgbouncer_url(postgres_server: PostgresServer, pgbouncer: PgBouncer) -> Iterator[str]:
    """A fresh empty PostgreSQL database, reached through PgBouncer in transaction mode."""
    with postgres_server.database() as name:
        yield pgbouncer.url(name)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One quick server (no fsync) for all tests of a process. Who breaks servers starts one of their own."""
    binaries = needed(find_postgres)
    with PostgresServer(binaries, log=tmp_path_factory.mktemp("postgres") / "server.log") as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PgBouncer]:
    needed(find_pgbouncer)
    with PgBouncer(postgres_server, log=tmp_path_factory.mktemp("pgbouncer") / "server.log") as bouncer:
        yield bouncer
