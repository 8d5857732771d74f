"""Faults 12 to 21: signals, handlers that misbehave, restarts and forks."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from tests.fault.audit import Ledger, audit, read
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.waiting import nothing_live, until
from treadle import Job, Queue
from treadle.model.errors import TreadleError


@pytest.fixture
async def queue(crew: Crew) -> AsyncIterator[Queue]:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        yield queue


async def started(crew: Crew, *jobs: Job) -> None:
    await until(lambda: all(job.id in crew.journal.by_job("start") for job in jobs), 60, crew.tails)


async def all_ended(crew: Crew, queue: Queue) -> Ledger:
    await until(lambda: nothing_live(queue), 60, crew.tails, every=0.05)
    await crew.dismiss()
    return await audit(queue, crew.journal, lost=crew.lost())


async def test_sigterm_drains_then_gives_back_what_is_left_with_its_attempt(crew: Crew, queue: Queue) -> None:
    """Fault 12."""
    hand = crew.hire(slots=3, drain="2s", lease="30s")
    endless = await queue.enqueue("patient")
    soon = await queue.enqueue("slow", {"ms": 300})
    await started(crew, endless, soon)
    hand.send(signal.SIGTERM)
    await until(lambda: "draining" in hand.tail())
    late = await queue.enqueue("quick")
    assert await hand.gone() == 0, hand.tail()
    assert (await soon.refresh()).status == "completed"
    now = await endless.refresh()
    assert (now.status, now.attempt) == ("pending", 0)
    assert [event.type for event in await queue.events(endless.id)][-1] == "job:released"
    assert (await late.refresh()).status == "pending"
    assert not await queue.store.workers()
    assert [entry.job_id for entry in crew.journal.entries("told")] == [endless.id]


async def test_a_handler_that_swallows_its_cancel_does_not_keep_the_process(crew: Crew, queue: Queue) -> None:
    """Faults 12 and 16: its job is given back, so it must not go on while another worker runs it."""
    command = [sys.executable, "-m", "treadle", "worker", "tests.fault.stubborn_app:queue", "--drain", "100ms"]
    with subprocess.Popen([*command, "--db", crew.url], stderr=subprocess.PIPE, text=True) as process:
        try:
            job = await queue.enqueue("deaf")
            await until(lambda: _processing(job), 60)
            process.terminate()
            await until(lambda: process.poll() is not None, 30)
        finally:
            process.kill()
        assert process.returncode == 0, process.stderr and process.stderr.read()
    now = await job.refresh()
    assert (now.status, now.attempt) == ("pending", 0)
    await queue.cancel(job.id)


async def _processing(job: Job) -> bool:
    return (await job.refresh()).status == "processing"


async def test_a_second_sigterm_stops_immediately_and_gives_the_jobs_back(crew: Crew, queue: Queue) -> None:
    """Fault 13."""
    hand = crew.hire(slots=2, drain="60s", lease="1s")
    jobs = [await queue.enqueue("patient"), await queue.enqueue("threaded", {"ms": 60_000})]
    await started(crew, *jobs)
    hand.send(signal.SIGTERM)
    await until(lambda: "Ctrl-C again to quit" in hand.tail())  # before that two signals may be taken for one
    hand.send(signal.SIGTERM)
    await hand.gone(10)
    hand.killed_at = time.time()
    given_back = await jobs[0].refresh()
    assert (given_back.status, given_back.attempt) == ("pending", 0), "the store answers, so the job was given back"
    await queue.cancel(jobs[1].id)
    crew.hire(lease="1s")
    await until(lambda: _processing(jobs[0]))
    await queue.cancel(jobs[0].id)
    ledger = await all_ended(crew, queue)
    assert [line.type for line in ledger.events[jobs[0].id]] == ["job:released", "job:cancelling", "job:cancelled"]


@pytest.mark.parametrize("topic", ["blocking", "beating"])
async def test_a_slow_handler_keeps_its_lease(crew: Crew, queue: Queue, topic: str) -> None:
    """Faults 15 and 17: by the worker's keeper thread if the handler blocks the loop, or by its heartbeats."""
    crew.hire(lease="1s", topics=topic, no_maintenance=True)
    job = await queue.enqueue(topic, {"ms": 2_500})
    await started(crew, job)
    crew.hire(lease="1s", reap="100ms")
    ledger = await all_ended(crew, queue)
    assert ledger.jobs[job.id].attempt == 1
    assert not ledger.events[job.id]


