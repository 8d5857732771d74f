"""What a verb costs per job does not grow with its batch: eight times as many jobs cost about eight times as much.

The cost is counted, not timed: steps of SQLite's virtual machine, and rows that pass through the nodes of PostgreSQL's
plans (rows that a join or a filter discards included, because a quadratic statement spends its time on them).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.contract.relational import RelationalDatabase
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.admission import QUEUE, REJECT, REPLACE, Limit
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, Parked, Released, Requeued, Snoozed
from treadle.queue import steering
from treadle.store.sql import scripts
from treadle.store.sql.store import SqlStore
from treadle.store.values import (
    Answer,
    Checkpoint,
    Claimed,
    Effects,
    Graces,
    NewStep,
    RecordWrite,
    StepKey,
    StepWrite,
    TopicOptions,
    Touch,
)
from treadle.testing.workbench import DAY, HOUR, LEASES_ONLY, MINUTE, SECOND, Workbench, new_job, settlement

SMALL, FACTOR = 60, 8
# Sorting and deeper trees make a large batch a little dearer per job; a nested loop makes it eight times as dear.
ALLOWED = 1.35

EXPLAINED = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "client_min_messages": "log",
}


class Meter:
    """Counts what the statements of a store cost while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.cost = 0

    def step(self) -> int:
        self.cost += self.on
        return 0

    def hear(self, _connection: Any, message: Any) -> None:
        if self.on and "plan:" in message.message:
            plan = json.loads(message.message.partition("plan:\n")[2])
            self.cost += _rows(plan["Plan"])

    @contextmanager
    def counting(self) -> Iterator[None]:
        self.on, self.cost = True, 0
        try:
            yield
        finally:
            self.on = False


def _rows(node: dict[str, Any]) -> int:
    """All rows that a node and the nodes below it looked at."""
    passed = sum(value for name, value in node.items() if name == "Actual Rows" or name.startswith("Rows Removed"))
    mine = int((passed + 1) * node["Actual Loops"])
    return mine + sum(_rows(child) for child in node.get("Plans", ()))


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def bench(database: RelationalDatabase, meter: Meter) -> AsyncIterator[Workbench]:
    bench = Workbench(database)
    _watch(bench.store, meter)
    await bench.open()
    yield bench
    await bench.close()


def _watch(store: Any, meter: Meter) -> None:
    if store.dialect == "sqlite":
        connect = store.engine.connect

        def counted() -> Any:
            connection = connect()
            connection.set_progress_handler(meter.step, 10)
            return connection

        store.engine.connect = store.engine._read_connections._connect = counted
        return
    connect_to = store.pools.connect

    async def explained(settings: dict[str, str]) -> Any:
        connection = await connect_to(settings)
        await connection.execute("LOAD 'auto_explain'")
        for name, value in EXPLAINED.items():
            await connection.execute(f"SET {name} = '{value}'")
        connection.add_log_listener(meter.hear)
        return connection

    store.pools.connect = explained


class Verb(NamedTuple):
    """What is prepared for a batch of this size, and what is counted."""

    prepare: Callable[[Workbench, int], Awaitable[Any]]
    act: Callable[[Workbench, Any], Awaitable[Any]]


async def nothing(_bench: Workbench, count: int) -> int:
    return count


async def claimed(bench: Workbench, count: int) -> list[Claimed]:
    await bench.enqueue(count)
    jobs = await bench.claim(count)
    assert len(jobs) == count
    return jobs


async def claimed_with_keys(bench: Workbench, count: int) -> list[Claimed]:
    for i in range(count):
        await bench.enqueue(1, dedupe_key=f"{count}-{i}", expires_in_ms=HOUR)
    return await bench.claim(count)


async def claimed_one_by_one(bench: Workbench, count: int) -> None:
    await bench.enqueue(count)
    for _ in range(count):
        await bench.claim_one(lease=await bench.lease(MINUTE))
    await bench.pass_time(2 * MINUTE)


async def orphaned(bench: Workbench, count: int) -> None:
    await bench.enqueue(count)
    await bench.claim(count, lease=await bench.lease(MINUTE))
    await bench.pass_time(2 * MINUTE)


