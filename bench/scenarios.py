"""What is measured of Treadle: each scenario takes a fresh database and returns figures by name."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bench.processes import Workers, workers
from bench.work import payload, topics
from treadle import Queue
from treadle.policy.lifecycle import Completed, decide
from treadle.store.protocol import Store
from treadle.store.values import Settlement, Wants

Figures = dict[str, float]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


async def one_at_a_time(queue: Queue, seconds: float) -> tuple[float, list[float]]:
    took: list[float] = []
    started = time.perf_counter()
    while (t := time.perf_counter()) - started < seconds:
        await queue.enqueue("noop", payload())
        took.append(time.perf_counter() - t)
    return len(took) / (time.perf_counter() - started), took


async def enqueue(url: str, seconds: float) -> Figures:
    """One at a time, by a hundred concurrent callers, and in bulk."""
    queue = Queue(url)
    queue.register("noop", _nothing)
    async with queue:
        await one_at_a_time(queue, 0.3)
        rate, took = await one_at_a_time(queue, seconds)

        async def caller(until: float) -> int:
            done = 0
            while time.perf_counter() < until:
                await queue.enqueue("noop", payload())
                done += 1
            return done

        started = time.perf_counter()
        together = sum(await asyncio.gather(*(caller(started + seconds) for _ in range(100))))
        together_rate = together / (time.perf_counter() - started)
        bulk, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            await queue.enqueue_many("noop", [payload() for _ in range(1000)])
            bulk += 1000
        bulk_rate = bulk / (time.perf_counter() - started)
    return {
        "enqueue one /s": rate,
        "enqueue p50 ms": percentile(took, 0.5) * 1e3,
        "enqueue p99 ms": percentile(took, 0.99) * 1e3,
        "enqueue, 100 callers /s": together_rate,
        "enqueue_many /s": bulk_rate,
    }


async def _nothing(ctx: Any, job: dict[str, Any]) -> None: ...


async def load(url: str, jobs: int, topic_count: int = 1) -> None:
    """Jobs of one topic, or of several in turn, 200 at a time."""
    queue = Queue(url)
    names = topics(topic_count)
    for topic in names:
        queue.register(topic, _nothing)
    batch = 1000 if topic_count == 1 else 200
    async with queue:
        for number, start in enumerate(range(0, jobs, batch)):
            topic = names[number % topic_count]
            await queue.enqueue_many(topic, [payload() for _ in range(min(batch, jobs - start))])
        await settle_disk(queue.store)


async def settle_disk(store: Store) -> None:
    """VACUUM and CHECKPOINT, so that no run pays for the loading of another."""
    if hasattr(store, "pools"):
        async with store.pools.acquire() as connection:
            await connection.execute("VACUUM ANALYZE", timeout=3600)
            await connection.execute("CHECKPOINT", timeout=3600)
    else:
        await store.read("PRAGMA wal_checkpoint(TRUNCATE)", [])


async def remaining(store: Any) -> int:
    """Jobs in the queue or running; what is due in the future does not count, nor what others left there."""
    schema = "treadle." if hasattr(store, "pools") else "treadle_"
    rows = await store.read(
        f"SELECT (SELECT count(*) FROM {schema}ready r JOIN {schema}lanes l ON l.lane = r.lane "
        f"WHERE l.topic LIKE 'noop%') + (SELECT count(*) FROM {schema}running)",
        [],
    )
    return int(rows[0][0])


async def drain(
    url: str, folder: Path, jobs: int, server_cpu: Callable[[], float], limit: float = 60, **options: Any
) -> Figures:
    """From the first handler's start until the database shows no unfinished job."""
    count = options.pop("processes", 1)
    queue = Queue(url)
    async with queue:
        store = queue.store
        before = server_cpu()
        with workers(folder, url, count, **options) as group:
            group.ready()
            cpu = group.cpu()
            deadline = time.monotonic() + limit
            while group.read()[0] < jobs and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            while await remaining(store) and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
            ended = time.time()
            done, first, _ = group.read()
            figures = {
                "drain /s": done / (ended - first),
                "worker us/job": (group.cpu() - cpu) / done * 1e6,
                "server us/job": (server_cpu() - before) / done * 1e6,
                "worker MB": group.memory(),
                "left": float(await remaining(store)),
            }
    return figures


async def pickup(url: str, folder: Path, jobs: int) -> Figures:
    """An idle worker in another process, one job every 50 ms: from before the call to the handler's start."""
    queue = Queue(url)
    queue.register("noop", _nothing)
    async with queue:
        with workers(folder, url, 1, latencies=True) as group:
            group.ready()
            await asyncio.sleep(1)
            for _ in range(jobs + 10):
                await queue.enqueue("noop", payload())
                await asyncio.sleep(0.05)
            await _until(lambda: group.read()[0] >= jobs + 10)
            took = group.latencies()[10:]
    return {"pick-up p50 ms": percentile(took, 0.5) * 1e3, "pick-up p99 ms": percentile(took, 0.99) * 1e3}


