"""Handlers in processes: found by name, kept for reuse, really stopped, and gone with their worker."""

import asyncio
import logging
import multiprocessing
import os
import signal
from datetime import timedelta
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import ended, in_status, until
from tests.worker import process_handlers as handlers
from tests.worker.conftest import Start
from treadle import CancelPolicy, InvalidInput, Job, Queue, Retry, Worker
from treadle.queue import steering
from treadle.worker import shutdown
from treadle.worker.callers.process import KILL_AFTER_S, Conversation
from treadle.worker.child import handle
from treadle.worker.child.handle import Child

QUICK = CancelPolicy(grace="400ms")


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def files(tmp_path: Path) -> dict[str, str]:
    return {name: str(tmp_path / name) for name in ("started", "cleaned")}


async def started(paths: dict[str, str]) -> str:
    return str(await until(lambda: Path(paths["started"]).exists() and Path(paths["started"]).read_text()))


async def test_a_decorated_function_is_found_by_its_name_with_its_types(queue: Queue, start: Start) -> None:
    queue.handlers["decorated"] = handlers.decorated.handler
    await start(queue)
    job = await queue.enqueue("decorated", {"width": 3, "height": 4})
    result = await job.result("30s")
    assert (result["area"], result["topic"]) == (12, "decorated")
    assert result["pid"] != os.getpid()


async def test_a_child_is_kept_for_the_next_job(queue: Queue, start: Start) -> None:
    queue.register("plain", handlers.plain, process=True)
    await start(queue, slots=1)
    pids = {(await (await queue.enqueue("plain", {})).result("30s"))["pid"] for _ in range(3)}
    assert len(pids) == 1


async def test_a_coroutine_may_run_in_a_process(queue: Queue, start: Start) -> None:
    queue.register("coroutine", handlers.coroutine, process=True)
    await start(queue)
    assert await (await queue.enqueue("coroutine")).result("30s") != os.getpid()


async def test_a_function_without_an_importable_name_is_refused_at_the_start(queue: Queue) -> None:
    queue.register("nested", lambda: None, process=True)
    with pytest.raises(InvalidInput, match="top level"):
        await Worker(queue).run()


