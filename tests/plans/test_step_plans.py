"""The statements of steps, their results and answers find their rows by an index, with none stored and with many."""

import json
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
from treadle.store.postgres.pools import PLAN_SETTINGS, READ_SETTINGS
from treadle.store.postgres.step_statements import statement
from treadle.store.sql.queries import TABLES, load

SIZES = (0, 20_000)
FILLED = [
    "INSERT INTO {steps} (n, name, key, place, state, attempt, ran_ms, title) "
    "SELECT n, 'fetch', '', 0, 'completed', 1, 0, 'Fetch' FROM {jobs}",
    "INSERT INTO {steps} (n, name, key, place, state, attempt, ran_ms) "
    "SELECT n, 'page', '1', 1, 'processing', 1, 0 FROM {jobs}",
    "INSERT INTO {step_results} (n, name, key, result) SELECT n, 'fetch', '', '1' FROM {jobs}",
    "INSERT INTO {children} (n, name, key, place, state) SELECT n, 'fetch', 'one', 0, 'waiting' FROM {jobs}",
    "INSERT INTO {answers} (n, name, key, created_at) SELECT n, 'approve', '', 1 FROM {jobs}",
]
RUN = {"n": 1, "name": "fetch", "key": ""}
LOST = {
    "n": 1,
    "was": "processing",
    "state": "failed",
    "error": "worker lost",
    "error_type": "WorkerLost",
    "ended_at": 1,
}
# By statement: its row, and the tables that it has to search by their primary keys (`children` also by its places).
WRITES: dict[str, tuple[dict[str, object], set[str]]] = {
    "find_steps": (RUN, {"steps"}),
    "lock_steps": (RUN, {"steps"}),
    "early_answers": (RUN, {"answers", "steps"}),
    "drop_answers": (RUN, {"answers"}),
    "interrupt_steps": (LOST, {"steps"}),
    "reset_steps": (RUN, {"steps"}),
    "forget_steps": (RUN, {"steps"}),
    "forget_step_results": (RUN, {"step_results"}),
    "drop_steps": (RUN, {"steps"}),
    "drop_step_results": (RUN, {"step_results"}),
    "drop_all_answers": (RUN, {"answers"}),
    "flag_steps": (RUN, {"jobs"}),
    "restart_clocks": (RUN, {"steps"}),
    "place_parked": ({"n": 1, "attempt": 1}, {"jobs", "steps"}),
}
READS: dict[str, tuple[dict[str, object], set[str]]] = {
    "claimed_steps": (RUN, {"jobs", "steps", "answers"}),
    "step_results": (RUN, {"steps", "step_results"}),
    "count_step": ({"id": job_id(1), "name": "fetch"}, {"steps", "children"}),
    "step_page": ({"id": job_id(1), "name": "fetch", "top": 10, "skip": 0}, {"steps", "step_results", "children"}),
}
STATEMENTS = WRITES | READS
# What may be scanned: the given rows (`json_each`, `t`), a SELECT without a table (`CONSTANT ROW`), and in `step_page` the
# runs of one step (`y`) and the page of them (`x`).
SMALL = {"json_each", "t", "CONSTANT", "y", "x"}


@pytest.fixture(scope="module", params=SIZES)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "jobs.db"
    sqlite.fill(path, request.param)
    tables = {table: f"treadle_{table}" for table in TABLES}
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in FILLED if request.param else ():
            connection.execute(statement.format(**tables))
        connection.execute("ANALYZE")
    return path


@pytest.fixture(scope="module", params=SIZES)
def world(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[postgres.World]:
    name = f"steps_{request.param}"
    url = postgres_server.create_database(name)
    backlog = postgres.fill(url, request.param)
    tables = {table: f"treadle.{table}" for table in TABLES}
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in FILLED if request.param else ():
            connection.execute(statement.format(**tables).encode())
        connection.execute("VACUUM ANALYZE")
    yield postgres.World(url, backlog)
    postgres_server.drop_database(name)


ONE = json.dumps([RUN | {"place": 0, "state": "completed", "attempt": 1, "ran_ms": 1, "ended": True}])
TOGETHER: dict[str, list[object]] = {
    "write_checkpoints": [1, "{1}", "{1}", "{1}", "{1}", ONE, "{1}", "{null}", None],
    "settle_flows": [1, "{1}", "{1}", "{1}", "[]", ONE, "{1}", ["mail"], "{1}", "[null]"],
}


@pytest.mark.parametrize("name", TOGETHER)
def test_the_steps_of_many_jobs_in_postgres(world: postgres.World, name: str) -> None:
    plan = postgres.explain(world, statement(load("postgres"), name), TOGETHER[name], PLAN_SETTINGS)
    stored = {node["Relation Name"] for node in postgres.nodes(plan) if node["Node Type"] == "Seq Scan"}
    assert stored == set()
    assert not [node["Node Type"] for node in postgres.nodes(plan) if node["Node Type"] in ("Hash Join", "Merge Join")]
    if world.backlog.size:
        searched = {"running_pkey", "leases_pkey", "jobs_pkey"} | ({"steps_pkey"} if name == "settle_flows" else set())
        assert searched <= postgres.indexes(plan)


@pytest.mark.parametrize("name", STATEMENTS)
def test_in_sqlite(file: Path, name: str) -> None:
    row, searched = STATEMENTS[name]
    with closing(sqlite3.connect(file)) as connection:
        query = connection.execute(f"EXPLAIN QUERY PLAN {load('sqlite')[name].sql}", [json.dumps([row])])
        plan = [line[3] for line in query]
    scans = [line for line in plan if line.startswith("SCAN") and line.split()[1] not in SMALL]
    assert scans == []
    # The plan names a table by its alias, so the number of searches counts.
    assert len([line for line in plan if line.startswith("SEARCH")]) >= len(searched), plan


@pytest.mark.parametrize("name", STATEMENTS)
def test_in_postgres(world: postgres.World, name: str) -> None:
    row, searched = STATEMENTS[name]
    settings = PLAN_SETTINGS if name in WRITES else READ_SETTINGS
    plan = postgres.explain(world, load("postgres")[name].sql, [json.dumps([row])], settings)
    if world.backlog.size:
        used = {"children_pkey" if index == "children_place" else index for index in postgres.indexes(plan)}
        assert {f"{table}_pkey" for table in searched} <= used
        big = {node["Relation Name"] for node in postgres.nodes(plan) if node["Node Type"] == "Seq Scan"}
        assert big == set()
    if name in WRITES:
        for node in postgres.nodes(plan):
            if node.get("Relation Name") in searched and "Scan" in node["Node Type"]:
                assert "Index Cond" in node or node["Node Type"] == "Bitmap Heap Scan", node
