"""A dashboard, once on each store, and a signed-in visitor."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.dashboard.visitor import Visitor, visiting
from tests.http.api import joined
from tests.servers import PostgresServer
from treadle.insights import overview

TEMPLATE = "dashboard_template"


def join(url: str) -> None:
    """In a separate thread, because playwright runs an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, joined(url)).result()


@pytest.fixture(scope="session")
def people_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dashboard") / "jobs.db"
    join(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def people_template(postgres_server: PostgresServer) -> str:
    """Once per server: the browser's tests have this fixture too."""
    if not postgres_server.has_database(TEMPLATE):
        join(postgres_server.create_database(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def sqlite_url(people_file: Path, tmp_path: Path) -> str:
    """A copy of a file that already has all accounts, which is faster than creating them."""
    shutil.copyfile(people_file, tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def postgres_url(people_template: str, postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database(people_template) as name:
        yield postgres_server.url(name)


@pytest.fixture(autouse=True)
def slow_answers_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine every answer is slow, and a page may show what was so two seconds ago."""
    monkeypatch.setattr(overview, "KEPT_FOR", 0)


@pytest.fixture
async def visitor(url: str) -> AsyncIterator[Visitor]:
    async with visiting(url) as found:
        yield found


@pytest.fixture
async def sqlite_visitor(sqlite_url: str) -> AsyncIterator[Visitor]:
    """For tests that do not depend on the store."""
    async with visiting(sqlite_url) as found:
        yield found


@pytest.fixture
async def stranger(sqlite_url: str) -> AsyncIterator[Visitor]:
    """A visitor who has not signed in."""
    async with visiting(sqlite_url, signed_in=False) as found:
        yield found
