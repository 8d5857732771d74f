"""How a worker stops: drained, without waiting, by signal, cancelled, and after a fork."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faulty import FaultyQueue
from tests.waiting import deaf_until, ended, event_types, for_ever, give_way, in_status, until
from tests.worker.conftest import Start, StartProgram
from treadle import Context, InvalidInput, Queue, Worker
from treadle.queue import steering
from treadle.store.values import Wants
from treadle.testing.workbench import LEASES_ONLY
from treadle.worker import shutdown, signals


@pytest.mark.every_store
async def test_a_running_job_may_finish_while_the_worker_drains(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def long() -> str:
        await let_go.wait()
        return "finished"

    worker = await start(queue, slots=1)
    job = await long.enqueue()
    await in_status(queue, job, "processing")
    worker.stop()
    left = await long.enqueue()
    let_go.set()
    assert await job.result("60s") == "finished"
    await worker.done
    assert (await left.refresh()).status == "pending"


async def test_a_buffered_job_is_released_on_shutdown_with_its_attempt(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def quick() -> None: ...

    @queue.job
    async def long() -> None:
        await let_go.wait()

    worker = await start(queue, slots=1)
    await quick.enqueue_many([{}] * 500)
    await until(lambda: worker.metrics.completed == 500)
    first, second, *_ = await long.enqueue_many([{}] * 4)
    await in_status(queue, second, "processing")
    worker.stop()
    second = await in_status(queue, second, "pending")
    assert (second.attempt, second.started_at) == (0, None)
    assert await event_types(queue, second) == ["job:enqueued", "job:released"]
    assert (await first.refresh()).status == "processing"
    let_go.set()
    assert (await ended(queue, first)).status == "completed"


async def test_what_does_not_finish_in_time_is_cancelled_and_given_back(queue: Queue, start: Start) -> None:
    cleaned_up = asyncio.Event()

    @queue.job
    async def endless() -> None:
        try:
            await for_ever()
        finally:
            cleaned_up.set()

    worker = await start(queue, drain="100ms")
    job = await endless.enqueue()
    await in_status(queue, job, "processing")
    worker.stop()
    await worker.done
    job = await job.refresh()
    assert (job.status, job.attempt) == ("pending", 0)
    assert cleaned_up.is_set()
    assert worker.metrics.released == 1


async def test_a_thread_that_does_not_finish_in_time_is_given_back_and_its_later_word_refused(
    queue: Queue, start: Start
) -> None:
    let_go, over = threading.Event(), threading.Event()

    @queue.job
    def deaf() -> str:
        let_go.wait(30)
        over.set()
        return "too late"

    worker = await start(queue, drain="50ms")
    job = await deaf.enqueue()
    await in_status(queue, job, "processing")
    worker.stop()
    await worker.done
    job = await job.refresh()
    assert (job.status, job.attempt) == ("pending", 0)
    let_go.set()
    await asyncio.to_thread(over.wait, 15)
    assert (await job.refresh()).status == "pending"


async def test_a_thread_that_looks_stops_by_itself(queue: Queue, start: Start) -> None:
    @queue.job
    def careful(ctx: Context) -> None:
        while True:
            ctx.check_cancelled()

    worker = await start(queue, drain="50ms")
    job = await careful.enqueue()
    await in_status(queue, job, "processing")
    worker.stop()
    await worker.done
    assert (await job.refresh()).status == "pending"


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_second_stop_gives_everything_back_and_says_what_was_left(
    queue: Queue, start: Start, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    begun, let_go = threading.Event(), threading.Event()

    async def in_coroutine() -> None:
        begun.set()
        await for_ever()

    def in_thread() -> None:
        begun.set()
        let_go.wait(60)

    caplog.set_level(logging.INFO, "treadle.worker")
    queue.register("endless", in_coroutine if kind == "coroutine" else in_thread)
    worker = await start(queue, drain="60s")
    job = await queue.enqueue("endless")
    await until(begun.is_set)
    worker.stop()
    assert "draining 1 job, Ctrl-C again to quit" in caplog.messages
    await give_way()
    worker.stop()
    await asyncio.wait_for(worker.done, 30)
    let_go.set()
    job = await job.refresh()
    assert (job.status, job.attempt) == ("pending", 0)
    assert f"left 1 job behind and gave it back: endless {job.id}" in caplog.messages


async def test_a_second_stop_does_not_wait_for_a_store_that_is_away_and_the_lease_runs_out(
    queue: FaultyQueue, start: Start
) -> None:
    @queue.job
    async def endless() -> None:
        await for_ever()

    worker = await start(queue, drain="60s", lease="500ms")
    job = await endless.enqueue()
    await in_status(queue, job, "processing")
    queue.faults.fail("settle")
    queue.faults.fail("close_lease")
    worker.stop()
    worker.stop()
    await asyncio.wait_for(worker.done, 30)
    assert (await job.refresh()).status == "processing"

    async def reclaimed() -> bool:
        await queue.store.reap(LEASES_ONLY)
        return (await job.refresh()).status == "pending"

    await until(reclaimed)
    assert (await job.refresh()).attempt == 1


async def test_a_worker_that_leaves_claims_nothing_more(queue: FaultyQueue, start: Start) -> None:
    """It was moving delayed jobs when it was told to leave, and what it gives back is in the queue again."""
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def held_up(call: Any, *arguments: Any) -> Any:
        asked.set()
        await let_go.wait()
        return await call(*arguments)

    @queue.job
    async def endless() -> None:
        await for_ever()

    worker = await start(queue, slots=2, drain="60s")
    job = await endless.enqueue()
    await in_status(queue, job, "processing")
    queue.faults.around("advance", held_up)
    await endless.options(delay="1h").enqueue()
    await asked.wait()
    claims = queue.faults.calls["claim"]
    worker.stop()
    worker.stop()
    await in_status(queue, job, "pending")
    let_go.set()
    await worker.done
    assert queue.faults.calls["claim"] == claims
    assert [event.type for event in await queue.events(job.id)].count("job:released") == 1


@pytest.mark.parametrize("stops", [1, 2])
async def test_a_claim_on_its_way_brings_back_no_job_of_a_worker_that_leaves(
    queue: FaultyQueue, start: Start, monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    """Jobs are given back when it has arrived, so that it can't find them."""
    monkeypatch.setattr(shutdown, "GIVE_BACK_S", 40.0)
    asked, settled = asyncio.Event(), asyncio.Event()

    async def on_its_way(call: Any, *arguments: Any) -> Any:
        asked.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(settled.wait(), 0.5)
        return await call(*arguments)

    async def settle(call: Any, *arguments: Any, **options: Any) -> Any:
        answer = await call(*arguments, **options)
        settled.set()
        return answer

    @queue.job
    async def quick() -> None: ...

    @queue.job
    async def endless() -> None:
        await for_ever()

    worker = await start(queue, slots=1, drain="1s" if stops == 1 else "60s")
    await quick.enqueue_many([{}] * 500)
    await until(lambda: worker.metrics.completed == 500)
    running, waiting = await endless.enqueue_many([{}] * 2)
    await in_status(queue, waiting, "processing")
    queue.faults.around("settle", settle)
    queue.faults.around("claim", on_its_way)
    late = await endless.enqueue()
    await asked.wait()
    for _ in range(stops):
        worker.stop()
    await worker.done
    for job in (running, waiting, late):
        assert [event.type for event in await queue.events(job.id)].count("job:released") == 1
        assert (await job.refresh()).status == "pending"
    assert [event.type for event in await queue.events(waiting.id)] == ["job:enqueued", "job:released"]