async def pickup_here(url: str, jobs: int) -> Figures:
    """The same inside one process."""
    took: list[float] = []
    queue = Queue(url)

    async def noop(ctx: Any, job: dict[str, Any]) -> None:
        took.append(time.time() - job["t"])

    queue.register("noop", noop)
    async with queue:
        from treadle import Worker

        worker = Worker(queue, slots=10)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(1)
        for _ in range(jobs + 10):
            await queue.enqueue("noop", payload())
            await asyncio.sleep(0.05)
        await _until(lambda: len(took) >= jobs + 10)
        worker.stop()
        await running
    return {"same process p50 ms": percentile(took[10:], 0.5) * 1e3}


async def delayed(url: str, folder: Path, jobs: int) -> Figures:
    """How late a delayed job starts."""
    from datetime import UTC, datetime, timedelta

    queue = Queue(url)
    queue.register("noop", _nothing)
    async with queue:
        with workers(folder, url, 1, latencies=True) as group:
            group.ready()
            await asyncio.sleep(0.5)
            for i in range(jobs):
                due = datetime.now(UTC) + timedelta(seconds=1 + i * 0.01)
                job = payload()
                job["t"] = due.timestamp()
                await queue.enqueue("noop", job, run_at=due)
            await _until(lambda: group.read()[0] >= jobs)
            late = group.latencies()
    return {"delayed start p50 ms": percentile(late, 0.5) * 1e3, "delayed start p99 ms": percentile(late, 0.99) * 1e3}


async def scheduled(url: str, folder: Path, schedules: int, seconds: int) -> Figures:
    """How long after its time a slot's job is stored, with so many other schedules that are not due."""
    queue = Queue(url)
    queue.register("noop", _nothing)
    async with queue:
        for i in range(0, schedules, 100):
            await asyncio.gather(
                *(queue.schedules.create("noop", "0 0 1 1 *") for _ in range(i, min(i + 100, schedules)))
            )
        with workers(folder, url, 1) as group:
            group.ready()
            await asyncio.sleep(0.5)
            for _ in range(10):  # ten slots a second, spread over it
                await queue.schedules.create("noop", every="1s", payload=payload())
                await asyncio.sleep(0.093)
            await _until(lambda: group.read()[0] >= 10 * seconds)
        made = await queue.list(limit=1000)
    late = [(job.created_at - job.scheduled_at).total_seconds() * 1e3 for job in made if job.scheduled_at]
    return {"slot late p50 ms": percentile(late, 0.5), "slot late p99 ms": percentile(late, 0.99)}


