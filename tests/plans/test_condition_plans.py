"""Lists by a condition start from an index where the condition names one."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.plans import test_postgres_plans as postgres
from tests.plans import test_sqlite_plans as sqlite
from tests.plans.backlog import job_id
from tests.servers import PostgresServer
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.retention import Rules
from treadle.policy.rules import SortKey
from treadle.store.postgres.pools import READ_SETTINGS
from treadle.store.sql import lists
from treadle.store.sql.queries import load
from treadle.store.views import Listing

SIZE = 20_000
OWNERS = "UPDATE {jobs} SET created_by = 'o' || (n % 500), parent_id = 'p' || (n % 500) WHERE n % 2 = 0"

# Conditions, and the index (without its prefix) from which each is found; None: the newest are looked through.
WANTED = {
    "createdBy = 'o8'": "jobs_created_by",
    "createdBy = 'o8' && payload.x = 1": "jobs_created_by",
    "parentId = 'p8'": "jobs_parent",
    "scopeId = 'u7'": "jobs_scope_id",
    "scope = 'user' && scopeId = 'u7' && priority > 5": "jobs_scope",
    "topic = 'rare' && payload.x != 1": "jobs_topic",
    "status = 'failed' && lastError ~ 'smtp'": "outcomes_not_completed",
    f"id = '{job_id(7)}'": "id",
    "topic = 'rare' && updatedAt > @yesterday && eventsCount > 1": "jobs_topic",
    "status = 'failed' && updatedAt < '2020-01-01'": "outcomes_not_completed",
    "payload.x = 1": None,
    "eventsCount > 2": None,
    "lockedUntil < @now": None,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conditions") / "jobs.db"
    sqlite.fill(path, SIZE)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(OWNERS.format(jobs="treadle_jobs"))
    return path


@pytest.fixture(scope="module")
def world(postgres_server: PostgresServer) -> Iterator[postgres.World]:
    url = postgres_server.create_database("conditions")
    backlog = postgres.fill(url, SIZE)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(OWNERS.format(jobs="treadle.jobs").encode())
        connection.execute("VACUUM ANALYZE treadle.jobs")
    yield postgres.World(url, backlog)
    postgres_server.drop_database("conditions")


@pytest.mark.parametrize("text", WANTED)
def test_in_sqlite(file: Path, text: str) -> None:
    wanted = Listing(condition=rules.parse_filter(text))
    for query, values in (
        lists.page(load("sqlite"), "sqlite", wanted, Rules()),
        lists.count(load("sqlite"), "sqlite", wanted, Rules(), 1_000),
    ):
        with closing(sqlite3.connect(file)) as connection:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
        start = next(line for line in plan if line.split()[1] == "p")
        index = {"id": "sqlite_autoindex_treadle_jobs_1", None: None}.get(WANTED[text], f"treadle_{WANTED[text]}")
        assert start.startswith("SCAN p") if index is None else f" {index} (" in start, plan


@pytest.mark.parametrize("text", WANTED)
def test_in_postgres(world: postgres.World, text: str) -> None:
    wanted = Listing(condition=rules.parse_filter(text))
    query, values = lists.page(load("postgres"), "postgres", wanted, Rules())
    plan = postgres.explain(world, query, list(values), READ_SETTINGS)
    if WANTED[text] is not None:
        # For a scope and its id either index will do.
        index = {"id": "jobs_id_key"}.get(str(WANTED[text]), str(WANTED[text]))
        assert postgres.indexes(plan) & {index, f"{index}_id"}
        assert postgres.scanned(plan) == set()


BY_TIME = Listing(status=Status.PENDING, sort=(SortKey("runAt", False),))


def test_delayed_jobs_are_read_in_the_order_of_their_times_in_sqlite(file: Path) -> None:
    query, values = lists.page(load("sqlite"), "sqlite", BY_TIME, Rules())
    with closing(sqlite3.connect(file)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert any("treadle_later_due" in line for line in plan), plan
    looked_up = sum(line.startswith("SEARCH j ") for line in plan)
    assert looked_up == 2, "only the jobs of the page are looked up: for their sizes, then for the rest"


def test_delayed_jobs_are_read_in_the_order_of_their_times_in_postgres(world: postgres.World) -> None:
    query, values = lists.page(load("postgres"), "postgres", BY_TIME, Rules())
    plan = postgres.explain(world, query, list(values), READ_SETTINGS)
    assert "later_due" in postgres.indexes(plan)
    assert not postgres.scanned(plan) & {"jobs", "later"}
