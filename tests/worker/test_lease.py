"""The lease: kept as long as the worker lives, even if a handler blocks; lost for good when it does not."""

import asyncio
import contextlib
import fcntl
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faulty import Around, FaultyQueue
from tests.waiting import ended, event_types, for_ever, in_status, until, until_blocking, work_until_told
from tests.worker.conftest import Program, Start, StartProgram
from treadle import Context, Job, LeaseLost, Queue, StoreUnavailable, Worker
from treadle.queue import steering
from treadle.testing.workbench import LEASES_ONLY
from treadle.worker import shutdown
from treadle.worker.lease_keeper import Lease, LeaseKeeper

LEASE = "600ms"


async def reap(queue: Queue) -> None:
    """Reap all the time, faster than any leader would."""
    while True:
        await queue.store.reap(LEASES_ONLY)
        await asyncio.sleep(0.02)  # between two sweeps


@pytest.fixture
async def reaper(queue: Queue) -> Any:
    task = asyncio.create_task(reap(queue))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def leases(queue: FaultyQueue) -> list[int]:
    """The leases that workers open here, in order."""
    opened: list[int] = []
    queue.faults.after("open_lease", opened.append)
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
        await asyncio.sleep(3.5)  # longer than several leases

    await start(queue, lease="1s", maintenance=False)
    job = await ended(queue, await long.enqueue())
    assert (job.status, job.attempt) == ("completed", 1)


