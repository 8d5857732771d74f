"""Every faster statement leaves the same rows as the script that it stands for (docs/decisions/0013).

Each is used twice on fresh databases: as it is, and with its gate closed.
"""

import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from tests.servers import PostgresServer
from treadle.model.steps import StepState
from treadle.policy.lifecycle import Completed
from treadle.store.postgres.store import PostgresStore
from treadle.store.protocol import Store
from treadle.store.sql import scripts
from treadle.store.sql.queries import TABLES
from treadle.store.sql.store import SqlStore
from treadle.store.sqlite import hot
from treadle.store.sqlite.store import SqliteStore
from treadle.store.values import Checkpoint, Claimed, Effects, NewJob, StepWrite, Wants
from treadle.testing.workbench import HOUR, new_job, settlement

MAIL, NEWS = "mail", "news"
WANTS = Wants([MAIL, NEWS], limit=10, free=10)
NAMES = tuple(f"00000000-0000-7000-8000-{number:012}" for number in range(6))


# -- what is done ------------------------------------------------------------------------------------


def jobs(**options: Any) -> list[NewJob]:
    """Jobs of two topics and of different priorities, under the same ids in every run."""
    return [
        new_job(id=id, topic=(MAIL, NEWS)[i // 3], priority=50 + i % 3, scope="team", scope_id="7", **options)
        for i, id in enumerate(NAMES)
    ]


async def claimed(store: Store) -> list[Claimed]:
    await store.insert(jobs())
    lease = await store.open_lease("w1", HOUR)
    return (await store.claim(lease, WANTS)).jobs


def step(name: str, **news: Any) -> StepWrite:
    return StepWrite(name, "k", StepState.COMPLETED, 1, 1, started_ago_ms=3, ran_ms=3, result='{"a": "ü"}', **news)


async def insert_alike(store: Store) -> None:
    alike = [new_job(id=id, topic=MAIL, created_by="ann") for id in NAMES]
    await store.insert(alike[:3])
    await store.insert([job._replace(delay_ms=HOUR) for job in alike[3:]])


async def insert_one(store: Store) -> None:
    for job in jobs():
        await store.insert([job])


async def insert_later(store: Store) -> None:
    await store.insert([jobs(delay_ms=HOUR)[0]])


async def claim(store: Store) -> None:
    await store.insert(jobs())
    lease = await store.open_lease("w1", HOUR)
    first = await store.claim(lease, WANTS._replace(limit=4))
    second = await store.claim(lease, WANTS)
    assert [len(first.jobs), len(second.jobs)] == [4, 2]


async def settle(store: Store) -> None:
    found = sorted(await claimed(store), key=lambda job: job.n)
    ends = [settlement(job, Completed(None if i % 2 else '{"sent": 1}'), i or None) for i, job in enumerate(found)]
    assert not await store.settle(ends)


async def settle_flows(store: Store) -> None:
    found = await claimed(store)
    await store.checkpoint(found[0].lease, [Checkpoint(found[0].n, found[0].token, 4, (step("fetch"),))])
    ends = [
        settlement(job, Completed("1"))._replace(effects=Effects(steps=(step("a"), step("b")))) for job in found[1:]
    ]
    assert not await store.settle(ends)


async def checkpoint(store: Store) -> None:
    found = await claimed(store)
    waiting = StepWrite("ask", "", StepState.WAITING, 2, 1, title="Ask", until_ms=HOUR, schema='{"type": "string"}')
    failed = StepWrite("send", "", StepState.FAILED, 3, 2, error="boom", error_type="ValueError", started_ago_ms=3)
    news = [Checkpoint(job.n, job.token, 9, (step("a", input_hash="h"), waiting), progress=30) for job in found]
    assert not await store.checkpoint(found[0].lease, news)
    again = [Checkpoint(job.n, job.token, 9, (failed,), message="half", flagged=True, grace_ms=5) for job in found]
    assert not await store.checkpoint(found[0].lease, again)


# -- its gates ---------------------------------------------------------------------------------------

Do = Callable[[Store], Awaitable[None]]
Gate = tuple[Any, str, Any]


def insert_by_script(self: SqliteStore, runs: Any, atomic: bool, db: Any) -> Any:
    return self.run(db, scripts.insert([job for run in runs for job in run], atomic)), {}


async def insert_by_script_there(self: PostgresStore, jobs: Any, atomic: bool) -> Any:
    return await self.transact_or_busy(lambda: scripts.insert(jobs, atomic))


async def claim_by_script(self: PostgresStore, lease: int, wants: Wants) -> Any:
    return await self.transact(lambda: scripts.claim(lease, wants))


async def settle_by_script(self: SqlStore, lease: int, settlements: Any) -> Any:
    return await self.transact(lambda: scripts.settle(settlements))


CLOSED: Mapping[str, Mapping[Do, Gate]] = {
    "sqlite": {
        insert_alike: (SqliteStore, "_insert", insert_by_script),
        insert_one: (SqliteStore, "_insert", insert_by_script),
        insert_later: (SqliteStore, "_insert", insert_by_script),
        claim: (hot, "claim", lambda *_: None),
        settle: (SqliteStore, "settle_completed", settle_by_script),
        checkpoint: (SqliteStore, "checkpoint", SqlStore.checkpoint),
    },
    "postgres": {
        insert_alike: (PostgresStore, "_insert", insert_by_script_there),
        insert_one: (PostgresStore, "_insert", insert_by_script_there),
        insert_later: (PostgresStore, "_insert", insert_by_script_there),
        claim: (PostgresStore, "claim", claim_by_script),
        settle: (PostgresStore, "settle_completed", settle_by_script),
        settle_flows: (PostgresStore, "settle_flows", SqlStore.settle_flows),
        checkpoint: (PostgresStore, "checkpoint", SqlStore.checkpoint),
    },
}


# -- the comparison ----------------------------------------------------------------------------------


def shown(value: Any) -> Any:
    """Times differ between two runs, by some ms or by a minute. The line that tells of completed jobs has no order."""
    if isinstance(value, int) and value > 20_000_000:
        return "a time"
    return sorted(value) if isinstance(value, list) else value


async def stored(database: RelationalDatabase) -> dict[str, list[Any]]:
    tables = [table for table in TABLES if table not in ("migrations", "token")]
    found = {table: await database.execute(f"SELECT * FROM {{{table}}}") for table in tables}
    found["events"] = [row[1:] for row in sorted(found["events"])]  # in their order, but their numbers may have gaps
    return {table: sorted([repr([shown(value) for value in row]) for row in rows]) for table, rows in found.items()}


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the script ran, so the faster statement did not")


async def run(do: Do, database: RelationalDatabase) -> dict[str, list[Any]]:
    store = database.make_store()
    await store.open()
    try:
        await do(store)
    finally:
        await store.close()
    assert await database.problems() == []
    return await stored(database)


async def compare(do: Do, gate: Gate, databases: Iterator[RelationalDatabase], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(scripts, do.__name__.partition("_")[0], refuse)
        fast = await run(do, next(databases))
    with monkeypatch.context() as patch:
        patch.setattr(*gate)
        slow = await run(do, next(databases))
    assert fast == slow


@pytest.mark.parametrize("do", CLOSED["sqlite"], ids=lambda do: do.__name__)
async def test_on_sqlite_both_ways_store_the_same(
    do: Do, migrated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def databases() -> Iterator[RelationalDatabase]:
        for name in ("fast.db", "slow.db"):
            shutil.copyfile(migrated_file, tmp_path / name)
            yield RelationalDatabase(f"sqlite:///{tmp_path / name}")

    await compare(do, CLOSED["sqlite"][do], databases(), monkeypatch)


@pytest.mark.parametrize("do", CLOSED["postgres"], ids=lambda do: do.__name__)
async def test_on_postgresql_both_ways_store_the_same(
    do: Do, migrated_template: str, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server.database(migrated_template) as first, postgres_server.database(migrated_template) as second:
        databases = (RelationalDatabase(postgres_server.url(name)) for name in (first, second))
        await compare(do, CLOSED["postgres"][do], databases, monkeypatch)
