"""Processes to break, and servers to break. Every test here is marked `fault`: `make fault` runs them at length."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fault.crew import Crew
from tests.fault.zygote import Zygote
from tests.servers import PostgresServer, find_postgres, needed

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.fault)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
async def crew(url: str, tmp_path: Path, zygote: Zygote) -> AsyncIterator[Crew]:
    """Workers on each store in turn; the ones left at the end are killed."""
    crew = Crew(url, tmp_path, zygote)
    yield crew
    crew.kill_all()


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """A durable server that belongs to this test alone."""
    with PostgresServer(needed(find_postgres), fsync=True, log=tmp_path / "postgres.log") as server:
        yield server