async def test_a_poison_job_expires_and_uses_up_no_attempts_of_waiting_jobs(crew: Crew, queue: Queue) -> None:
    """Faults 18 and 19: it kills every worker that runs it, as a crash in C or the OOM killer would."""
    quick = await queue.enqueue_many("quick", [{}] * 300, max_attempts=3)
    poison = await queue.enqueue("deadly", {"when": "midway", "attempts": 99}, max_attempts=3)
    quick += await queue.enqueue_many("quick", [{}] * 300, max_attempts=3)
    await _until_the_poison_is_gone(crew, queue, poison, slots=1)
    ledger = await all_ended(crew, queue)
    assert ledger.jobs[poison.id].attempt == 3
    assert (await poison.refresh()).last_error == "worker lost"
    # A last attempt is never claimed ahead. So one is lost only if it ran, and its outcome was on its way.
    ran = {(entry.job_id, entry.attempt) for entry in crew.journal.entries("start")}
    assert all(ledger.jobs[job.id].status == "completed" or (job.id, 3) in ran for job in quick)
    print(f"\n{ledger.count('job:reclaimed')} reclaimed")


async def _until_the_poison_is_gone(crew: Crew, queue: Queue, poison: Job, slots: int) -> None:
    """One worker after another, as a supervisor starts them."""
    while not await _ended(queue, poison):
        crew.hire(lease="1s", reap="100ms", slots=slots)
        await until(lambda: not crew.alive or _ended(queue, poison), 60, crew.tails)
    crew.hire(lease="1s", reap="100ms", slots=slots)


async def _ended(queue: Queue, job: Job) -> bool:
    return (await queue.get(job.id)).ended


async def test_a_worker_under_its_old_name_does_not_inherit_its_old_leases(crew: Crew, queue: Queue) -> None:
    """Fault 21: its job is reclaimed like any other, when its lease expires or its process is seen to be dead."""
    first = crew.hire(name="bob", lease="1h", no_maintenance=True)
    job = await queue.enqueue("patient")
    await started(crew, job)
    first.kill()
    await first.gone()
    crew.hire(name="bob", lease="1h", reap="100ms")
    ledger = await all_ended(crew, queue)
    (event,) = ledger.events[job.id]
    assert (event.type, event.message) == ("job:reclaimed", "worker lost: bob")
    assert ledger.jobs[job.id].attempt == 2


async def test_a_killed_worker_takes_the_processes_of_its_handlers_with_it(crew: Crew, queue: Queue) -> None:
    payload = {"journal": str(crew.journal.path), "linger": True}
    hand = crew.hire(lease="2s", topics="in_own_process", no_maintenance=True)
    job = await queue.enqueue("in_own_process", payload, max_attempts=2)
    await started(crew, job)
    (child,) = [one for one in psutil.Process(hand.pid).children() if one.pid == _pid_of(crew, job)]
    hand.kill()
    await hand.gone()
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 30)
    crew.hire(lease="2s", reap="100ms")
    ledger = await all_ended(crew, queue)
    first, second = crew.journal.by_job("start")[job.id]
    last_sign = max(entry.at_ns for entry in crew.journal.entries("alive") if entry.pid == first.pid)
    assert last_sign < second.at_ns
    assert ledger.jobs[job.id].status == "completed"


def _pid_of(crew: Crew, job: Job) -> int:
    return crew.journal.by_job("start")[job.id][0].pid


async def test_a_killed_handler_process_costs_one_attempt_and_not_the_worker(crew: Crew, queue: Queue) -> None:
    """Fault 19 with `process=True`: the way to run what may be killed for its memory."""
    hand = crew.hire(lease="5s")
    job = await queue.enqueue("in_own_process", {"journal": str(crew.journal.path), "die": 1}, max_attempts=3)
    neighbour = await queue.enqueue("slow", {"ms": 500})
    ledger = await all_ended(crew, queue)
    assert hand.code == 0
    assert (ledger.jobs[job.id].status, ledger.jobs[job.id].attempt) == ("completed", 2)
    assert [line.type for line in ledger.events[job.id]] == ["job:retrying"]
    assert ledger.jobs[neighbour.id].attempt == 1


def _use_in_fork(queue: Any, how: str, answers: Any) -> None:
    import asyncio

    try:
        if how == "sync":
            answers.put(queue.sync.enqueue("quick", {"from": "fork"}).id)
        else:
            answers.put(asyncio.run(queue.enqueue("quick", {"from": "fork"})).id)
    except TreadleError as error:
        answers.put(f"refused: {error}")
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_queue_opened_before_a_fork_reopens_or_refuses_in_the_child(crew: Crew, queue: Queue, how: str) -> None:
    """Fault 20: never two processes on one connection."""
    opened = Queue(crew.url)
    before = opened.sync.enqueue("quick", {})
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=_use_in_fork, args=(opened, how, answers))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    answer = answers.get()
    after = opened.sync.enqueue("quick", {})
    opened.sync.close()
    expected = {before.id, after.id} | (set() if answer.startswith("refused") else {answer})
    assert set((await read(queue)).jobs) == expected
    crew.hire()
    await all_ended(crew, queue)