async def cancelling(bench: Workbench, count: int) -> list[Claimed]:
    jobs = await claimed(bench, count)
    await steering.cancel(bench.store, [job.id for job in jobs], "")
    await bench.pass_time(MINUTE)
    return jobs


async def pending(bench: Workbench, count: int) -> list[str]:
    return await bench.enqueue(count)


async def due(bench: Workbench, count: int) -> None:
    await bench.enqueue(count, delay_ms=SECOND)
    await bench.pass_time(MINUTE)


async def overdue(bench: Workbench, count: int) -> None:
    for _ in range(count):
        await bench.enqueue(1, expires_in_ms=SECOND)
    await bench.pass_time(MINUTE)


async def failed(bench: Workbench, count: int) -> list[str]:
    jobs = await claimed(bench, count)
    assert await bench.store.settle([settlement(job, Failed("Boom", "Boom")) for job in jobs]) == []
    return [job.id for job in jobs]


async def ended_long_ago(bench: Workbench, count: int) -> None:
    await failed(bench, count)
    await bench.pass_time(DAY)


def settle(outcome: Outcome) -> Callable[[Workbench, list[Claimed]], Awaitable[None]]:
    async def act(bench: Workbench, jobs: list[Claimed]) -> None:
        assert await bench.store.settle([settlement(job, outcome) for job in jobs]) == []

    return act


async def settle_what_is_lost(bench: Workbench, jobs: list[Claimed]) -> None:
    endings = [settlement(job._replace(token=job.token - 1), Completed()) for job in jobs]
    assert await bench.store.settle(endings) == endings


async def touch(bench: Workbench, jobs: list[Claimed]) -> None:
    touches = [Touch(job.n, job.token, 5, 50, "half way") for job in jobs]
    assert await bench.store.touch(jobs[0].lease, touches) == []


async def renew(bench: Workbench, jobs: list[Claimed]) -> None:
    renewed = await bench.store.renew(jobs[0].lease, HOUR)
    assert renewed is not None
    assert len(renewed.cancels) == len(jobs)


async def insert(bench: Workbench, count: int) -> None:
    await bench.enqueue(count)


async def claim(bench: Workbench, jobs: list[str]) -> None:
    assert len(await bench.claim(len(jobs))) == len(jobs)


async def insert_unlike(bench: Workbench, count: int) -> None:
    await bench.store.insert([new_job(max_attempts=1 + i % 5) for i in range(count)])


async def insert_with_keys(bench: Workbench, count: int) -> None:
    await bench.store.insert([new_job(idempotency_key=f"{count}-{i}", dedupe_key=f"{count}-{i}") for i in range(count)])


async def insert_rejecting(bench: Workbench, count: int) -> None:
    await bench.store.insert([new_job(limit=Limit(f"{count}-{i}", REJECT, 1)) for i in range(count)])


async def limited(bench: Workbench, count: int) -> list[str]:
    jobs = [new_job(limit=Limit(f"{count}-{i}", QUEUE, 1)) for i in range(count)]
    await bench.store.insert(jobs)
    return [job.id for job in jobs]


async def blocked(bench: Workbench, count: int) -> int:
    """This many jobs held behind one that runs under their key."""
    await bench.enqueue(count + 1, limit=Limit("g", QUEUE, 1))
    await bench.claim_one()
    return count


async def hold(bench: Workbench, count: int) -> None:
    assert await bench.claim(count) == []


async def claimed_limited(bench: Workbench, count: int) -> list[Claimed]:
    await limited(bench, count)
    return await bench.claim(count)


async def insert_replacing(bench: Workbench, ids: list[str]) -> None:
    jobs = [new_job(limit=Limit(f"{len(ids)}-{i}", REPLACE, 1)) for i in range(len(ids))]
    await bench.store.insert(jobs)
    assert len([job for job in await bench.store.get(ids) if job and job.status == "cancelled"]) == len(ids)


async def with_keys(bench: Workbench, count: int) -> int:
    await insert_with_keys(bench, count)
    return count


async def insert_with_deadlines(bench: Workbench, count: int) -> None:
    await bench.store.insert([new_job(expires_in_ms=HOUR) for _ in range(count)])


