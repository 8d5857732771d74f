"""PostgreSQL's plans with 0, 1,000 and 1,000,000 jobs: on their indexes, at the same cost.

Each verb is run as the store runs it, on a connection with the engine's (or the reader's) settings
and in a transaction that is rolled back; the server's own counters say what was touched.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql

from tests.plans.backlog import LIVE_LEASE, TOKEN, Backlog, job_id, statements
from tests.servers import PostgresServer
from treadle.model.fields import NOTHING_GIVEN, PLAIN
from treadle.model.status import ENDED, Status
from treadle.model.steps import StepState
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import (
    CancelRequested,
    Completed,
    Deleted,
    Failed,
    Outcome,
    Patch,
    ReleasedByHand,
    Requeued,
    Rescheduled,
)
from treadle.policy.retention import Rules
from treadle.store.postgres.claim_statement import claim_statement
from treadle.store.postgres.pools import PLAN_SETTINGS, READ_SETTINGS
from treadle.store.postgres.step_statements import statement
from treadle.store.postgres.store import PostgresStore, read_on
from treadle.store.sql import lists, scripts
from treadle.store.sql.changes import Cursor, Gap, Mark, Reader
from treadle.store.sql.queries import TABLES, load
from treadle.store.values import Checkpoint, Claimed, Effects, Graces, NewJob, Settlement, StepWrite, Wants
from treadle.store.views import Listing
from treadle.testing.workbench import DAY, new_job, settlement

SIZES = [0, 1_000, 1_000_000]
BIG = frozenset("jobs ready later held outcomes keys events deadlines members limits".split())


class World(NamedTuple):
    url: str
    backlog: Backlog


@pytest.fixture(scope="module")
def worlds(postgres_server: PostgresServer) -> Iterator[dict[int, World]]:
    """A database of each size, made when the first test of this module asks for it."""
    names = {size: f"backlog_{size}" for size in SIZES}
    made = {}
    for size, name in names.items():
        url = postgres_server.create_database(name)
        made[size] = World(url, fill(url, size))
    yield made
    for name in names.values():
        postgres_server.drop_database(name)


def fill(url: str, size: int) -> Backlog:
    asyncio.run(_migrate(url))
    tables = {table: f"treadle.{table}" for table in TABLES}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        row = connection.execute("SELECT CAST(extract(epoch FROM now()) * 1000 AS bigint)").fetchone()
        assert row is not None
        # Sorting a million entries once is much quicker than putting them in one by one.
        indexes = connection.execute(
            "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid), c.conname, "
            "c.conrelid::regclass::text, pg_get_constraintdef(c.oid) "
            "FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid "
            "WHERE i.indrelid::regclass::text LIKE 'treadle.%' AND NOT i.indisprimary"
        ).fetchall()
        for name, _, constraint, table, _ in indexes:
            drop = f"ALTER TABLE {table} DROP CONSTRAINT {constraint}" if constraint else f"DROP INDEX {name}"
            connection.execute(drop.encode())
        for statement in statements("postgres", size, row[0]):
            connection.execute(statement.format(**tables).encode())
        for _, definition, constraint, table, constraint_definition in indexes:
            add = f"ALTER TABLE {table} ADD CONSTRAINT {constraint} {constraint_definition}"
            connection.execute((add if constraint else definition).encode())
        connection.execute("VACUUM ANALYZE")
        return Backlog(size, row[0])


async def _migrate(url: str) -> None:
    store = PostgresStore(url, stale_after_ms=7 * DAY)
    await store.open()
    await store.close()


@pytest.fixture(params=SIZES)
def world(request: pytest.FixtureRequest, worlds: dict[int, World]) -> World:
    return worlds[request.param]


# -- what a verb touches ---------------------------------------------------------------------------


class Touched(NamedTuple):
    scans: dict[str, int]
    """Sequential scans, by table."""
    rows: dict[str, int]
    """Rows read, by table."""

    @property
    def total(self) -> int:
        return sum(self.rows.values())


class Undone(Exception):
    """Rolls a transaction back."""


Act = Callable[[PostgresStore, Any, Backlog], Awaitable[Any]]


async def touched(world: World, act: Act, *, reading: bool = False) -> Touched:
    store = PostgresStore(world.url, stale_after_ms=7 * DAY)
    await store.open(migrate=False)
    try:
        pool = store.pools._from(store.pools._reads if reading else store.pools._engine)
        async with pool as connection:
            try:
                async with connection.transaction():
                    await act(store, connection, world.backlog)
                    rows = await connection.fetch(
                        "SELECT relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0) "
                        "FROM pg_stat_xact_user_tables WHERE schemaname = 'treadle'"
                    )
                    raise Undone
            except Undone:
                pass
    finally:
        await store.close()
    return Touched(
        {name: scans for name, scans, _ in rows if scans and name in BIG},
        {name: count for name, _, count in rows if count and name in BIG},
    )


def running_jobs(backlog: Backlog, count: int = 4) -> list[Claimed]:
    """Jobs under the first lease."""
    numbers = [n for n in range(backlog.first_running, backlog.last) if 1 + n % 5 == LIVE_LEASE][:count]
    return [Claimed(n, job_id(n), "mail", "{}", 1, 3, 0, None, None, None, TOKEN, LIVE_LEASE) for n in numbers]


def any_endings(backlog: Backlog) -> list[Settlement]:
    outcomes: list[Outcome] = [Completed(), Failed("B", "B"), Failed("B", "B", 1), Completed()]
    return [settlement(job, outcome) for job, outcome in zip(running_jobs(backlog), outcomes, strict=True)]


def script(make: Callable[[Backlog], Any]) -> Act:
    async def act(store: PostgresStore, connection: Any, backlog: Backlog) -> Any:
        return await store._run(connection, make(backlog))

    return act


async def claim(store: PostgresStore, connection: Any, backlog: Backlog) -> None:
    arguments: list[Any] = [LIVE_LEASE, ["mail", "other", "idle"], ["", "media"], [""], 20, 20, 10**7, *[[]] * 4]
    [row] = await connection.fetch(claim_statement(6), *arguments)
    assert len(row[6] or ()) == (20 if backlog.size else 0)


def run_on(connection: Any, store: PostgresStore) -> None:
    store.pools.fetch = connection.fetch  # type: ignore[method-assign]


async def settle_completed(store: PostgresStore, connection: Any, backlog: Backlog) -> None:
    jobs = running_jobs(backlog)
    endings = [settlement(job, Completed()) for job in jobs]
    run_on(connection, store)
    assert await store.settle_completed(LIVE_LEASE, endings) == []


DONE_STEP = StepWrite("fetch", "", StepState.COMPLETED, 0, 1, started_ago_ms=1, result="1")


async def checkpoint(store: PostgresStore, connection: Any, backlog: Backlog) -> None:
    run_on(connection, store)
    news = [Checkpoint(job.n, job.token, 1, (DONE_STEP,)) for job in running_jobs(backlog)]
    assert await store.checkpoint(LIVE_LEASE, news) == []


async def settle_flows(store: PostgresStore, connection: Any, backlog: Backlog) -> None:
    run_on(connection, store)
    effects = Effects(steps=(DONE_STEP,))
    endings = [settlement(job, Completed("1"))._replace(effects=effects) for job in running_jobs(backlog)]
    assert await store.settle_flows(LIVE_LEASE, endings) == []


async def insert_alike(store: PostgresStore, connection: Any, backlog: Backlog) -> None:
    jobs = [new_job() for _ in range(10)]
    shape = (1, "mail", 0, None, 3, "", 50, None, *NOTHING_GIVEN[:PLAIN])
    ids, payloads = [job.id for job in jobs], [job.payload for job in jobs]
    assert await connection.fetchval(store.queries["insert_alike"].sql, ids, payloads, *shape)


def keyed_jobs() -> list[NewJob]:
    """One at the gate where a fiftieth of the backlog waits, one at a new one."""
    busy, new = Limit("g", "queue_same_scope", 1), Limit("of its own", "reject_same_scope", 1)
    return [
        new_job(idempotency_key="a", dedupe_key="b", limit=new, expires_in_ms=1000),
        new_job(idempotency_key="c", limit=busy),
    ]


SCRIPTS: dict[str, Callable[[Backlog], Any]] = {
    "claim, lane by lane": lambda _: scripts.claim(LIVE_LEASE, Wants(["mail", "other"], ["media"], 20, 20)),
    "settle": lambda b: scripts.settle(any_endings(b)),
    "insert with keys": lambda _: scripts.insert(keyed_jobs(), True),
    "advance": lambda _: scripts.advance(100),
    "reap": lambda _: scripts.reap(Graces(0), 1000),
    "cancel": lambda b: scripts.steer(
        [job_id(1), job_id(45), job_id(65), job_id(b.last)], lambda _: CancelRequested(), Rules()
    ),
    "requeue": lambda _: scripts.steer([job_id(65), job_id(75)], lambda _: Requeued(force=True), Rules()),
    "reschedule": lambda b: scripts.steer([job_id(1)], lambda _: Rescheduled(Patch(b.now + DAY, 60, 5)), Rules()),
    "delete": lambda _: scripts.steer([job_id(1), job_id(45), job_id(65)], lambda _: Deleted(force=True), Rules()),
    "release": lambda b: scripts.steer([job_id(b.first_running)], lambda _: ReleasedByHand(), Rules()),
}
"""What both databases run alike."""


def query(name: str, **values: int) -> Act:
    async def act(store: PostgresStore, connection: Any, _: Backlog) -> None:
        await connection.fetch(store.queries[name].sql, *([json.dumps([values])] if values else []))

    return act


WRITES: dict[str, Act] = {
    "claim": claim,
    "settle_completed": settle_completed,
    "checkpoint": checkpoint,
    "settle_flows": settle_flows,
    "insert_alike": insert_alike,
    **{name: script(make) for name, make in SCRIPTS.items()},
    "busy keys": query("busy_keys", top=100),
    "waits": query("waits", top=10_000),
    "rates": query("rates_used"),
    "leave a gate": script(lambda _: scripts.steer([job_id(98)], lambda _: Deleted(force=True), Rules())),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_nothing_is_scanned(world: World, verb: str) -> None:
    assert (await touched(world, WRITES[verb])).scans == {}


@pytest.mark.parametrize("verb", WRITES)
async def test_the_cost_does_not_grow_with_the_backlog(worlds: dict[int, World], verb: str) -> None:
    small = await touched(worlds[1_000], WRITES[verb])
    large = await touched(worlds[1_000_000], WRITES[verb])
    assert large.total <= small.total + 25, f"{small.rows} with a thousand jobs, {large.rows} with a million"


async def test_the_claim_touches_as_many_pages_next_to_any_backlog(worlds: dict[int, World]) -> None:
    """Next to a backlog of the same topic, of other topics and of the future; an index may be one level deeper."""
    pages = {size: await _pages(world) for size, world in worlds.items()}
    assert pages[1_000_000] <= pages[1_000] * 2 + 60, pages
    assert pages[1_000_000] < 600


async def _pages(world: World) -> int:
    query = claim_statement(4)
    arguments = [LIVE_LEASE, ["mail", "other"], ["", "media"], [""], 20, 20, 10**7, *[[]] * 4]
    plan = explain(world, query, arguments, PLAN_SETTINGS, analyze=True)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


# -- what the planner says -------------------------------------------------------------------------


def explain(
    world: World, query: str, arguments: list[Any], settings: dict[str, str], *, analyze: bool = False
) -> dict[str, Any]:
    """The plan of a prepared statement, as the store's connections would make it."""
    values = sql.SQL(", ").join(sql.Literal(argument) for argument in arguments)
    call = sql.SQL("EXECUTE p({})").format(values) if arguments else sql.SQL("EXECUTE p")
    options = "ANALYZE, BUFFERS, FORMAT JSON" if analyze else "FORMAT JSON"
    with psycopg.connect(world.url, prepare_threshold=None) as connection:
        for name, value in settings.items():
            connection.execute(f"SET {name} = {value}".encode())
        connection.execute(f"PREPARE p AS {query}".encode())
        explained = connection.execute(sql.SQL("EXPLAIN (" + options + ") ") + call)
        row = explained.fetchone()
        connection.rollback()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def scanned(plan: dict[str, Any]) -> set[str]:
    return {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"} & BIG


def indexes(plan: dict[str, Any]) -> set[str]:
    return {node["Index Name"] for node in nodes(plan) if "Index Name" in node}


def rows(*objects: dict[str, Any]) -> list[Any]:
    return [json.dumps(objects)]


# The hot statements by name: their parameters, and the indexes that they are made for.
HOT: dict[str, tuple[list[Any], set[str]]] = {
    "claim": (
        [LIVE_LEASE, ["mail", "other"], ["", "media"], [""], 20, 20, 10**7, *[[]] * 4],
        {"ready_pkey", "jobs_pkey", "leases_pkey"},
    ),
    "settle_completed": (
        [LIVE_LEASE, "{1}", "{1}", "{1}", "[]", ["mail"], None, None],
        {"running_pkey", "leases_pkey"},
    ),
    "take_due": (rows({"top": 100}), {"later_due", "later_pkey"}),
    "next_due": ([], {"later_due"}),
    "lane_heads": (
        rows({"topic": "mail", "capability": "", "worker_type": ""}),
        {"ready_pkey", "lanes_topic_capability_worker_type_key"},
    ),
    "peek_lane": (rows({"lane": 1, "top": 20}), {"ready_pkey", "jobs_pkey"}),
    "due_deadlines": (rows({"top": 100}), {"deadlines_due"}),
    "renew_lease": (rows({"lease": 1, "ms": 1}), {"leases_pkey", "running_cancelling"}),
    "cancelling": ([], {"running_cancelling", "jobs_pkey"}),
    "take_ready": (rows({"n": 1}), {"ready_n_key"}),
    "take_running": (rows({"n": 1, "token": 1, "lease": 1}), {"running_pkey"}),
    "find_jobs": (rows({"id": job_id(1)}), {"jobs_id_key"}),
    "job_facts": (rows({"n": 1}), {"jobs_pkey"}),
    "find_outcomes": (rows({"n": 1}), {"outcomes_pkey"}),
    "place_ready": (rows({"n": 1, "attempt": 0}), {"jobs_pkey"}),
    "take_keys": (rows({"kind": "x", "key": "y", "n": 1, "hash": None}), set()),
    "find_keys": (rows({"kind": "x", "key": "y"}), {"jobs_pkey"}),
    "drop_all_keys": (rows({"n": 1}), {"keys_job"}),
    "next_held": (rows({"key": "g", "lane": 1, "running": 0, "room": 1}), {"held_next"}),
    "held_lanes": (rows({"key": "g"}), {"held_next"}),
    "members": (rows({"key": "g"}), {"members_pkey", "jobs_pkey"}),
    "job_events": (rows({"id": job_id(1)}), {"jobs_id_key", "events_job"}),
    "drop_events": (rows({"n": 1}), {"events_job"}),
}


@pytest.mark.parametrize("name", HOT)
def test_on_its_indexes_at_every_size(world: World, name: str) -> None:
    arguments, wanted = HOT[name]
    plan = explain(world, statement(load("postgres"), name), arguments, PLAN_SETTINGS)
    assert scanned(plan) == set()
    if world.backlog.size:  # of an empty table any index will do
        assert indexes(plan) >= wanted


# -- lists and counts ------------------------------------------------------------------------------

# Later than everything that has ended: a search in any order but by time would read all of it.
NOBODY_YET = 2**45

LISTINGS = {
    "the newest": Listing(),
    "a later page": Listing(offset=300),
    "of a topic": Listing(topic="mail"),
    "of a rare topic": Listing(topic="rare"),
    "of an unknown topic": Listing(topic="nobodys"),
    "of a scope": Listing(scope="user", scope_id="u7"),
    "of a rare scope": Listing(scope="user", scope_id="rare"),
    **{f"{status}": Listing(status=status) for status in Status},
    **{f"{status} of a topic": Listing(status=status, topic="mail") for status in Status},
    "completed of a rare topic": Listing(status=Status.COMPLETED, topic="rare"),
    "failed of an unknown topic": Listing(status=Status.FAILED, topic="nobodys"),
    "pending of a rare topic": Listing(status=Status.PENDING, topic="rare"),
    **{f"{status} since a moment ago": Listing(status=status, ended_since=NOBODY_YET) for status in sorted(ENDED)},
    "completed of a topic since a moment ago": Listing(status=Status.COMPLETED, topic="mail", ended_since=NOBODY_YET),
}
# What a page may read in addition to the jobs it shows: one look at each place for each job.
A_PAGE = 2_000


@pytest.mark.parametrize("name", LISTINGS)
async def test_a_page_of_a_million_reads_little(worlds: dict[int, World], name: str) -> None:
    async def act(store: PostgresStore, connection: Any, _: Backlog) -> None:
        query, values = lists.page(store.queries, "postgres", LISTINGS[name], store.retention)
        await connection.fetch(query, *values)

    seen = await touched(worlds[1_000_000], act, reading=True)
    assert seen.total <= A_PAGE, seen
    assert {table for table, count in seen.rows.items() if count > A_PAGE} == set()


@pytest.mark.parametrize("name", LISTINGS)
async def test_a_count_stops_at_its_cap(worlds: dict[int, World], name: str) -> None:
    async def act(store: PostgresStore, connection: Any, _: Backlog) -> None:
        query, values = lists.count(store.queries, "postgres", LISTINGS[name], store.retention, 1_000)
        await connection.fetch(query, *values)

    seen = await touched(worlds[1_000_000], act, reading=True)
    assert seen.total <= 20_000, seen


async def test_a_job_is_found_by_its_id(worlds: dict[int, World]) -> None:
    async def act(store: PostgresStore, connection: Any, _: Backlog) -> None:
        document = json.dumps([{"id": job_id(n)} for n in (1, 45, 65, 98)])
        assert len(await connection.fetch(lists.by_id(store.queries), document)) == 4

    seen = await touched(worlds[1_000_000], act, reading=True)
    assert seen.scans == {}
    assert seen.total <= 60, seen


async def test_what_happened_lately_costs_the_same_with_a_million(worlds: dict[int, World]) -> None:
    async def act(store: PostgresStore, connection: Any, _: Backlog) -> None:
        [(job, event)] = await connection.fetch(store.queries["last_numbers"].sql)
        cursor = lately(job, event)
        reader = Reader("postgres", store.queries, store.retention, store._job)
        changes = await read_on(connection, reader.read(cursor, 1000, None))
        assert len(changes.events) >= 30

    seen = await touched(worlds[1_000_000], act, reading=True)
    assert seen.scans.keys() & BIG == set()
    assert seen.total <= 2_000, seen


def lately(job: int, event: int) -> Cursor:
    """A reader looked a moment ago, and watches two gaps."""
    return Cursor(Mark(job - 20, (Gap(5, 9, 2**60),)), Mark(event - 10, (Gap(3, 4, 2**60),)), {}, {})


def test_the_plan_of_a_page_names_its_indexes(worlds: dict[int, World]) -> None:
    world = worlds[1_000_000]
    store = PostgresStore(world.url, stale_after_ms=7 * DAY)
    wanted = {
        "failed": "outcomes_not_completed",
        "completed of a rare topic": "outcomes_topic",
        "of a topic": "jobs_topic",
        "of a scope": "jobs_scope",
        "the newest": "jobs_pkey",
    }
    for name, index in wanted.items():
        query, values = lists.page(store.queries, "postgres", LISTINGS[name], store.retention)
        plan = explain(world, query, list(values), READ_SETTINGS)
        assert index in indexes(plan), name
        assert scanned(plan) == set(), name


async def prune(store: PostgresStore, connection: Any, _: Backlog) -> None:
    assert await store._run(connection, scripts.prune(7 * DAY, 100)) == 100


async def test_pruning_reads_the_old_ones_only(worlds: dict[int, World]) -> None:
    seen = await touched(worlds[1_000_000], prune)
    assert seen.scans == {}
    assert seen.total <= 20_000, seen
