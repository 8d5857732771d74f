"""The lease: kept while the worker lives, whatever its handlers do; lost when it does not, and then for good."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Start, StartProgram
from tests.worker.waiting import ended, event_types, in_status, until
from treadle import Context, LeaseLost, Queue, StoreUnavailable

LEASE = "600ms"


async def reap(queue: Queue) -> None:
    """Sweep all the time, as the sharpest leader would."""
    while True:
        await queue.store.reclaim()
        await asyncio.sleep(0.02)


@pytest.fixture
async def reaper(queue: Queue) -> Any:
    task = asyncio.create_task(reap(queue))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def leases(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The leases that workers open here, in order."""
    opened: list[int] = []
    original = queue.store.open_lease

    async def open_lease(*arguments: Any) -> int:
        opened.append(await original(*arguments))
        return opened[-1]

    monkeypatch.setattr(queue.store, "open_lease", open_lease)
    return opened


async def started(files: dict[str, str]) -> str:
    return str(await until(lambda: Path(files["started"]).exists()))


@pytest.mark.usefixtures("reaper")
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    queue: Queue, program: StartProgram, files: dict[str, str]
) -> None:
    program(lease=LEASE, maintenance=False)
    job = await ended(queue, await queue.enqueue("block", {**files, "seconds": 2.5}), 30)
    assert (job.status, job.attempt) == ("completed", 1)
    assert "job:reclaimed" not in await event_types(queue, job)


@pytest.mark.usefixtures("reaper")
async def test_a_long_job_is_never_reclaimed(queue: Queue, start: Start) -> None:
    @queue.job
    async def long() -> None:
        await asyncio.sleep(2)

    await start(queue, lease="300ms", maintenance=False)
    job = await ended(queue, await long.enqueue())
    assert (job.status, job.attempt) == ("completed", 1)


