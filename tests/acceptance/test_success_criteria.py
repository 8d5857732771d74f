"""Seed 000, success criteria. The benchmark measures latency and throughput; here is what makes them possible."""

import asyncio
import contextlib
import functools
import tomllib
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.conftest import Start, StartProgram, Travel
from tests.acceptance.program import GATE, runs
from tests.waiting import after_failures, in_status, until
from treadle import Context, Queue, Retry, Worker
from treadle.store.sqlite.writer import Writer
from treadle.store.values import Wants

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def round_trips(monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[list[str]]:
    """What goes to the database: statements on PostgreSQL, transactions on SQLite."""
    seen: list[str] = []
    with monkeypatch.context() as patch:
        if url.startswith("postgres"):
            for name in ("execute", "fetch", "fetchrow", "fetchval"):
                _note_statements(patch, name, seen)
        else:
            _note_transactions(patch, seen)
        yield seen


def _note_statements(patch: pytest.MonkeyPatch, name: str, seen: list[str]) -> None:
    original = getattr(asyncpg.Connection, name)

    async def noting(self: Any, query: str, *values: Any, **options: Any) -> Any:
        if "NOTIFY" not in query:  # after the commit, on a separate connection, so no call waits for it
            seen.append(query)
        return await original(self, query, *values, **options)

    patch.setattr(asyncpg.Connection, name, noting)


def _note_transactions(patch: pytest.MonkeyPatch, seen: list[str]) -> None:
    original = Writer._transaction

    def noting(self: Any, *args: Any) -> Any:
        seen.append("transaction")
        return original(self, *args)

    patch.setattr(Writer, "_transaction", noting)


async def test_sc_001_an_enqueue_is_one_round_trip(queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.register("mail", lambda: None)
    await queue.enqueue("mail")
    with round_trips(monkeypatch, url) as seen:
        await queue.enqueue("mail", {"n": 1})
        assert len(seen) == 1
        await asyncio.gather(*(queue.enqueue("mail", {"n": n}) for n in range(100)))
        assert len(seen) == 3  # the first went alone, the other 99 together


async def test_sc_002_a_claim_is_one_round_trip_however_many_jobs_it_brings(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue_many("mail", [{}] * 500)
    store = queue.store
    lease = await store.open_lease("w", 60_000)
    await store.claim(lease, Wants(["mail"], [], 1, 1))
    with round_trips(monkeypatch, url) as seen:
        assert len((await store.claim(lease, Wants(["mail"], [], 10, 10))).jobs) == 10
        assert len(seen) == 1
        assert len((await store.claim(lease, Wants(["mail"], [], 400, 400))).jobs) == 400
        assert len(seen) == 2


async def test_sc_003_a_hundred_concurrent_workers_run_every_job_exactly_once(queue: Queue) -> None:
    ran: Counter[str] = Counter()
    all_at_work = asyncio.Barrier(100)

    @queue.job
    async def mail(ctx: Context) -> None:
        ran[ctx.job_id] += 1
        if ran.total() <= 100:
            await all_at_work.wait()

    jobs = await queue.enqueue_many("mail", [{"n": n} for n in range(1000)])
    workers = [Worker(queue, slots=1, maintenance=False) for _ in range(100)]
    running = [asyncio.create_task(worker.run()) for worker in workers]

    async def all_done() -> bool:
        return await queue.count(status="completed") == 1000

    await until(all_done, 90)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    assert ran == Counter(job.id for job in jobs)
    assert {(await queue.get(job.id)).attempt for job in jobs[::50]} == {1}


async def test_sc_004_every_job_of_a_crashed_worker_is_completed_by_another(
    queue: Queue, program: StartProgram, tmp_path: Path
) -> None:
    jobs = await queue.enqueue_many("wait_for_gate", [{}] * 6)
    for crashes in (1, 2):
        worker = program(lease="1s", reap_interval="50ms", slots=6)
        await until(functools.partial(have_run, tmp_path, 6 * crashes))
        worker.kill9()
    (tmp_path / GATE).touch()
    survivor = program(lease="1s", reap_interval="50ms")
    for job in jobs:
        await in_status(queue, job, "completed")
    assert Counter(id for id, _, _ in runs(tmp_path)) == Counter({job.id: 3 for job in jobs})
    assert {(await job.result())["pid"] for job in jobs} == {survivor.pid}


def have_run(folder: Path, count: int) -> bool:
    return len(runs(folder)) >= count


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_sc_005_the_default_backoff_is_exact(queue: Queue, start: Start, travel: Travel, failures: int) -> None:
    tries: list[int] = []

    @queue.job
    async def mail(ctx: Context) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt <= failures:
            raise ConnectionError("down")

    await start(queue, lease="10h")
    job = await mail.enqueue()
    for n in range(1, min(failures, 2) + 1):
        waiting = await after_failures(queue, job, n)
        assert waiting.run_at - waiting.updated_at == timedelta(minutes=4 ** (n - 1))
        await travel(60 * 4 ** (n - 1))
    await in_status(queue, job, "failed" if failures == 3 else "completed")
    assert tries == list(range(1, min(failures, 2) + 2))


def test_sc_005_the_seeds_own_numbers() -> None:
    assert [Retry().delay_ms(n) for n in (1, 2)] == [60_000, 240_000]
    assert Retry().max_attempts == 3


async def test_sc_007_a_worker_settles_many_jobs_together(
    queue: Queue, url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims and endings go in batches: a thousand jobs cost far fewer round trips than jobs."""
    queue.register("mail", noop)
    await queue.enqueue_many("mail", [{}] * 1000)
    with round_trips(monkeypatch, url) as seen:
        await start(queue)

        async def all_done() -> bool:
            return await queue.count(status="completed") == 1000

        await until(all_done)
    writes = [statement for statement in seen if "count(*)" not in statement]
    assert len(writes) < 500


async def noop() -> None: ...


def test_sc_008_the_coverage_that_make_test_demands_is_more_than_80_percent() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["coverage"]["report"]["fail_under"] > 80
    assert "--cov" in (ROOT / "Makefile").read_text()