async def replaceable(bench: Workbench, count: int) -> list[str]:
    jobs = [new_job(limit=Limit(f"{count}-{i}", REPLACE, 1)) for i in range(count)]
    await bench.store.insert(jobs)
    return [job.id for job in jobs]


async def each_with_one_behind_it(bench: Workbench, count: int) -> list[Claimed]:
    """Every key runs one and holds one."""
    await limited(bench, count)
    jobs = await bench.claim(count)
    await limited(bench, count)
    assert await bench.claim(count) == []
    return jobs


async def overdue_count(bench: Workbench, count: int) -> int:
    await overdue(bench, count)
    return count


async def expire(bench: Workbench, count: int) -> None:
    assert await bench.claim(count) == []
    assert (await bench.store.stats()).counts["expired"] == count


async def rated(bench: Workbench, count: int) -> list[str]:
    await bench.store.write_records([], topics=[TopicOptions("mail", 10**6, SECOND)])
    return await bench.enqueue(count)


async def reschedule(bench: Workbench, ids: list[str]) -> None:
    await steering.reschedule(bench.store, ids, priority=75)


def notes(count: int) -> list[RecordWrite]:
    return [RecordWrite("note", f"{count}-{i}", f"{count}-{i}", "{}") for i in range(count)]


async def written_records(bench: Workbench, count: int) -> list[RecordWrite]:
    writes = notes(count)
    await bench.store.write_records(writes)
    return writes


def named(writes: list[RecordWrite]) -> list[tuple[str, str]]:
    return [(one.kind, one.id) for one in writes]


async def get_records(bench: Workbench, writes: list[RecordWrite]) -> None:
    assert None not in await bench.store.get_records(named(writes))


async def write_records(bench: Workbench, count: int) -> None:
    assert None not in await bench.store.write_records(notes(count))


async def change_records(bench: Workbench, writes: list[RecordWrite]) -> None:
    assert None not in await bench.store.write_records([one._replace(version=1, body="[]") for one in writes])


async def delete_records(bench: Workbench, writes: list[RecordWrite]) -> None:
    assert await bench.store.delete_records(named(writes)) == len(writes)


async def history(bench: Workbench, count: int) -> tuple[Any, int]:
    cursor = (await bench.store.changes()).cursor
    await failed(bench, count)
    await claimed(bench, count)
    return cursor, count


async def read_changes(bench: Workbench, seen: tuple[Any, int]) -> None:
    cursor, count = seen
    assert len((await bench.store.changes(cursor, 100_000)).events) == 4 * count


# -- jobs with steps -------------------------------------------------------------------------------

FLOW = (NewStep("fetch", "Fetch"), NewStep("approve", "Approve"), NewStep("publish", "Publish"))
LARGE = '"' + "x" * 5_000 + '"'
"""A result that is kept apart."""


def step(name: str, state: StepState = StepState.COMPLETED, **fields: Any) -> StepWrite:
    return StepWrite(name, fields.pop("key", ""), state, 0, 1, started_ago_ms=20, **fields)


def step_writes(job: Claimed) -> Checkpoint:
    """A declared step, and one that the handler makes."""
    steps = (step("fetch", result="1"), step("page", key="1", result=LARGE), step("publish", StepState.PROCESSING))
    return Checkpoint(job.n, job.token, 5, steps, (StepKey("approve"),))


async def flows(bench: Workbench, count: int) -> list[Claimed]:
    await bench.store.insert([new_job(steps=FLOW) for _ in range(count)])
    return await bench.claim(count)


async def flows_on_their_way(bench: Workbench, count: int) -> list[Claimed]:
    jobs = await flows(bench, count)
    await checkpoint(bench, jobs)
    return jobs


async def flows_with_early_answers(bench: Workbench, count: int) -> list[Claimed]:
    jobs = await flows(bench, count)
    await answer(bench, jobs)
    return jobs


async def waiting_flows(bench: Workbench, count: int) -> list[Claimed]:
    jobs = await flows_on_their_way(bench, count)
    await park(bench, jobs)
    return jobs


async def overdue_flows(bench: Workbench, count: int) -> None:
    await waiting_flows(bench, count)
    await bench.pass_time(HOUR)


