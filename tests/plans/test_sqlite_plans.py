"""SQLite's plans with 0, 1,000 and 1,000,000 jobs: on their indexes, at the same cost.

The cost of a verb is the number of steps of SQLite's virtual machine, which a progress handler counts.
The store itself never analyses, so that is one kind of world; the other is one in which the user did.
(There a small table may be scanned, which costs nothing, so only the large one must be on its indexes.)
"""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.plans.backlog import LIVE_LEASE, Backlog, job_id, statements
from tests.plans.test_postgres_plans import LISTINGS, SCRIPTS, lately, running_jobs
from treadle.policy.lifecycle import Completed
from treadle.policy.retention import Rules
from treadle.store.sql import lists, scripts
from treadle.store.sql.changes import Reader
from treadle.store.sql.queries import TABLES, load
from treadle.store.sqlite import hot
from treadle.store.sqlite.store import SqliteStore, read_on, run_script
from treadle.store.values import Wants
from treadle.testing.workbench import DAY, new_job, settlement

SIZES = [0, 1_000, 1_000_000]
QUERIES = load("sqlite")
BIG = {f"treadle_{table}" for table in "jobs ready later held outcomes keys events deadlines members limits".split()}


class World(NamedTuple):
    path: Path
    backlog: Backlog


class Worlds(NamedTuple):
    plain: dict[int, World]
    analysed: dict[int, World]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    folder = tmp_path_factory.mktemp("backlog")
    plain = {size: World(folder / f"{size}.db", fill(folder / f"{size}.db", size)) for size in SIZES}
    analysed = {size: analyse(world, folder / f"{size}-analysed.db") for size, world in plain.items()}
    yield Worlds(plain, analysed)
    shutil.rmtree(folder)