async def test_a_clean_stop_is_no_warning(queue: Queue, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle")

    @queue.job
    async def quick() -> None: ...

    worker = await start(queue)
    await (await quick.enqueue()).result("60s")
    worker.stop()
    await worker.done
    assert "draining 0 jobs, Ctrl-C again to quit" in caplog.messages
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_handler_that_will_not_stop_is_told_of_when_the_worker_has_left(queue: Queue, start: Start) -> None:
    let_go = asyncio.Event()

    @queue.job
    async def stubborn() -> None:
        await deaf_until(let_go)

    worker = await start(queue, drain="10ms")
    job = await stubborn.enqueue()
    await in_status(queue, job, "processing")
    worker.stop()
    await worker.done
    assert worker.left_behind == 1
    assert (await job.refresh()).status == "pending"
    let_go.set()


async def test_a_handler_that_will_not_stop_and_is_lost_is_not_given_back(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run elsewhere by now."""
    monkeypatch.setattr(shutdown, "CLEAN_UP_S", 0.05)
    told, let_go = asyncio.Event(), asyncio.Event()

    @queue.job
    async def stubborn() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
            told.set()
        await let_go.wait()

    worker = await start(queue, slots=1, drain=0, lease="150ms", maintenance=False)
    job = await stubborn.enqueue()
    await in_status(queue, job, "processing")
    await steering.release(queue.store, [job.id])
    (claimed,) = (
        await queue.store.claim(await queue.store.open_lease("bob", 60_000), Wants(["stubborn"], [], 1, 1))
    ).jobs
    await asyncio.wait_for(told.wait(), 60)
    worker.stop()
    await worker.done
    assert worker.left_behind == 1
    assert worker.metrics.released == 0
    (held,) = await queue.store.held_by([job.id])
    assert held
    assert held.job.token == claimed.token
    let_go.set()


async def test_a_lease_that_cannot_be_closed_runs_out_by_itself(
    queue: FaultyQueue, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    queue.faults.fail("close_lease")
    worker = await start(queue)
    worker.stop()
    await worker.done
    assert any("could not close the lease: away" in record.message for record in caplog.records)


@pytest.mark.parametrize("hangs", ["claim", "settle", "touch", "elect", "now", "close_lease"])
async def test_a_store_that_does_not_answer_keeps_no_worker_from_leaving(
    queue: FaultyQueue, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    monkeypatch.setattr(shutdown, "LAST_WRITES_S", 0.2)
    monkeypatch.setattr(shutdown, "LEAST_S", 0.1)
    started = asyncio.Event()

    @queue.job
    async def mail(ctx: Context) -> None:
        started.set()
        await ctx.progress(50)

    async def never(*_arguments: Any, **_options: Any) -> None:
        await asyncio.Event().wait()

    worker = Worker(queue, drain="0s")
    running = asyncio.create_task(worker.run())
    await mail.enqueue()
    await started.wait()
    await until(lambda: worker.metrics.slots)
    queue.faults.around(hangs, never)
    await mail.enqueue()
    worker.stop()
    async with asyncio.timeout(60):
        await running
    queue.faults.heal()


@pytest.mark.parametrize("hangs", ["write_records", "open_lease"])
@pytest.mark.parametrize("stops", [1, 2])
async def test_a_store_that_does_not_answer_keeps_no_worker_from_leaving_while_it_starts(
    queue: FaultyQueue, monkeypatch: pytest.MonkeyPatch, hangs: str, stops: int
) -> None:
    monkeypatch.setattr(shutdown, "LAST_WRITES_S", 0.2 if stops == 1 else 3600)
    queue.register("mail", lambda: None)
    asked = asyncio.Event()

    async def never(*_arguments: Any, **_options: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    queue.faults.around(hangs, never)
    worker = Worker(queue)
    running = asyncio.create_task(worker.run())
    await asked.wait()
    for _ in range(stops):
        worker.stop()
    async with asyncio.timeout(60):
        await running
    queue.faults.heal()


async def test_cancelling_run_gives_everything_back(queue: Queue, start: Start) -> None:
    @queue.job
    async def endless() -> None:
        await for_ever()

    worker = await start(queue)
    job = await endless.enqueue()
    await in_status(queue, job, "processing")
    worker.done.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker.done
    job = await job.refresh()
    assert (job.status, job.attempt) == ("pending", 0)


async def test_a_stopped_worker_leaves_no_task_thread_or_lease_behind(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    @queue.job
    def in_thread() -> None: ...

    worker = await start(queue)
    await (await quick.enqueue()).result("60s")
    await (await in_thread.enqueue()).result("60s")
    worker.stop()
    await worker.done
    await until(lambda: not _worker_tasks())
    await until(lambda: not [one for one in threading.enumerate() if one.name.startswith(OWN_THREADS)])
    assert (await queue.store.reap(LEASES_ONLY)).moved == []


OWN_THREADS = ("treadle-slot", "treadle-lease-keeper")


def _worker_tasks() -> list[asyncio.Task[Any]]:
    """The worker's tasks; a store has some too while its queue is open."""
    rooms = ("/treadle/worker/", "/treadle/maintenance/")
    return [task for task in asyncio.all_tasks() if any(room in repr(task) for room in rooms)]


async def test_a_worker_runs_once(queue: Queue, start: Start) -> None:
    worker = await start(queue)
    with pytest.raises(InvalidInput, match="has run already"):
        await worker.run()


async def test_stop_before_run_makes_it_a_short_one(queue: Queue) -> None:
    worker = Worker(queue)
    worker.stop()
    await asyncio.wait_for(worker.run(), 60)


async def test_a_worker_that_is_cancelled_and_hurried_while_it_starts_just_ends(url: str) -> None:
    worker = Worker(Queue(url))
    running = asyncio.create_task(worker.run())
    await give_way()
    worker.stop()
    worker.stop()
    running.cancel()
    await give_way()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert worker.left_behind == 0
    await worker.queue.close()


def test_a_worker_has_a_name(sqlite_url: str) -> None:
    assert repr(Worker(Queue(sqlite_url), name="ada")) == "<Worker ada>"


def test_one_topic_is_a_list_too(sqlite_url: str) -> None:
    with pytest.raises(InvalidInput, match=r"a list, please: \['mail'\]"):
        Worker(Queue(sqlite_url), topics="mail")


# -- signals -------------------------------------------------------------------------------------------


async def test_sigterm_drains(queue: Queue, program: StartProgram, files: dict[str, str]) -> None:
    worker = program(drain="20s")
    job = await queue.enqueue("wait", files)
    await until(lambda: Path(files["started"]).exists())
    worker.signal(signal.SIGTERM)
    await worker.says("draining 1 job")
    left = await queue.enqueue("echo", {})
    Path(files["gate"]).touch()
    assert await worker.exit_code() == 0
    assert (await job.refresh()).status == "completed"
    assert (await left.refresh()).status == "pending"


async def test_sigterm_gives_back_what_does_not_finish_in_time(
    queue: Queue, program: StartProgram, files: dict[str, str]
) -> None:
    worker = program(drain="100ms")
    jobs = [await queue.enqueue("wait", files), await queue.enqueue("sleeps_in_process", files)]
    await until(lambda: Path(files["started"]).exists())
    for job in jobs:
        await in_status(queue, job, "processing")
    worker.signal(signal.SIGTERM)
    assert await worker.exit_code() == 0
    assert [(await job.refresh()).status for job in jobs] == ["pending", "pending"]
    assert [(await job.refresh()).attempt for job in jobs] == [0, 0]
    assert Path(files["told"]).exists()


async def test_a_second_signal_gives_the_job_back_without_waiting(
    queue: Queue, start: Start, program: StartProgram, files: dict[str, str]
) -> None:
    worker = program(drain="60s", lease="1s")
    job = await queue.enqueue("wait", files)
    await until(lambda: Path(files["started"]).exists())
    worker.signal(signal.SIGTERM)
    await worker.says("draining 1 job")
    left = await queue.enqueue("echo", {})
    worker.signal(signal.SIGTERM)
    await worker.exit_code()
    assert (await left.refresh()).status == "pending"

    @queue.job(topic="wait")
    async def take_over(ctx: Context) -> int:
        return ctx.attempt

    await start(queue, reap_interval="100ms")
    assert await job.result("60s") == 1, "it was given back, which costs no attempt"


async def test_a_second_signal_gets_through_to_a_worker_with_a_blocked_loop(
    queue: Queue, program: StartProgram, files: dict[str, str]
) -> None:
    worker = program()
    await queue.enqueue("block", {**files, "seconds": 60})
    await until(lambda: Path(files["started"]).exists())

    def gone() -> bool:
        """Asked once more each time: of two signals at the same moment a process whose loop is blocked may hear one."""
        worker.signal(signal.SIGINT)
        return worker.process.poll() is not None

    await until(gone)
    assert await worker.exit_code() == 128 + signal.SIGINT


async def test_children_die_with_a_worker_that_is_killed(
    queue: Queue, program: StartProgram, files: dict[str, str]
) -> None:
    worker = program()
    await queue.enqueue("sleeps_in_process", files)
    pid = int(await until(lambda: Path(files["started"]).exists() and Path(files["started"]).read_text()))
    worker.signal(signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


async def test_a_process_handler_is_found_in_the_main_module(queue: Queue, program: StartProgram) -> None:
    worker = program()
    result = await (await queue.enqueue("in_main_module")).result("30s")
    assert result["module"] == "__mp_main__"
    assert result["parent"] == worker.pid
    worker.signal(signal.SIGTERM)
    assert await worker.exit_code() == 0
    await until(lambda: not psutil.pid_exists(result["pid"]))


def test_a_second_signal_that_comes_when_the_worker_has_left_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It finds that out in a separate thread."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    left = threading.Event()
    left.set()
    signals._leave_anyway(left, 1)
    assert ended == []


# -- fork ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_worker_refuses_to_be_used_after_a_fork(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    worker = await start(queue)
    await (await quick.enqueue()).result("60s")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _tell(writer, worker)
    os.close(writer)
    said = await asyncio.to_thread(os.read, reader, 1000)
    os.close(reader)
    os.waitpid(child, 0)
    assert b"is a fork of it" in said
    await (await quick.enqueue()).result("60s")


async def test_a_worker_that_was_made_before_a_fork_gets_another_name_after_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a real fork, because its lines would not be counted. The worker goes by the process number."""
    child = os.getpid() + 1
    worker, named = Worker(Queue(url)), Worker(Queue(url), name="ada")
    before = worker.name
    monkeypatch.setattr(os, "getpid", lambda: child)
    for one in (worker, named):
        one.stop()
        await one.run()
        await one.queue.close()
    assert worker.name != before
    assert f":{child}:" in worker.name
    assert named.name == "ada"


async def test_a_worker_that_runs_refuses_to_be_stopped_or_run_in_a_fork(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await start(queue)
    with monkeypatch.context() as in_fork:
        child = os.getpid() + 1
        in_fork.setattr(os, "getpid", lambda: child)
        with pytest.raises(InvalidInput, match="is a fork of it"):
            worker.stop()
        with pytest.raises(InvalidInput, match="is a fork of it"):
            await worker.run()
    assert not worker.stopping


def _tell(writer: int, worker: Any) -> None:
    """In the fork, where nothing may be cleaned up: it all belongs to the parent."""
    try:
        worker.stop()
        os.write(writer, b"no error")
    except BaseException as error:
        os.write(writer, str(error).encode())
    finally:
        # Not os._exit: coverage would save through SQLite, and another thread may have held its lock during the fork.
        os.kill(os.getpid(), signal.SIGKILL)