async def orphaned_flows(bench: Workbench, count: int) -> None:
    jobs = await flows_on_their_way(bench, count)
    await bench.store.close_lease(jobs[0].lease)


async def failed_flows(bench: Workbench, count: int) -> list[str]:
    jobs = await flows_on_their_way(bench, count)
    await answer(bench, jobs)
    await settle(Failed("Boom", "Boom"))(bench, jobs)
    return [job.id for job in jobs]


async def one_flow_with_many_runs(bench: Workbench, count: int) -> Claimed:
    [job] = await flows(bench, 1)
    runs = tuple(step("page", key=str(i), result=LARGE if i % 2 else "1") for i in range(count))
    assert await bench.store.checkpoint(job.lease, [Checkpoint(job.n, job.token, 5, runs)]) == []
    return job


async def runs_and_their_number(bench: Workbench, count: int) -> tuple[Claimed, int]:
    return await one_flow_with_many_runs(bench, count), count


async def checkpoint(bench: Workbench, jobs: list[Claimed]) -> None:
    assert await bench.store.checkpoint(jobs[0].lease, [step_writes(job) for job in jobs]) == []


async def answer(bench: Workbench, jobs: list[Claimed]) -> None:
    answers = await bench.store.answer([Answer(job.id, "approve", result='"yes"') for job in jobs])
    assert answers == [None] * len(jobs)


async def park(bench: Workbench, jobs: list[Claimed]) -> None:
    waits = Effects(steps=(step("approve", StepState.WAITING, until_ms=MINUTE, schema="{}"),))
    assert await bench.store.settle([settlement(job, Parked("approve"))._replace(effects=waits) for job in jobs]) == []


async def settle_with_steps(bench: Workbench, jobs: list[Claimed]) -> None:
    effects = Effects(steps=(step("publish", result="1"),), consumed=(StepKey("approve"),))
    endings = [settlement(job, Completed("1"))._replace(effects=effects) for job in jobs]
    assert await bench.store.settle(endings) == []


async def read_claimed_steps(bench: Workbench, jobs: list[Claimed]) -> None:
    assert len(await bench.store.claimed_steps([job.n for job in jobs])) == len(jobs)


async def read_step_page(bench: Workbench, there: tuple[Claimed, int]) -> None:
    job, count = there
    page = await bench.store.steps(job.id, "page", 0, count)
    assert page is not None
    assert len(page.items) == count


async def read_step_results(bench: Workbench, there: tuple[Claimed, int]) -> None:
    job, count = there
    assert len(await bench.store.step_results(job.n, [StepKey("page", str(i)) for i in range(count)])) == count


def requeue(payload: str | None = None) -> Callable[[Workbench, list[str]], Awaitable[None]]:
    async def act(bench: Workbench, ids: list[str]) -> None:
        answers = await bench.store.steer(ids, lambda _: Requeued(mode="all", payload=payload))
        assert {getattr(job, "status", job) for job in answers} == {Status.PENDING}

    return act


async def advance_waits(bench: Workbench, _: None) -> None:
    assert (await bench.store.advance()).promoted > 0


# -- leases of external workers -------------------------------------------------------------


async def split(bench: Workbench, jobs: list[Claimed]) -> None:
    assert len(await bench.store.split_lease(jobs[0].lease, jobs, HOUR)) == len(jobs)


def ids_of(jobs: list[Claimed]) -> list[str]:
    return [job.id for job in jobs]


