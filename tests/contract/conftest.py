"""The contract's `database`, once on each store: a copy of one that is migrated already, which is cheaper."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.relational import RelationalDatabase
from tests.servers import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> RelationalDatabase:
    found: RelationalDatabase = request.getfixturevalue(f"{request.param}_database")
    return found


@pytest.fixture
def sqlite_database(migrated_file: Path, tmp_path: Path) -> RelationalDatabase:
    path = tmp_path / "jobs.db"
    shutil.copyfile(migrated_file, path)
    return RelationalDatabase(f"sqlite:///{path}")


@pytest.fixture
def postgres_database(migrated_template: str, postgres_server: PostgresServer) -> Iterator[RelationalDatabase]:
    with postgres_server.database(migrated_template) as name:
        yield RelationalDatabase(postgres_server.url(name))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    asyncio.run(migrate(RelationalDatabase(f"sqlite:///{path}")))
    return path


async def migrate(database: RelationalDatabase) -> None:
    store = database.make_store()
    await store.open()
    await store.close()
