"""The API of an open queue, once on each store, and people who call it."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.http.api import Api, joined, opened
from tests.servers import PostgresServer

TEMPLATE = "http_template"


@pytest.fixture
def sqlite_url(people_file: Path, tmp_path: Path) -> str:
    """A copy of a file that already has all accounts, which is faster than creating them."""
    shutil.copyfile(people_file, tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def postgres_url(people_template: str, postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database(people_template) as name:
        yield postgres_server.url(name)


@pytest.fixture(scope="session")
def people_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("http") / "jobs.db"
    asyncio.run(joined(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def people_template(postgres_server: PostgresServer) -> str:
    asyncio.run(joined(postgres_server.create_database(TEMPLATE)))
    return TEMPLATE


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with opened(url) as api:
        yield api


@pytest.fixture
async def sqlite_api(sqlite_url: str) -> AsyncIterator[Api]:
    """For tests that do not depend on the store."""
    async with opened(sqlite_url) as api:
        yield api