@pytest.mark.usefixtures("reaper")
async def test_a_clock_that_is_an_hour_off_does_not_matter(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.job
    async def long() -> None:
        await asyncio.sleep(1)

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    await start(queue, lease="300ms")
    job = await ended(queue, await long.enqueue())
    assert (job.status, job.attempt) == ("completed", 1)


async def test_a_killed_workers_job_is_recovered_by_another(
    queue: Queue, start: Start, program: StartProgram, files: dict[str, str]
) -> None:
    doomed = program(lease=LEASE)
    job = await queue.enqueue("wait", files)
    await started(files)
    doomed.signal(signal.SIGKILL)
    await doomed.exit_code()

    @queue.job(topic="wait")
    async def take_over(ctx: Context) -> int:
        return ctx.attempt

    await start(queue, lease=LEASE, reap_interval="100ms")
    assert await job.result("20s") == 2
    assert "job:reclaimed" in await event_types(queue, job)


async def test_a_worker_that_comes_back_under_its_old_name_does_not_inherit_the_old_lease(
    queue: Queue, program: StartProgram, files: dict[str, str]
) -> None:
    doomed = program(lease=LEASE, name="ada")
    job = await queue.enqueue("wait", files)
    await started(files)
    doomed.signal(signal.SIGKILL)
    await doomed.exit_code()
    Path(files["started"]).unlink()
    program(lease=LEASE, name="ada", reap_interval="100ms")
    await started(files)
    Path(files["gate"]).touch()
    assert await job.result("20s") == "attempt 2"


@pytest.mark.parametrize("topic", ["wait", "wait_in_thread"])
@pytest.mark.usefixtures("reaper")
async def test_a_worker_that_was_suspended_past_its_lease_is_refused_and_its_handler_told(
    queue: Queue, program: StartProgram, files: dict[str, str], topic: str
) -> None:
    sleeper = program(lease=LEASE, maintenance=False)
    job = await queue.enqueue(topic, files)
    await started(files)
    sleeper.signal(signal.SIGSTOP)
    await in_status(queue, job, "pending")
    Path(files["started"]).unlink()
    sleeper.signal(signal.SIGCONT)
    await until(lambda: Path(files["told"]).exists())
    await started(files)  # it goes on with a new lease, and finds the job again
    Path(files["gate"]).touch()
    assert await job.result("20s") == "attempt 2"
    assert (await event_types(queue, job)).count("job:reclaimed") == 1


async def test_a_lost_lease_is_told_to_every_handler_and_nothing_is_settled(
    queue: Queue, start: Start, leases: list[int]
) -> None:
    told: list[str] = []
    running: list[str] = []

    @queue.job
    async def on_loop(ctx: Context) -> str:
        running.append("loop")
        if ctx.is_retry:
            return "again"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with pytest.raises(LeaseLost):
                await ctx.heartbeat()
            told.append("loop")
            raise
        return "?"

    @queue.job
    def in_thread(ctx: Context) -> str:
        running.append("thread")
        if ctx.is_retry:
            return "again"
        while True:
            try:
                ctx.check_cancelled()
            except LeaseLost:
                told.append("thread")
                raise
            time.sleep(0.005)

    worker = await start(queue, lease="900ms", reap_interval="50ms")
    jobs = [await on_loop.enqueue(), await in_thread.enqueue()]
    await until(lambda: len(running) == 2)
    await queue.store.close_lease(leases[0])
    assert [await job.result("15s") for job in jobs] == ["again", "again"]
    assert sorted(told) == ["loop", "thread"]
    assert [(await job.refresh()).attempt for job in jobs] == [2, 2]
    assert len(leases) == 2
    assert worker.metrics.lease_losses == 2


async def test_a_worker_whose_lease_is_lost_claims_on_with_a_new_one(
    queue: Queue, start: Start, leases: list[int]
) -> None:
    @queue.job
    async def quick() -> str:
        return "done"

    await start(queue)
    assert await (await quick.enqueue()).result("15s") == "done"
    await queue.store.close_lease(leases[0])
    assert await (await quick.enqueue()).result("15s") == "done"
    assert len(leases) == 2


async def test_a_job_that_an_operator_released_is_taken_from_its_handler(queue: Queue, start: Start) -> None:
    told = asyncio.Event()

    @queue.job
    async def long(ctx: Context) -> int:
        if ctx.attempt == 1 and not told.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                told.set()
                raise
        return ctx.attempt

    worker = await start(queue, lease="600ms", slots=1)
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    await queue.store.release([job.id])
    assert await job.result("15s") == 1
    assert told.is_set()
    assert worker.metrics.lease_losses == 1


async def test_the_lease_survives_a_store_that_is_away_for_less_than_its_length(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = []
    original = queue.new_store

    def new_store() -> Any:
        stores.append(original())
        return stores[-1]

    monkeypatch.setattr(queue, "new_store", new_store)
    let_go = asyncio.Event()

    @queue.job
    async def long() -> None:
        await let_go.wait()

    worker = await start(queue, lease="900ms", reap_interval="50ms")
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    failures = _fail_times(stores[-1], "extend", 3, monkeypatch)
    await until(lambda: failures.left == 0)
    let_go.set()
    job = await ended(queue, job)
    assert (job.status, job.attempt) == ("completed", 1)
    assert worker.metrics.lease_losses == 0


class _Failures:
    left = 0


def _fail_times(store: Any, method: str, times: int, monkeypatch: pytest.MonkeyPatch) -> _Failures:
    failures = _Failures()
    failures.left = times
    original = getattr(store, method)

    async def failing(*arguments: Any) -> Any:
        if failures.left:
            failures.left -= 1
            raise StoreUnavailable("away")
        return await original(*arguments)

    monkeypatch.setattr(store, method, failing)
    return failures


async def test_a_poison_job_expires_after_its_attempts_and_its_neighbours_live(
    queue: Queue, start: Start, program: StartProgram
) -> None:
    job = await queue.enqueue("poison", max_attempts=2)
    for _ in range(2):
        victim = program(lease=LEASE, reap_interval="100ms")
        assert await victim.exit_code() == 66
    neighbour = await queue.enqueue("echo", {"x": 1})

    program(lease=LEASE, reap_interval="100ms")
    assert (await neighbour.result("20s"))["x"] == 1
    job = await ended(queue, job)
    assert (job.status, job.attempt, job.error_type) == ("expired", 2, "WorkerLost")
    assert "worker lost" in (job.last_error or "")