@pytest.mark.every_store
async def test_progress_log_heartbeat_and_enqueue_go_through_the_worker(
    queue: Queue, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue.register("report", handlers.report, process=True)
    queue.register("plain", handlers.plain)
    await start(queue)
    gate = tmp_path / "gate"
    job = await queue.enqueue("report", {"gate": str(gate)}, created_by="ada", scope="user", scope_id="9")

    async def progress() -> Job | None:
        now = await queue.get(job.id)
        return now if now.progress else None

    now = await until(progress)
    assert (now.progress, now.progress_message) == (42, "working")
    gate.touch()
    result = await job.result("30s")
    assert result["status"] == "pending"
    assert result["auth"] == {"createdBy": "ada", "scope": "user", "scopeId": "9"}
    made = await queue.get(result["made"])
    assert (made.created_by, made.scope, made.scope_id) == ("ada", "user", "9")
    (record,) = [record for record in caplog.records if record.name == "treadle.jobs.report"]
    assert (record.message, record.levelno) == ("a line from the child", logging.WARNING)
    assert vars(record)["job_id"] == job.id


async def test_a_coroutine_in_a_process_can_enqueue(queue: Queue, start: Start) -> None:
    queue.register("enqueues", handlers.enqueues, process=True)
    await start(queue)
    made = await queue.get(await (await queue.enqueue("enqueues")).result("30s"))
    assert made.run_at - made.created_at == timedelta(hours=1)


async def test_an_error_of_the_workers_answer_is_raised_in_the_child(queue: Queue, start: Start) -> None:
    queue.register("enqueue_wrongly", handlers.enqueue_wrongly, process=True)
    await start(queue)
    assert "delay" in await (await queue.enqueue("enqueue_wrongly")).result("30s")


@pytest.mark.parametrize(
    ("what", "status", "attempt"),
    [
        ("flaky", "completed", 2),
        ("fail", "failed", 1),
        ("retry", "completed", 2),
        ("exit", "failed", 1),
    ],
)
async def test_errors_are_judged_as_in_any_handler(
    queue: Queue, start: Start, what: str, status: str, attempt: int
) -> None:
    on = {handlers.Flaky: 0.001, SystemExit: False}
    queue.register("raises", handlers.raises, process=True, retry=Retry(3, on=on))
    await start(queue)
    job = await ended(queue, await queue.enqueue("raises", {"what": what}), 30)
    assert (job.status, job.attempt) == (status, attempt)


async def test_the_traceback_comes_from_the_child(queue: Queue, start: Start) -> None:
    queue.register("raises", handlers.raises, process=True, max_attempts=1)
    await start(queue)
    job = await ended(queue, await queue.enqueue("raises", {"what": "flaky"}), 30)
    assert job.error_type == "tests.worker.process_handlers.Flaky"
    assert "in raises" in (job.last_error or "")
    assert "child.py" not in (job.last_error or "")


async def test_a_result_that_cannot_be_stored_fails_without_a_retry(queue: Queue, start: Start) -> None:
    queue.register("unstorable", handlers.unstorable, process=True)
    await start(queue)
    job = await ended(queue, await queue.enqueue("unstorable"), 30)
    assert (job.status, job.attempt) == ("failed", 1)


async def test_what_the_child_cannot_begin_fails_with_the_reason(
    url: str, queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.handlers["decorated"] = handlers.decorated.handler
    queue.register("plain", handlers.plain, process=True, max_attempts=1)
    async with Queue(url) as stranger:
        mistyped = await stranger.enqueue("decorated", {"width": "wide"})
    monkeypatch.setattr(handlers.plain, "__qualname__", "renamed")
    misnamed = await queue.enqueue("plain", {})
    await start(queue, slots=1)
    mistyped, misnamed = await ended(queue, mistyped, 30), await ended(queue, misnamed, 30)
    assert (mistyped.status, mistyped.error_type, mistyped.attempt) == ("failed", "InvalidPayload", 1)
    assert "payload.width" in (mistyped.last_error or "")
    assert (misnamed.status, misnamed.error_type) == ("failed", "AttributeError")
    assert "'renamed'" in (misnamed.last_error or "")


@pytest.mark.parametrize(
    ("by", "said"), [("exit", "exited with code 7"), ("SIGKILL", "SIGKILL"), ("SIGTERM", "SIGTERM")]
)
async def test_a_child_that_dies_is_a_failed_attempt_that_says_how(
    queue: Queue, start: Start, by: str, said: str
) -> None:
    queue.register("dies", handlers.dies, process=True, max_attempts=1)
    queue.register("plain", handlers.plain, process=True)
    await start(queue, slots=1)
    job = await ended(queue, await queue.enqueue("dies", {"by": by}), 30)
    assert (job.status, job.error_type) == ("failed", "ProcessDied")
    assert said in (job.last_error or "")
    assert await (await queue.enqueue("plain", {"x": 1})).result("30s")


async def test_a_child_that_dies_with_a_fork_left_behind_is_noticed(queue: Queue, start: Start, tmp_path: Path) -> None:
    queue.register("forks", handlers.forks_and_dies, process=True, max_attempts=1)
    await start(queue)
    paths = files(tmp_path)
    job = await ended(queue, await queue.enqueue("forks", paths), 30)
    assert (job.status, job.error_type) == ("failed", "ProcessDied")
    await until(lambda: gone(int(Path(paths["started"]).read_text())))


@pytest.mark.parametrize("handler", [handlers.stops_when_told, handlers.waits])
async def test_a_handler_that_looks_is_cancelled_by_being_told(
    queue: Queue, start: Start, tmp_path: Path, handler: Any
) -> None:
    queue.register("looks", handler, process=True)
    queue.register("plain", handlers.plain, process=True)
    await start(queue, slots=1)
    paths = files(tmp_path)
    job = await queue.enqueue("looks", paths)
    await until(lambda: Path(paths["started"]).exists())
    await job.cancel("enough")
    assert (await ended(queue, job)).status == "cancelled"
    assert Path(paths["cleaned"]).exists()
    assert await (await queue.enqueue("plain", {"x": 1})).result("30s")


async def test_one_that_does_not_look_gets_sigterm_and_can_clean_up(queue: Queue, start: Start, tmp_path: Path) -> None:
    queue.register("sleeps", handlers.sleeps, process=True, cancel=QUICK)
    await start(queue)
    paths = files(tmp_path)
    job = await queue.enqueue("sleeps", paths)
    await started(paths)
    await job.cancel()
    assert (await ended(queue, job)).status == "cancelled"
    assert Path(paths["cleaned"]).exists()


async def test_one_that_ignores_sigterm_is_killed_when_its_grace_is_over(
    queue: Queue, start: Start, tmp_path: Path
) -> None:
    queue.register("deaf", handlers.deaf, process=True, cancel=QUICK)
    await start(queue)
    paths = files(tmp_path)
    job = await queue.enqueue("deaf", paths)
    pid = int(await started(paths))
    await job.cancel()
    assert (await ended(queue, job)).status == "cancelled"
    await until(lambda: gone(pid))


async def test_kill_mode_kills_immediately_with_all_that_it_started(queue: Queue, start: Start, tmp_path: Path) -> None:
    queue.register("family", handlers.with_family, process=True, cancel=CancelPolicy(mode="kill", grace="1h"))
    await start(queue)
    paths = files(tmp_path)
    job = await queue.enqueue("family", paths)
    child, grandchild = map(int, (await started(paths)).split())
    await job.cancel()
    assert (await ended(queue, job)).status == "cancelled"
    await until(lambda: gone(child) and gone(grandchild))


async def test_one_over_its_limit_is_stopped_and_failed(queue: Queue, start: Start, tmp_path: Path) -> None:
    queue.register("deaf", handlers.deaf, process=True, cancel=QUICK, timeout="300ms", max_attempts=1)
    await start(queue)
    paths = files(tmp_path)
    job = await ended(queue, await queue.enqueue("deaf", paths), 30)
    assert (job.status, job.error_type) == ("failed", "TimeoutError")
    assert "300ms" in (job.last_error or "")
    await until(lambda: gone(int(Path(paths["started"]).read_text())))


@pytest.mark.parametrize("handler", [handlers.sleeps, handlers.waits])
async def test_one_over_its_limit_is_told_and_can_clean_up(
    queue: Queue, start: Start, tmp_path: Path, handler: Any
) -> None:
    queue.register("slow", handler, process=True, timeout="300ms", max_attempts=1)
    await start(queue)
    paths = files(tmp_path)
    job = await ended(queue, await queue.enqueue("slow", paths), 30)
    assert (job.status, job.error_type) == ("failed", "TimeoutError")
    assert Path(paths["cleaned"]).exists()


async def test_one_that_ignores_its_limit_is_over_within_a_second_of_it(
    queue: Queue, start: Start, tmp_path: Path
) -> None:
    """Regardless of its grace, which is for cancels."""
    queue.register("deaf", handlers.deaf, process=True, cancel=CancelPolicy(grace="1h"), timeout="3s", max_attempts=1)
    await start(queue)
    paths = files(tmp_path)
    job = await queue.enqueue("deaf", paths)
    await started(paths)
    assert KILL_AFTER_S < 1
    assert (await ended(queue, job, 30)).error_type == "TimeoutError"
    await until(lambda: gone(int(Path(paths["started"]).read_text())))


async def test_stopping_the_worker_gives_the_job_back_and_leaves_no_child(
    queue: Queue, start: Start, tmp_path: Path
) -> None:
    queue.register("deaf", handlers.deaf, process=True)
    worker = await start(queue, drain="100ms")
    paths = files(tmp_path)
    job = await queue.enqueue("deaf", paths)
    pid = int(await started(paths))
    worker.stop()
    job = await in_status(queue, job, "pending")
    assert job.attempt == 0
    await until(lambda: gone(pid))


async def test_a_second_stop_kills_the_child_and_gives_its_job_back(queue: Queue, start: Start, tmp_path: Path) -> None:
    queue.register("deaf", handlers.deaf, process=True)
    worker = await start(queue, drain="60s")
    paths = files(tmp_path)
    job = await queue.enqueue("deaf", paths)
    pid = int(await started(paths))
    worker.stop()
    worker.stop()
    await until(lambda: gone(pid))
    await worker.done
    job = await job.refresh()
    assert (job.status, job.attempt) == ("pending", 0)


async def test_one_that_is_being_stopped_is_killed_when_its_lease_is_lost(
    queue: Queue, start: Start, tmp_path: Path, insisting: asyncio.Event
) -> None:
    queue.register("deaf", handlers.deaf, process=True, cancel=CancelPolicy(grace="1h"))
    await start(queue, lease="300ms", slots=1, maintenance=False)
    paths = files(tmp_path)
    job = await queue.enqueue("deaf", paths)
    pid = int(await started(paths))
    await job.cancel()
    await insisting.wait()
    await steering.release(queue.store, [job.id])
    await until(lambda: gone(pid))
    assert (await job.refresh()).status == "cancelled"


async def test_one_that_is_being_stopped_is_killed_when_the_worker_leaves(
    queue: Queue, start: Start, tmp_path: Path, insisting: asyncio.Event
) -> None:
    queue.register("deaf", handlers.deaf, process=True, cancel=CancelPolicy(grace="1h"))
    worker = await start(queue)
    paths = files(tmp_path)
    job = await queue.enqueue("deaf", paths)
    pid = int(await started(paths))
    await job.cancel()
    await insisting.wait()
    worker.stop()
    worker.stop()
    await until(lambda: gone(pid))
    await worker.done
    assert (await job.refresh()).status == "cancelled"


async def test_a_cancel_while_the_child_is_starting_ends_the_job_before_it_begins(
    queue: Queue, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, insisting: asyncio.Event
) -> None:
    starting, go_on, _ = start_slowly(monkeypatch)
    queue.register("sleeps", handlers.sleeps, process=True)
    queue.register("plain", handlers.plain, process=True)
    await start(queue, slots=1)
    paths = files(tmp_path)
    job = await queue.enqueue("sleeps", paths)
    await starting.wait()
    await job.cancel()
    await insisting.wait()
    go_on.set()
    assert (await ended(queue, job, 30)).status == "cancelled"
    assert not Path(paths["started"]).exists()
    assert await (await queue.enqueue("plain", {"x": 1})).result("30s")


@pytest.mark.parametrize("stops", [1, 2])
async def test_a_child_that_was_starting_when_the_worker_left_does_not_begin(
    queue: Queue, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    monkeypatch.setattr(shutdown, "CLEAN_UP_S", 0.1)
    starting, go_on, made = start_slowly(monkeypatch)
    queue.register("sleeps", handlers.sleeps, process=True)
    worker = await start(queue, slots=1, drain="10ms")
    paths = files(tmp_path)
    job = await queue.enqueue("sleeps", paths)
    await starting.wait()
    for _ in range(stops):
        worker.stop()
    await worker.done
    assert (await job.refresh()).status == "pending"
    go_on.set()
    await until(lambda: made and gone(made[0]._pid))
    assert not Path(paths["started"]).exists()


def start_slowly(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event, list[Child]]:
    """Returns: set when a child is about to start; set it to let the child start; the started children."""
    starting, go_on, original = asyncio.Event(), asyncio.Event(), Child.start
    made: list[Child] = []

    async def start() -> Child:
        starting.set()
        await go_on.wait()
        made.append(await original())
        return made[-1]

    monkeypatch.setattr(Child, "start", start)
    return starting, go_on, made


@pytest.fixture
def insisting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a worker begins to make a child stop."""
    begun, original = asyncio.Event(), Conversation._insist

    async def insist(talk: Conversation) -> None:
        begun.set()
        await original(talk)

    monkeypatch.setattr(Conversation, "_insist", insist)
    return begun


# -- children that won't start, stay or leave -----------------------------------------------------------


async def test_a_process_that_cannot_be_started_is_a_failed_attempt(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(process: SpawnProcess) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(SpawnProcess, "start", refuse)
    queue.register("plain", handlers.plain, process=True, max_attempts=1)
    await start(queue)
    job = await ended(queue, await queue.enqueue("plain", {}))
    assert (job.status, job.error_type) == ("failed", "ProcessDied")
    assert "could not be started: Resource temporarily unavailable" in (job.last_error or "")


async def test_a_process_that_does_not_start_in_time_is_killed_and_a_failed_attempt(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "START_S", 0.001)
    queue.register("plain", handlers.plain, process=True, max_attempts=1)
    await start(queue)
    before = set(multiprocessing.active_children())
    job = await ended(queue, await queue.enqueue("plain", {}), 30)
    assert (job.status, job.error_type) == ("failed", "ProcessDied")
    assert "did not start within" in (job.last_error or "")
    assert set(multiprocessing.active_children()) <= before


async def test_an_idle_child_that_died_is_replaced(queue: Queue, start: Start) -> None:
    queue.register("plain", handlers.plain, process=True)
    await start(queue, slots=1)
    first = (await (await queue.enqueue("plain", {})).result("30s"))["pid"]
    os.kill(first, signal.SIGKILL)
    # It takes dead children away, as any code in the worker's process may.
    await until(lambda: first not in {child.pid for child in multiprocessing.active_children()})
    assert (await (await queue.enqueue("plain", {})).result("30s"))["pid"] != first


async def test_a_child_that_will_not_leave_is_killed(
    queue: Queue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "LEAVE_S", 0.2)
    queue.register("leaves_a_thread", handlers.leaves_a_thread, process=True)
    worker = await start(queue)
    pid = await (await queue.enqueue("leaves_a_thread")).result("30s")
    worker.stop()
    await worker.done
    await until(lambda: gone(pid))


async def test_children_that_are_left_are_killed_when_the_program_exits() -> None:
    child = await Child.start()
    handle._kill_those_left()
    await until(lambda: gone(child._pid))
    await child.dismiss()