async def _until(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("waited too long")
        await asyncio.sleep(0.02)


async def single_calls(url: str, calls: int) -> Figures:
    """p99 of one awaited enqueue and of one claim, next to the jobs that already wait in the database."""
    queue = Queue(url)
    queue.register("noop", _nothing)
    async with queue:
        store = queue.store
        lease = await store.open_lease("bench", 600_000)
        enqueues, claims = [], []
        for i in range(calls + 50):
            t = time.perf_counter()
            await queue.enqueue("noop", payload())
            t, enqueued = time.perf_counter(), time.perf_counter() - t
            claim = await store.claim(lease, Wants(["noop"], [], 1, 1))
            claimed = time.perf_counter() - t
            job = claim.jobs[0]
            await store.settle([Settlement(job, decide(job, Completed()), 0)])
            if i >= 50:
                enqueues.append(enqueued)
                claims.append(claimed)
    return {
        "enqueue p99 ms, 1M waiting": percentile(enqueues, 0.99) * 1e3,
        "claim p99 ms, 1M waiting": percentile(claims, 0.99) * 1e3,
    }


async def idle(url: str, folder: Path, count: int, seconds: float, server_cpu: Callable[[], float]) -> Figures:
    """What ten workers cost when there is nothing to do."""
    async with Queue(url) as queue:
        with workers(folder, url, count) as group:
            group.ready()
            await asyncio.sleep(6)
            store = queue.store
            cpu, server, calls = group.cpu(), server_cpu(), await _statements(store)
            await asyncio.sleep(seconds)
            used = group.cpu() - cpu + server_cpu() - server
            figures = {"idle CPU %": used / seconds * 100, "idle worker MB": group.memory()}
            if calls is not None:
                figures["idle statements /s"] = ((await _statements(store) or 0) - calls) / seconds
    return figures


async def _statements(store: Store) -> float | None:
    """Transactions that the database has ended so far (PostgreSQL only)."""
    if not hasattr(store, "pools"):
        return None
    await asyncio.sleep(1.1)  # statistics are reported at most once a second
    rows = await store.read(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()", []
    )
    return float(rows[0][0])


async def memory_growth(url: str, folder: Path, few: int, many: int) -> Figures:
    """One worker's memory after `few` jobs and after `many`."""
    queue = Queue(url)
    queue.register("noop", _nothing)
    async with queue:
        with workers(folder, url, 1) as group:
            group.ready()
            await _until(lambda: group.read()[0] >= few, 120)
            before = group.memory()
            for start in range(few, many, 1000):
                while start - group.read()[0] > 20_000:
                    await asyncio.sleep(0.01)
                await queue.enqueue_many("noop", [payload() for _ in range(1000)])
            await _until(lambda: group.read()[0] >= many, 300)
            after = group.memory()
    return {"memory before MB": before, "memory after MB": after, "memory growth %": (after / before - 1) * 100}


async def fill(url: str, kind: str, rows: int) -> None:
    """Rows by SQL, as the engine would have written them: `other` topic, `future`, `ended`, or `old`."""
    async with Queue(url) as queue:
        await queue.enqueue("filler" if kind != "waiting" else "noop", payload())
        store = queue.store
        if hasattr(store, "pools"):
            async with store.pools.acquire() as connection:
                for statement in _fill_postgres(kind, rows):
                    await connection.execute(statement, timeout=3600)
        else:
            for statement in _fill_sqlite(kind, rows):
                await store.engine.write(lambda db, sql=statement: db.execute(sql).rowcount)
        await settle_disk(store)


_BODY = json.dumps(payload(), separators=(",", ":"))


def _ended(kind: str) -> str:
    """Just now, so that retention has nothing to do with them yet, or one a millisecond a month ago."""
    now = int(time.time() * 1000)
    return str(now) if kind == "ended" else f"{now - 30 * 86_400_000} + n"


def _fill_postgres(kind: str, rows: int) -> list[str]:
    topic = "noop" if kind in ("future", "waiting") else "filler"
    run_at = "9e12::bigint" if kind == "future" else "1700000000000"
    jobs = (
        "WITH j AS (INSERT INTO treadle.jobs (id, lane, topic, run_at, created_at, max_attempts, flags, payload) "
        f"SELECT gen_random_uuid(), (SELECT lane FROM treadle.lanes LIMIT 1), '{topic}', {run_at}, 1700000000000, "
        "3, 0, "
        f"'{_BODY}' FROM generate_series(1, {rows}) RETURNING n, lane, run_at) "
    )
    if kind in ("other", "waiting"):
        return [jobs + "INSERT INTO treadle.ready SELECT lane, run_at, n, 0, 3, 0 FROM j"]
    if kind == "future":
        return [jobs + "INSERT INTO treadle.later (n, lane, run_at, attempt) SELECT n, lane, run_at, 0 FROM j"]
    return [
        jobs + "INSERT INTO treadle.outcomes (n, token, topic, status, attempt, ended_at) "
        f"SELECT n, 1, 'filler', 'completed', 1, {_ended(kind)} FROM j"
    ]


def _fill_sqlite(kind: str, rows: int) -> list[str]:
    topic = "noop" if kind in ("future", "waiting") else "filler"
    run_at = 9_000_000_000_000 if kind == "future" else 1_700_000_000_000
    insert = (
        f"WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) "
        "INSERT INTO treadle_jobs (id, lane, topic, run_at, created_at, max_attempts, flags, payload) "
        f"SELECT 'fill-' || i, (SELECT lane FROM treadle_lanes LIMIT 1), '{topic}', {run_at}, 1700000000000, 3, 0, "
        f"'{_BODY}' FROM s"
    )
    chosen = "FROM treadle_jobs WHERE id LIKE 'fill-%'"
    ended = (
        "INSERT INTO treadle_outcomes (n, token, topic, status, attempt, ended_at) "
        f"SELECT n, 1, 'filler', 'completed', 1, {_ended(kind)} {chosen}"
    )
    place = {
        "other": f"INSERT INTO treadle_ready SELECT lane, run_at, n, 0, 3, 0 {chosen}",
        "waiting": f"INSERT INTO treadle_ready SELECT lane, run_at, n, 0, 3, 0 {chosen}",
        "future": f"INSERT INTO treadle_later (n, lane, run_at, attempt) SELECT n, lane, run_at, 0 {chosen}",
        "ended": ended,
        "old": ended,
    }
    return [insert, place[kind]]


async def old_snapshot(url: str, folder: Path, held: float, window: float) -> Figures:
    """A session keeps a snapshot open, as a forgotten transaction does, while a worker drains: the rate at the
    end of that time, and again from ten seconds (or `window`) after the snapshot is gone."""
    import asyncpg

    connection = await asyncpg.connect(url)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("SELECT count(*) FROM pg_class")
    with workers(folder, url, 1) as group:
        group.ready()
        await _until(lambda: group.read()[0] > 0)
        await asyncio.sleep(held - window)
        under = await _rate(group, window)
        await transaction.rollback()
        await connection.close()
        await asyncio.sleep(window)
        after = await _rate(group, window)
    return {"drain, old snapshot /s": under, "drain, snapshot gone /s": after}


async def _rate(group: Workers, seconds: float) -> float:
    """Jobs handled per second, from now on."""
    before, started = group.read()[0], time.monotonic()
    await asyncio.sleep(seconds)
    return (group.read()[0] - before) / (time.monotonic() - started)


def run(work: Coroutine[Any, Any, Figures]) -> Figures:
    import uvloop

    return uvloop.run(work)