def analyse(world: World, path: Path) -> World:
    shutil.copyfile(world.path, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")
    return World(path, world.backlog)


def fill(path: Path, size: int) -> Backlog:
    asyncio.run(_migrate(path))
    tables = {table: f"treadle_{table}" for table in TABLES}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -400000")
        now = connection.execute(QUERIES["clock"].sql).fetchone()[0]
        indexes = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql > ''").fetchall()
        connection.execute("BEGIN")
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        for statement in statements("sqlite", size, now):
            connection.execute(statement.format(**tables))
        for _, definition in indexes:
            connection.execute(definition)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Backlog(size, now)


async def _migrate(path: Path) -> None:
    store = SqliteStore(path, stale_after_ms=7 * DAY)
    await store.open()
    await store.close()


@pytest.fixture(params=[*SIZES, "analysed"])
def world(request: pytest.FixtureRequest, worlds: Worlds) -> World:
    return worlds.analysed[1_000_000] if request.param == "analysed" else worlds.plain[request.param]


# -- what a verb costs -----------------------------------------------------------------------------

Act = Callable[[sqlite3.Connection, Backlog], Any]


class Seen(NamedTuple):
    steps: int
    statements: list[str]


def watched(world: World, act: Act) -> Seen:
    """The steps and the statements of a verb, run on a connection of the store's and rolled back."""
    store = SqliteStore(world.path, stale_after_ms=7 * DAY)
    with closing(store.engine.connect()) as connection:
        steps = 0
        statements: list[str] = []

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection.execute("BEGIN IMMEDIATE")
        connection.set_trace_callback(statements.append)
        connection.set_progress_handler(step, 1)
        act(connection, world.backlog)
        connection.set_progress_handler(None, 1)
        connection.set_trace_callback(None)
        connection.execute("ROLLBACK")
    return Seen(steps, statements)


def script(make: Callable[[Backlog], Any]) -> Act:
    return lambda connection, backlog: run_script(connection, QUERIES, make(backlog))


def claim(connection: sqlite3.Connection, backlog: Backlog) -> None:
    found = hot.claim(connection, QUERIES, LIVE_LEASE, Wants(["mail", "other", "idle"], ["media"], 20, 20), hot.Sizes())
    assert found is not None
    assert len(found.jobs) == (20 if backlog.size else 0)


def look(connection: sqlite3.Connection, _: Backlog) -> None:
    assert hot.nothing_to_claim(connection, QUERIES, LIVE_LEASE, Wants(["idle"]))


def settle_completed(connection: sqlite3.Connection, backlog: Backlog) -> None:
    endings = [settlement(job, Completed()) for job in running_jobs(backlog)]
    assert hot.settle(connection, QUERIES, LIVE_LEASE, endings) == []


def insert_alike(connection: sqlite3.Connection, _: Backlog) -> None:
    hot.insert(connection, QUERIES, [[new_job() for _ in range(10)]], {("mail", ""): 1})


def query(name: str, **values: int) -> Act:
    given = (json.dumps([values]),) if values else ()
    return lambda connection, _: connection.execute(QUERIES[name].sql, given).fetchall()


VERBS: dict[str, Act] = {
    "claim": claim,
    "claim in vain": look,
    "settle_completed": settle_completed,
    "insert_alike": insert_alike,
    **{name: script(make) for name, make in SCRIPTS.items()},
    "busy keys": query("busy_keys", top=100),
    "waits": query("waits", top=10_000),
    "rates": query("rates_used"),
    "prune": script(lambda _: scripts.prune(7 * DAY, 100)),
}


@pytest.mark.parametrize("kind", ["plain", "analysed"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_cost_does_not_grow_with_the_backlog(worlds: Worlds, verb: str, kind: str) -> None:
    sizes: dict[int, World] = getattr(worlds, kind)
    small, large = (watched(sizes[size], VERBS[verb]).steps for size in (1_000, 1_000_000))
    assert large <= small * 1.25 + 100, f"{small} steps with a thousand jobs, {large} with a million"


@pytest.mark.parametrize("verb", VERBS)
def test_no_statement_scans_a_big_table(world: World, verb: str) -> None:
    for statement in watched(world, VERBS[verb]).statements:
        assert scans(world, statement) == [], statement


def scans(world: World, statement: str) -> list[str]:
    """The lines of a statement's plan that walk through a big table (min and max look at one end only)."""
    if not statement.lstrip().upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
        return []
    with closing(sqlite3.connect(world.path)) as connection:
        lines = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    return [line for line in lines if line.startswith("SCAN") and any(name in BIG for name in _tables(line, statement))]


def _tables(line: str, statement: str) -> set[str]:
    """A plan names aliases; the statement says what they stand for."""
    name = line.split()[1]
    words = statement.replace("(", " ").replace(")", " ").replace(",", " ").split()
    stands_for = {name}
    stands_for |= {words[i] for i in range(len(words) - 1) if words[i + 1] == name and words[i] in BIG}
    return stands_for


# The hot statements by name, their parameters and the indexes that they are made for.
HOT: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "peek_heads": ((1, 20, 1, 1), ["USING PRIMARY KEY (lane=?)", "INTEGER PRIMARY KEY"]),
    "peek_lane": ((json.dumps([{"lane": 1, "top": 20}]),), ["USING PRIMARY KEY (lane=?)", "INTEGER PRIMARY KEY"]),
    "start_heads": ((1, 1, 1, 1, 1, 1, 1), ["PRIMARY KEY (lane=? AND (rank,run_at,n)<(?,?,?))"]),
    "drop_heads": ((1, 1, 1, 1), ["PRIMARY KEY (lane=? AND (rank,run_at,n)<(?,?,?))"]),
    "peek_places": ((1, 20), ["USING PRIMARY KEY (lane=?)"]),
    "peek_sizes": ((1, 20), ["USING PRIMARY KEY (lane=?)", "INTEGER PRIMARY KEY"]),
    "lane_heads": (
        (json.dumps([{"topic": "mail", "capability": "", "worker_type": ""}]),),
        ["USING PRIMARY KEY (lane=?)", "(topic=? AND capability=? AND worker_type=?)"],
    ),
    "take_due": ((json.dumps([{"top": 100}]),), ["treadle_later_due (run_at<?)"]),
    "next_due": ((), ["treadle_later_due"]),
    "due_deadlines": ((json.dumps([{"top": 100}]),), ["treadle_deadlines_due (expires_at<?)"]),
    "renew_lease": ((json.dumps([{"lease": 1, "ms": 1}]),), ["INTEGER PRIMARY KEY"]),
    "take_ready": ((json.dumps([{"n": 1}]),), ["treadle_ready USING"]),
    "find_jobs": ((json.dumps([{"id": job_id(1)}]),), ["sqlite_autoindex_treadle_jobs_1 (id=?)"]),
    "find_outcomes": ((json.dumps([{"n": 1}]),), ["INTEGER PRIMARY KEY"]),
    "find_keys": ((json.dumps([{"kind": "x", "key": "y"}]),), ["PRIMARY KEY (kind=? AND key=?)"]),
    "next_held": (
        (json.dumps([{"key": "g", "lane": 1, "running": 0, "room": 1}]),),
        ["treadle_held_next (key=? AND lane=?)"],
    ),
    "held_lanes": ((json.dumps([{"key": "g"}]),), ["treadle_held_next (key=? AND lane>?)"]),
    "members": ((json.dumps([{"key": "g"}]),), ["PRIMARY KEY (key=?)"]),
    "old_outcomes": ((json.dumps([{"age": 1, "top": 1}]),), ["treadle_outcomes_ended (ended_at<?)"]),
    "ended_jobs": (
        (json.dumps([{"at": 1, "after": 1, "until": 2, "top": 1}]),),
        ["treadle_outcomes_ended (ended_at>? AND ended_at<?)", "INTEGER PRIMARY KEY (rowid=?)"],
    ),
    "count_old": (
        (json.dumps([{"age": 1, "top": 1, "named": 0}, {"status": "failed"}]),),
        ["treadle_outcomes_ended (ended_at<?)"],
    ),
    "lock_ended": ((json.dumps([{"n": 1}]),), ["INTEGER PRIMARY KEY (rowid=?)"]),
    "job_events": ((json.dumps([{"id": job_id(1)}]),), ["treadle_events_job (n=?)"]),
}


@pytest.mark.parametrize("name", HOT)
def test_on_its_indexes_at_every_size(world: World, name: str) -> None:
    values, wanted = HOT[name]
    with closing(sqlite3.connect(world.path)) as connection:
        plan = "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {QUERIES[name].sql}", values))
    for index in wanted:
        assert index in plan, plan


