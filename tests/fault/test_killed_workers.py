"""A worker that was killed on this machine is noticed in seconds: its lease would last for an hour."""

import asyncio
import os
import statistics
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.audit import audit
from tests.fault.crew import Crew, Hand
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.zygote import ROOT
from tests.waiting import nothing_live, until
from treadle import Queue
from treadle.maintenance.processes import this_process

KILLS = scaled(5, 100)
OPTIONS: dict[str, Any] = {"lease": "1h", "reap": "5s", "topics": "patient,quick"}

pytestmark = pytest.mark.skipif(this_process() is None, reason="needs Linux's /proc")


@pytest.fixture
async def queue(crew: Crew) -> AsyncIterator[Queue]:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        yield queue


async def _started(crew: Crew, id: str, times: int = 1) -> None:
    await until(lambda: len(crew.journal.by_job("start").get(id, [])) >= times, 60, crew.tails)


async def test_the_job_of_a_killed_worker_runs_again_within_seconds(crew: Crew, queue: Queue) -> None:
    """A supervisor starts another worker; sometimes the killed one has led the maintenance. Both with their usual
    settings."""
    team = [crew.hire(**OPTIONS) for _ in range(2)]
    waited: list[float] = []
    for _ in range(KILLS):
        job = await queue.enqueue("patient", max_attempts=50)
        await _started(crew, job.id)
        victim = next(hand for hand in team if hand.name == crew.journal.by_job("start")[job.id][0].worker)
        team.remove(victim)
        victim.kill()
        assert (await job.refresh()).status == "processing", "at the moment of the crash it is what it was"
        team.append(crew.hire(**OPTIONS))
        await _started(crew, job.id, 2)
        assert victim.killed_at is not None
        waited.append(crew.journal.by_job("start")[job.id][1].at_ns / 1e9 - victim.killed_at)
    await until(lambda: nothing_live(queue), 60, crew.tails)
    await crew.dismiss()
    ledger = await audit(queue, crew.journal, lost=crew.lost())
    assert ledger.count("job:reclaimed") == KILLS
    slowest = statistics.quantiles(waited, n=100, method="inclusive")[98]
    print(f"\n{KILLS} kills, running again after {statistics.median(waited):.1f} s, {slowest:.1f} s at p99")
    assert slowest <= 10


async def test_a_stopped_worker_keeps_its_jobs(crew: Crew, queue: Queue) -> None:
    hand = crew.hire(**OPTIONS | {"reap": "100ms"})
    job = await queue.enqueue("patient")
    await _started(crew, job.id)
    await hand.freeze()
    witness = crew.hire(**OPTIONS | {"reap": "100ms"})
    await _notices_another(crew, queue, witness)
    assert (await job.refresh()).status == "processing"
    hand.thaw()
    await job.cancel()
    await until(lambda: nothing_live(queue), 60, crew.tails)
    await crew.dismiss()


async def _notices_another(crew: Crew, queue: Queue, witness: Hand) -> None:
    """Until this worker has taken back the job of a third one, which was killed after what it is to leave alone."""
    third = crew.hire(**OPTIONS | {"no_maintenance": True, "topics": "stubborn"})
    job = await queue.enqueue("stubborn")
    await _started(crew, job.id)
    third.kill()
    told = f"worker process {third.pid} was killed"
    await until(lambda: told in witness.log.read_text(), 60, crew.tails)
    await queue.cancel(job.id)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a pid namespace")
async def test_a_worker_in_another_pid_namespace_keeps_its_jobs(crew: Crew, queue: Queue, tmp_path: Path) -> None:
    """Its pid means nothing here, and no process with that pid may be here at all."""
    log = (tmp_path / "inside.log").open("w")
    argv = ["-m", "tests.fault.app", "work", crew.url, "--name", "inside", "--journal", str(crew.journal.path)]
    options = ["--lease", "1h", "--topics", "patient"]
    inside = await asyncio.create_subprocess_exec(
        *["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *argv, *options],
        cwd=ROOT,
        stderr=log,
    )
    try:
        job = await queue.enqueue("patient")
        await _started(crew, job.id)
        witness = crew.hire(**OPTIONS | {"reap": "100ms"})
        await _notices_another(crew, queue, witness)
        assert (await job.refresh()).status == "processing"
    finally:
        inside.kill()
        await inside.wait()
        log.close()
    await _notices_another(crew, queue, witness)
    assert (await job.refresh()).status == "processing", "it is dead, but nothing here can prove that"
