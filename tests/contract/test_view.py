"""The view for people who read SQL."""

import pytest

from tests.contract.relational import RelationalDatabase
from treadle.testing.workbench import STATES, Workbench


def view(database: RelationalDatabase) -> str:
    return "treadle.job_list" if database.dialect == "postgres" else "treadle_job_list"


@pytest.fixture
async def bench(database: RelationalDatabase):
    bench = Workbench(database)
    await bench.open()
    yield bench
    await bench.close()


@pytest.mark.parametrize("state", STATES)
async def test_a_job_in_any_state_is_a_row_that_says_so(
    bench: Workbench, database: RelationalDatabase, state: str
) -> None:
    id = await bench.make(state)
    job = await bench.job(id)
    rows = await database.execute(
        f"SELECT status, attempt, max_attempts, error, ended_at IS NOT NULL, started_at IS NOT NULL "
        f"FROM {view(database)} WHERE id = '{id}'"
    )
    ((status, attempt, most, error, ended, started),) = rows
    assert (status, attempt, most, error) == (job.status, job.attempt, job.max_attempts, job.last_error)
    assert (bool(ended), bool(started)) == (job.ended, job.started_at is not None)


async def test_the_view_is_read_only(bench: Workbench, database: RelationalDatabase) -> None:
    await bench.enqueue(1)
    with pytest.raises(Exception, match="view"):
        await database.execute(f"DELETE FROM {view(database)}")
    with pytest.raises(Exception, match="view"):
        await database.execute(f"UPDATE {view(database)} SET topic = 'x'")
