"""URLs as SQLAlchemy writes them name the same database."""

from pathlib import Path

import pytest

from treadle import InvalidInput, Queue


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg2", "psycopg_async"])
async def test_a_driver_in_a_postgresql_url_is_left_out(postgres_url: str, driver: str) -> None:
    url = postgres_url
    async with Queue(url.replace("postgresql:", f"postgresql+{driver}:")) as queue:
        job = await queue.enqueue("mail")
        assert queue.url == url
    async with Queue(url) as same:
        assert (await same.get(job.id)).topic == "mail"


async def test_a_driver_in_a_sqlite_url_is_left_out(tmp_path: Path) -> None:
    async with Queue(f"sqlite+aiosqlite:///{tmp_path}/jobs.db") as queue:
        await queue.enqueue("mail")
    assert (tmp_path / "jobs.db").exists()


def test_another_database_is_still_refused() -> None:
    with pytest.raises(InvalidInput, match="is not a database URL"):
        Queue("mysql+asyncpg://localhost/jobs")