VERBS = {
    "insert what waits for its key": Verb(nothing, limited),
    "insert replacing": Verb(replaceable, insert_replacing),
    "insert what is there already": Verb(with_keys, insert_with_keys),
    "insert with deadlines": Verb(nothing, insert_with_deadlines),
    "claim what has expired": Verb(overdue_count, expire),
    "claim under a rate": Verb(rated, claim),
    "settle cancelled": Verb(cancelling, settle(CancelAcknowledged("stopped"))),
    "settle what others wait for": Verb(each_with_one_behind_it, settle(Completed())),
    "reschedule": Verb(pending, reschedule),
    "get records": Verb(written_records, get_records),
    "write records": Verb(nothing, write_records),
    "change records": Verb(written_records, change_records),
    "delete records": Verb(written_records, delete_records),
    "changes": Verb(history, read_changes),
    "insert with keys": Verb(nothing, insert_with_keys),
    "insert under limits": Verb(nothing, insert_rejecting),
    "claim limited": Verb(limited, claim),
    "claim what has to be held": Verb(blocked, hold),
    "settle limited": Verb(claimed_limited, settle(Completed())),
    "cancel limited": Verb(limited, lambda bench, ids: steering.cancel(bench.store, ids, "")),
    "insert": Verb(nothing, insert),
    "insert jobs that differ": Verb(nothing, insert_unlike),
    "claim": Verb(pending, claim),
    "settle completed": Verb(claimed, settle(Completed())),
    "settle completed with results": Verb(claimed, settle(Completed('{"sent": 1}'))),
    "settle with keys and deadlines": Verb(claimed_with_keys, settle(Completed())),
    "settle failed": Verb(claimed, settle(Failed("Boom", "Boom"))),
    "settle retrying": Verb(claimed, settle(Failed("Boom", "Boom", HOUR))),
    "settle snoozed": Verb(claimed, settle(Snoozed(HOUR))),
    "settle released": Verb(claimed, settle(Released())),
    "settle what is lost": Verb(claimed, settle_what_is_lost),
    "touch": Verb(claimed, touch),
    "renew": Verb(cancelling, renew),
    "release_unknown": Verb(claimed, lambda bench, jobs: bench.store.release_unknown(jobs[0].lease, [])),
    "held_by": Verb(claimed, lambda bench, jobs: bench.store.held_by([job.id for job in jobs])),
    "advance": Verb(due, lambda bench, _: bench.store.advance()),
    "reap a worker": Verb(orphaned, lambda bench, _: bench.store.reap(LEASES_ONLY)),
    "reap many workers": Verb(claimed_one_by_one, lambda bench, _: bench.store.reap(LEASES_ONLY)),
    "reap cancels": Verb(cancelling, lambda bench, _: bench.store.reap(Graces(SECOND))),
    "advance deadlines": Verb(overdue, lambda bench, _: bench.store.advance()),
    "cancel pending": Verb(pending, lambda bench, ids: steering.cancel(bench.store, ids, "")),
    "cancel running": Verb(claimed, lambda bench, jobs: steering.cancel(bench.store, [job.id for job in jobs], "")),
    "requeue": Verb(failed, lambda bench, ids: steering.requeue(bench.store, ids)),
    "release": Verb(claimed, lambda bench, jobs: steering.release(bench.store, [job.id for job in jobs])),
    "delete pending": Verb(pending, lambda bench, ids: steering.delete(bench.store, ids)),
    "delete ended": Verb(failed, lambda bench, ids: steering.delete(bench.store, ids)),
    "get": Verb(pending, lambda bench, ids: bench.store.get(ids)),
    "prune": Verb(ended_long_ago, lambda bench, _: bench.store.prune(HOUR)),
    "split_lease": Verb(claimed, split),
}

VERBS_OF_STEPS: dict[str, Verb] = {
    "claim with steps": Verb(nothing, flows),
    "checkpoint": Verb(flows, checkpoint),
    "checkpoint that uses answers": Verb(flows_with_early_answers, checkpoint),
    "answer early": Verb(flows, answer),
    "answer what waits": Verb(waiting_flows, answer),
    "settle with steps": Verb(flows_with_early_answers, settle_with_steps),
    "settle parked": Verb(flows_on_their_way, park),
    "settle parked with an answer": Verb(flows_with_early_answers, park),
    "settle released with steps": Verb(flows_on_their_way, settle(Released())),
    "reap with steps": Verb(orphaned_flows, lambda bench, _: bench.store.reap(LEASES_ONLY)),
    "advance waits": Verb(overdue_flows, advance_waits),
    "cancel what waits": Verb(waiting_flows, lambda bench, jobs: steering.cancel(bench.store, ids_of(jobs))),
    "requeue with steps": Verb(failed_flows, requeue()),
    "requeue with payloads": Verb(failed_flows, requeue('{"to":"bob"}')),
    "delete with steps": Verb(failed_flows, lambda bench, ids: steering.delete(bench.store, ids)),
    "claimed_steps": Verb(flows_on_their_way, read_claimed_steps),
    "steps": Verb(runs_and_their_number, read_step_page),
    "step_results": Verb(runs_and_their_number, read_step_results),
}
VERBS_OF_RECORDS = [verb for verb in VERBS if "records" in verb]
VERBS |= VERBS_OF_STEPS


