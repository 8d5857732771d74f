"""A database of the version before jobs could have a parent, an address, a token to follow them and a release."""

from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from tests.plans.backlog import job_id, statements
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.lifecycle import Completed
from treadle.store.sql import migrate as migrating
from treadle.store.sql.migrate import migrations
from treadle.store.sql.queries import TABLES
from treadle.store.views import Listing
from treadle.testing.workbench import HOUR, Workbench, new_job

pytestmark = pytest.mark.empty_database
SIZE = 100
NEW = set("parent_id parent_step parent_key parent_generation webhook_url webhook_sent track_hash release".split())
LATER = {"output", "channels", "deliveries", "outbox", "children", "stale_marks", "pauses"}
"""Tables that came after it."""
Columns = dict[str, list[str]]
Before = tuple[Columns, dict[str, list[str]]]
# A row in each table that the backlog leaves empty.
OTHERS = [
    "INSERT INTO {parked} (n, lane, attempt, until) VALUES (1, 3, 0, {now})",
    "INSERT INTO {wakes} (key) VALUES ('none')",
    "INSERT INTO {replaced} (job, reason) VALUES ('01890000-0000-7000-8000-00000000ffff', 'x')",
    "INSERT INTO {starts} (topic, at, token, count) VALUES ('mail', {now}, 1, 1)",
    "INSERT INTO {notes} (n, error, error_type) VALUES (1, 'E', 'ValueError')",
    "INSERT INTO {steps} (n, name, key, place, state, attempt, ran_ms) VALUES (1, 'pay', '', 0, 'completed', 1, 5)",
    "INSERT INTO {step_results} (n, name, key, result) VALUES (1, 'pay', '', '[1]')",
    "INSERT INTO {answers} (n, name, key, created_at) VALUES (1, 'ask', '', {now})",
    "INSERT INTO {tally} (minute, writer, topic, status, count, run_ms) VALUES (1, 0, 'mail', 'completed', 1, 5)",
    "INSERT INTO {tally_hist} (minute, writer, topic, kind, bucket, count) VALUES (1, 0, 'mail', 'run', 3, 1)",
    "INSERT INTO {workers} (name, seen_at) VALUES ('w1', {now})",
    "INSERT INTO {leaders} (name, holder, until) VALUES ('reaper', 'w1', {now})",
    "INSERT INTO {records} (kind, id, key, body, version, created_at, updated_at) "
    "VALUES ('note', 'a', 'a', 'null', 1, {now}, {now})",
]


@pytest.fixture
def database(url: str) -> RelationalDatabase:
    return RelationalDatabase(url)


async def columns_of(database: RelationalDatabase, table: str) -> list[str]:
    name = database._name(table)
    if database.dialect == "sqlite":
        return [row[1] for row in await database.execute(f"PRAGMA table_info({name})")]
    rows = await database.execute(
        f"SELECT attname FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attnum > 0 AND NOT attisdropped "
        "ORDER BY attnum"
    )
    return [row[0] for row in rows]


async def contents(database: RelationalDatabase, columns: Columns) -> dict[str, list[str]]:
    """All rows by table, with these columns of them."""
    return {
        table: sorted(map(repr, await database.execute(f"SELECT {', '.join(names)} FROM {{{table}}}")))
        for table, names in columns.items()
    }


@pytest.fixture
async def before(database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch) -> Before:
    """What every table had when the old code stopped: its columns and its rows."""
    with monkeypatch.context() as patch:
        patch.setattr(migrating, "migrations", lambda dialect: migrations(dialect)[:6])
        store = database.make_store()
        await store.open()
        now = await store.now()
        await store.close()
    others = [line.replace("{now}", str(now)) for line in OTHERS]
    tokens = {"sqlite": "UPDATE {token} SET value = 100", "postgres": "SELECT setval('treadle.token', 100)"}
    await database.execute(*statements(database.dialect, SIZE, now - HOUR), *others, tokens[database.dialect])
    assert not NEW & set(await columns_of(database, "jobs"))
    tables = set(TABLES) - {"migrations", "token", *LATER}
    columns = {table: sorted(await columns_of(database, table)) for table in tables}
    found = await contents(database, columns)
    assert all(found.values()), [table for table, rows in found.items() if not rows]
    return columns, found


@pytest.fixture
async def bench(database: RelationalDatabase, before: Before) -> Any:
    bench = Workbench(database)
    await bench.open()
    yield bench
    await bench.close()


async def test_every_row_of_every_table_is_as_it_was(
    bench: Workbench, database: RelationalDatabase, before: Before
) -> None:
    columns, rows = before
    assert await contents(database, columns) == rows
    assert set(await columns_of(database, "jobs")) >= NEW
    given = await database.execute(f"SELECT DISTINCT {', '.join(sorted(NEW))} FROM {{jobs}}")
    assert [tuple(row) for row in given] == [(None,) * len(NEW)]


async def test_old_jobs_are_shown_and_run(bench: Workbench) -> None:
    jobs = await bench.store.list(Listing(limit=1000))
    assert len(jobs) == len({job.id for job in jobs}) > SIZE
    assert {(job.parent_id, job.webhook_url, job.webhook_sent) for job in jobs} == {(None, None, None)}
    assert {Status.PENDING, Status.PROCESSING, Status.COMPLETED, Status.FAILED} <= {job.status for job in jobs}
    for job in await bench.claim(5, topics=["mail"]):
        assert await bench.settle(job, Completed())
    child = new_job(parent_id=job_id(40), parent_step="pay", parent_key="", parent_generation=0)
    await bench.insert(child)
    (found,) = await bench.store.list(Listing(limit=10, condition=rules.parse_filter(f"parentId = '{job_id(40)}'")))
    assert found.id == child.id