@pytest.mark.usefixtures("reaper")
async def test_a_clock_that_is_an_hour_off_does_not_matter(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.job
    async def long() -> None:
        await asyncio.sleep(2.5)  # longer than two leases

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    await start(queue, lease="1s")
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
    assert await job.result("60s") == 2
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
    assert await job.result("60s") == "attempt 2"


async def suspended(sleeper: Program, queue: Queue, job: Job) -> None:
    """Stop the process until its job is taken back."""
    process = psutil.Process(sleeper.pid)
    with no_writers(queue.url):
        sleeper.signal(signal.SIGSTOP)
        await until(lambda: process.status() == psutil.STATUS_STOPPED)
    await in_status(queue, job, "pending")


@contextlib.contextmanager
def no_writers(url: str) -> Iterator[None]:
    """No process is inside a write to SQLite's file, where it would keep everyone from writing if it were stopped.

    PostgreSQL ends such a transaction by itself.
    """
    if not url.startswith("sqlite"):
        yield
        return
    with Path(f"{url.removeprefix('sqlite:///')}.lock").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("topic", ["wait", "wait_in_thread"])
@pytest.mark.usefixtures("reaper")
async def test_a_worker_that_was_suspended_past_its_lease_is_refused_and_its_handler_told(
    queue: Queue, program: StartProgram, files: dict[str, str], topic: str
) -> None:
    sleeper = program(lease=LEASE, maintenance=False)
    job = await queue.enqueue(topic, files)
    await started(files)
    await suspended(sleeper, queue, job)
    Path(files["started"]).unlink()
    sleeper.signal(signal.SIGCONT)
    await until(lambda: Path(files["told"]).exists())
    await started(files)  # it goes on with a new lease, and finds the job again
    Path(files["gate"]).touch()
    assert await job.result("60s") == "attempt 2"
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
            await for_ever()
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
        try:
            work_until_told(ctx)
        except LeaseLost:
            told.append("thread")
            raise

    worker = await start(queue, lease="900ms", reap_interval="50ms")
    jobs = [await on_loop.enqueue(), await in_thread.enqueue()]
    await until(lambda: len(running) == 2)
    await queue.store.close_lease(leases[0])
    assert [await job.result("60s") for job in jobs] == ["again", "again"]
    await until(lambda: len(told) == 2)  # a thread learns of it when it asks, perhaps after the second run
    assert sorted(told) == ["loop", "thread"]
    assert [(await job.refresh()).attempt for job in jobs] == [2, 2]
    assert len(leases) == 2
    assert worker.metrics.lease_losses == 2


async def test_a_worker_with_a_lost_lease_claims_on_with_a_new_one(
    queue: Queue, start: Start, leases: list[int]
) -> None:
    @queue.job
    async def quick() -> str:
        return "done"

    await start(queue)
    assert await (await quick.enqueue()).result("60s") == "done"
    await queue.store.close_lease(leases[0])
    assert await (await quick.enqueue()).result("60s") == "done"
    assert len(leases) == 2


async def test_a_worker_without_a_lease_asks_until_it_has_one_and_does_nothing_else(
    queue: FaultyQueue, start: Start
) -> None:
    @queue.job
    async def quick() -> str:
        return "done"

    refusals = 3
    leases: list[int] = []
    given_back: list[int] = []

    async def open_lease(call: Around, *arguments: Any) -> Any:
        nonlocal refusals
        if leases and refusals:
            refusals -= 1
            await quick.enqueue()  # its hint does not make the worker forget that it has no lease
            raise StoreUnavailable("away")
        leases.append(await call(*arguments))
        return leases[-1]

    queue.faults.around("open_lease", open_lease)
    await start(queue, lease="150ms", maintenance=False)
    await (await quick.enqueue()).result("60s")
    await queue.store.close_lease(leases[0])
    await until(lambda: refusals < 3)
    queue.faults.before("release_unknown", lambda lease, tokens: given_back.append(lease))
    assert await (await quick.enqueue()).result("60s") == "done"
    assert len(leases) == 2
    assert leases[0] not in given_back


async def test_a_loss_that_is_noticed_twice_is_one_loss(queue: FaultyQueue, start: Start, leases: list[int]) -> None:
    """Here by a heartbeat, while a claim that will say the same is under way."""
    gone, asking, told = threading.Event(), asyncio.Event(), asyncio.Event()
    loop, claiming, armed = asyncio.get_running_loop(), 0, False

    @queue.job
    def anxious(ctx: Context) -> int:
        assert gone.wait(15)
        try:
            ctx.heartbeat()
        except LeaseLost:
            loop.call_soon_threadsafe(told.set)
            raise
        return ctx.attempt

    async def claim(call: Around, *arguments: Any) -> Any:
        nonlocal claiming
        if armed and not told.is_set():
            asking.set()
            await told.wait()
        claiming += 1
        try:
            return await call(*arguments)
        finally:
            claiming -= 1

    queue.faults.around("claim", claim)
    worker = await start(queue, slots=2, reap_interval="50ms")
    first = await anxious.enqueue()
    await in_status(queue, first, "processing")
    await until(lambda: not claiming)
    armed = True
    second = await anxious.options(delay=0).enqueue()
    await asyncio.wait_for(asking.wait(), 60)
    await queue.store.close_lease(leases[0])
    gone.set()
    assert [await job.result("60s") for job in (first, second)] == [2, 1]
    assert worker.metrics.lease_losses == 1
    assert len(leases) == 2


async def test_news_of_a_job_that_come_back_as_lost_after_its_lease_are_no_second_loss(
    queue: FaultyQueue, start: Start, leases: list[int]
) -> None:
    asking, known, answered, let_go = (asyncio.Event() for _ in range(4))

    @queue.job
    async def stubborn(ctx: Context) -> int:
        if not ctx.is_retry:
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
            known.set()
            await let_go.wait()
        return ctx.attempt

    async def touch(call: Around, *arguments: Any) -> Any:
        asking.set()
        await known.wait()
        lost = await call(*arguments)
        answered.set()
        return lost

    worker = await start(queue, reap_interval="50ms")
    job = await stubborn.enqueue()
    await in_status(queue, job, "processing")
    queue.faults.around("touch", touch)
    await asyncio.wait_for(asking.wait(), 60)
    await queue.store.close_lease(leases[0])
    await stubborn.options(delay=0).enqueue()  # its claim shows that the lease is lost
    await asyncio.wait_for(answered.wait(), 60)
    await until(lambda: len(leases) == 2)
    let_go.set()
    assert await job.result("60s") == 2
    assert worker.metrics.lease_losses == 1


async def test_jobs_that_come_with_a_lease_that_is_lost_by_now_are_not_begun(
    queue: FaultyQueue, start: Start, leases: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def claim(call: Around, *arguments: Any) -> Any:
        answer = await call(*arguments)
        if answer.jobs and len(leases) == 1:
            await queue.store.close_lease(leases[0])
            await until(lambda: len(leases) == 2)
        return answer

    queue.faults.around("claim", claim)

    @queue.job
    async def quick(ctx: Context) -> int:
        return ctx.attempt

    await start(queue, lease="300ms", reap_interval="50ms")
    assert await (await quick.enqueue()).result("60s") == 2
    assert any("came with a lease that is lost by now" in record.message for record in caplog.records)


async def test_a_job_that_an_operator_released_is_taken_from_its_handler(queue: Queue, start: Start) -> None:
    told = asyncio.Event()

    @queue.job
    async def long(ctx: Context) -> int:
        if ctx.attempt == 1 and not told.is_set():
            try:
                await for_ever()
            except asyncio.CancelledError:
                told.set()
                raise
        return ctx.attempt

    worker = await start(queue, lease="600ms", slots=1)
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    await steering.release(queue.store, [job.id])
    assert await job.result("60s") == 1
    assert told.is_set()
    assert worker.metrics.lease_losses == 1


async def test_the_lease_survives_a_store_that_is_away_for_less_than_its_length(
    queue: FaultyQueue, start: Start
) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> None:
        await let_go.wait()

    worker = await start(queue, lease="900ms", reap_interval="50ms")
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    failures = queue.stores[-1].fail("renew", times=3)
    await until(lambda: failures.left == 0)
    let_go.set()
    job = await ended(queue, job)
    assert (job.status, job.attempt) == ("completed", 1)
    assert worker.metrics.lease_losses == 0


async def test_an_outage_longer_than_the_lease_costs_no_running_job(
    queue: FaultyQueue, start: Start, leases: list[int]
) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> None:
        await let_go.wait()

    worker = await start(queue, lease="300ms", maintenance=False)
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    failures = queue.stores[-1].fail("renew", times=6)
    await until(lambda: failures.left == 0)
    await long.options(delay=0).enqueue()  # a claim finds that the lease's time is over
    let_go.set()
    job = await ended(queue, job)
    assert (job.status, job.attempt) == ("completed", 1)
    assert (worker.metrics.lease_losses, len(leases)) == (0, 1)


async def test_a_lease_that_was_taken_back_while_the_keeper_could_not_renew_it_is_given_up(
    queue: FaultyQueue, start: Start, leases: list[int]
) -> None:
    told = asyncio.Event()

    async def renew(call: Around, lease: int, lease_ms: int) -> Any:
        if lease == leases[0]:
            raise StoreUnavailable("away")
        return await call(lease, lease_ms)

    @queue.job
    async def long(ctx: Context) -> int:
        if not ctx.is_retry:
            try:
                await for_ever()
            finally:
                told.set()
        return ctx.attempt

    await start(queue, lease="300ms", reap_interval="50ms")
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    queue.stores[-1].around("renew", renew)
    await asyncio.wait_for(told.wait(), 60)
    assert await job.result("60s") == 2
    assert len(leases) == 2


async def test_a_poison_job_expires_after_its_attempts_and_its_neighbours_live(
    queue: Queue, start: Start, program: StartProgram
) -> None:
    job = await queue.enqueue("poison", max_attempts=2)
    for _ in range(2):
        victim = program(lease=LEASE, reap_interval="100ms")
        assert await victim.exit_code() == 66
    neighbour = await queue.enqueue("echo", {"x": 1})

    program(lease=LEASE, reap_interval="100ms")
    assert (await neighbour.result("60s"))["x"] == 1
    job = await ended(queue, job)
    assert (job.status, job.attempt, job.error_type) == ("expired", 2, "WorkerLost")
    assert "worker lost" in (job.last_error or "")


# -- the keeper ----------------------------------------------------------------------------------------


async def test_a_worker_says_that_its_keeper_cannot_open_the_database_and_can_be_stopped(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue, "new_store", Queue("sqlite:////proc/nowhere/jobs.db").new_store)
    monkeypatch.setattr(shutdown, "LAST_WRITES_S", 0.2)
    worker = Worker(queue)
    running = asyncio.create_task(worker.run())
    await until(lambda: any("nowhere" in record.message for record in caplog.records))
    worker.stop()
    async with asyncio.timeout(60):
        await running


async def test_a_worker_says_that_its_keeper_got_no_thread(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    original = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "treadle-lease-keeper":
            raise RuntimeError("can't start new thread")
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await Worker(queue).run()


async def test_a_handler_that_blocks_the_event_loop_is_told_of(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.job
    async def block() -> bool:
        until_blocking(lambda: any("blocked the event loop" in record.message for record in caplog.records))
        return True

    await start(queue, lease="150ms", maintenance=False)
    assert await (await block.enqueue()).result("60s")


def test_the_keeper_ends_when_its_workers_loop_is_gone(sqlite_url: str) -> None:
    async def leave_without_a_word() -> threading.Thread:
        async with Queue(sqlite_url) as queue:
            lease = Lease(await queue.store.open_lease("ada", 60), time.monotonic() + 60)
            keeper = LeaseKeeper(queue.new_store, 60, lambda _: None, lambda _: None)
            await keeper.start()
            keeper.keep(lease)
            return keeper._thread

    thread = asyncio.run(leave_without_a_word())
    thread.join(15)
    assert not thread.is_alive()