@pytest.mark.parametrize("verb", VERBS)
async def test_a_batch_eight_times_as_large_costs_no_more_per_job(bench: Workbench, meter: Meter, verb: str) -> None:
    await compare(bench, meter, verb)


async def test_a_batch_of_jobs_that_replace_each_other_takes_as_few_statements_as_two(bench: Workbench) -> None:
    """Each of them replaces the one before it."""

    async def statements(count: int) -> int:
        jobs = [new_job(limit=Limit(f"r{count}", REPLACE, 1)) for _ in range(count)]
        counted: list[str] = []
        assert isinstance(bench.store, SqlStore)
        await bench.store.transact(lambda: _noted(scripts.insert(jobs, True), counted))
        assert await bench.claimable() == [jobs[-1].id]
        await steering.cancel(bench.store, [jobs[-1].id])
        return len(counted)

    await statements(3)  # registers the lane
    assert await statements(50) == await statements(2)


def _noted(script: scripts.Script[Any], names: list[str]) -> scripts.Script[Any]:
    """The same script; the names of its statements are noted."""
    answer: Any = None
    while True:
        try:
            name, rows = script.send(answer)
        except StopIteration as stop:
            return stop.value
        names.append(name)
        answer = yield name, rows


# Verbs that join the rows of a batch to a table that changes its size all the time.
AT_RISK = [
    "settle completed",
    "settle completed with results",
    "settle failed",
    "settle retrying",
    "touch",
    "release",
    "reap a worker",
    "cancel running",
    "requeue",
    "advance",
    "advance deadlines",
    "claim limited",
    "settle limited",
    "split_lease",
    *VERBS_OF_STEPS,
    *VERBS_OF_RECORDS,
]


NEARLY_EMPTY = [(verb, rows) for verb in AT_RISK for rows in (0, 1, 3)]
NEARLY_EMPTY += [(verb, 0) for verb in VERBS if verb not in AT_RISK]


@pytest.mark.turns("verb")
@pytest.mark.parametrize(("verb", "rows"), NEARLY_EMPTY)
async def test_even_if_the_planner_saw_the_tables_nearly_empty(
    bench: Workbench, meter: Meter, verb: str, rows: int
) -> None:
    """A plan that was made for so few rows once scanned the whole table for each job of a full batch."""
    if rows:
        for make in (failed_flows, waiting_flows, flows_with_early_answers, written_records, due):
            await make(bench, rows)
        for make in (pending, claimed, failed):
            await make(bench, rows)
    await _analyse(bench)
    await _empty(bench)
    await compare(bench, meter, verb)


async def _analyse(bench: Workbench) -> None:
    """As the database itself or its owner does now and then; connections that plan afterwards know of it."""
    database = bench.database
    assert isinstance(database, RelationalDatabase)
    if database.dialect == "postgres":
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    else:
        await database.execute("ANALYZE")
    await bench.store.tidy()


async def compare(bench: Workbench, meter: Meter, verb: str) -> None:
    prepare, act = VERBS[verb]
    costs: dict[int, float] = {}
    for count in (SMALL, SMALL * FACTOR):
        there = await prepare(bench, count)
        with meter.counting():
            await act(bench, there)
        costs[count] = meter.cost / count
        await _empty(bench)
    small, large = costs.values()
    assert small > 0, "nothing was counted"
    assert large <= small * ALLOWED, f"{small:.1f} for each of {SMALL} jobs, {large:.1f} for each of {SMALL * FACTOR}"


async def _empty(bench: Workbench) -> None:
    database = bench.database
    assert isinstance(database, RelationalDatabase)
    places = (
        "ready later held parked running outcomes keys members limits wakes deadlines notes events steps step_results "
        "answers records tally jobs leases"
    )
    await database.execute(*(f"DELETE FROM {{{place}}}" for place in places.split()))