# Without statistics of single topics, all that is pending is looked through for those of a rare one: about 0.1 s.
WALKS = {"pending of a rare topic"}
WALK = 6_000_000


@pytest.mark.parametrize("kind", ["plain", "analysed"])
@pytest.mark.parametrize("name", LISTINGS)
def test_a_page_of_a_million_costs_little(worlds: Worlds, name: str, kind: str) -> None:
    def act(connection: sqlite3.Connection, _: Backlog) -> None:
        query, values = lists.page(QUERIES, "sqlite", LISTINGS[name], Rules())
        connection.execute(query, values).fetchall()

    assert watched(getattr(worlds, kind)[1_000_000], act).steps < (WALK if name in WALKS else 60_000)


@pytest.mark.parametrize("kind", ["plain", "analysed"])
@pytest.mark.parametrize("name", LISTINGS)
def test_a_count_stops_at_its_cap(worlds: Worlds, name: str, kind: str) -> None:
    def act(connection: sqlite3.Connection, _: Backlog) -> None:
        query, values = lists.count(QUERIES, "sqlite", LISTINGS[name], Rules(), 1_000)
        connection.execute(query, values).fetchall()

    assert watched(getattr(worlds, kind)[1_000_000], act).steps < (WALK if name in WALKS else 100_000)


def test_a_job_is_found_by_its_id(world: World) -> None:
    def act(connection: sqlite3.Connection, backlog: Backlog) -> None:
        document = json.dumps([{"id": job_id(n)} for n in (1, 45, 65, 98)])
        found = connection.execute(lists.by_id(QUERIES), (document,)).fetchall()
        assert len(found) == sum(n <= backlog.last for n in (1, 45, 65, 98))

    assert watched(world, act).steps < 2_000


@pytest.mark.parametrize("kind", ["plain", "analysed"])
def test_what_happened_lately_costs_the_same_with_a_million(worlds: Worlds, kind: str) -> None:
    def act(connection: sqlite3.Connection, _: Backlog) -> None:
        [(job, event)] = connection.execute(QUERIES["last_numbers"].sql).fetchall()
        reader = Reader("sqlite", QUERIES, Rules(), lambda row: row)
        changes = read_on(connection, reader.read(lately(job, event), 1000, None))
        assert len(changes.events) >= 30

    assert watched(getattr(worlds, kind)[1_000_000], act).steps < 40_000
