"""Fixtures for every test: `url` runs a test once on each store."""

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("treadle.testing.contract", "tests.contract.relational")

from tests.servers import PgBouncer, PostgresServer, find_pgbouncer, find_postgres, memory_disk, needed  # noqa: E402
from treadle import Queue  # noqa: E402

TEMPLATE = "migrated"


def pytest_configure() -> None:
    # In the background a shell switches SIGINT off, and so would have it every process that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Measuring coverage doubles the price of a test (before Python 3.12), so lines are counted where a test was written for
# them: not where a test runs many lines to show something else, and on one of two stores where both run the same
# code. What is PostgreSQL's own is counted in its part of the contract suite.
HERE = Path(__file__).parent
UNCOUNTED = [
    *(HERE / name for name in "acceptance benchmarks examples fault model plans sdk types".split()),
    HERE / "cli/test_usage.py",
    HERE / "contract/test_postgres_pgbouncer.py",
    HERE / "contract/test_races.py",
    HERE / "contract/test_rule_agreement.py",
    HERE / "dashboard/test_bulk_many.py",
    HERE / "http/test_fuzz.py",
    HERE / "unit/rules/test_pocketbase.py",
]
COUNTED_ONCE = [HERE / name for name in "cli http queue worker".split()]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        second_store = "postgres" in item.name.partition("[")[2] and _below(item.path, COUNTED_ONCE)
        if second_store or _below(item.path, UNCOUNTED):
            item.add_marker(pytest.mark.uncounted)


def _below(path: Path, places: list[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


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
