"""`treadle bench`: how fast this machine enqueues and runs jobs that do nothing."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from treadle.cli import options, target
from treadle.cli.output import Column, print_json, print_table, say
from treadle.model.errors import InvalidInput, WrongState

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.store.values import Settlement

TOPIC = "bench"
BATCH = 1000


class Measured(NamedTuple):
    jobs: int
    seconds: float
    cpu_seconds: float
    """Of this process alone: a database server's work is not in it."""

    @property
    def jobs_per_second(self) -> float:
        return self.jobs / max(self.seconds, 1e-9)

    @property
    def cpu_us_per_job(self) -> float:
        return self.cpu_seconds / self.jobs * 1e6

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 4),
            "jobsPerSecond": round(self.jobs_per_second, 1),
            "cpuMicrosecondsPerJob": round(self.cpu_us_per_job, 1),
        }


class Clock:
    """The time and this process's CPU time since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def stop(self, jobs: int) -> Measured:
        return Measured(jobs, time.perf_counter() - self._began[0], time.process_time() - self._began[1])


def bench(
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=1_000_000, metavar="N", help="How many jobs.")] = 10_000,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="URL",
            help="A database without jobs. The jobs stay in it. Without it, a temporary SQLite file.",
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how fast this machine enqueues and runs jobs.

    The jobs do nothing, so this is the cost of the queue itself: one process that enqueues in batches of 1000, then one
    worker. CPU time is that of this process, without a database server. TREADLE_DB and treadle.toml name no database
    here.
    """
    if target.named() is not None:
        raise InvalidInput("bench takes no MODULE:QUEUE; name a database with --db")
    if db is not None:
        enqueued, drained, where = asyncio.run(_measure(db, jobs))
    else:
        with tempfile.TemporaryDirectory(prefix="treadle-bench-") as folder:
            enqueued, drained, _ = asyncio.run(_measure(f"sqlite:///{Path(folder) / 'bench.db'}", jobs))
        where = "a temporary SQLite file"
    if as_json:
        print_json({"database": where, "jobs": jobs, "enqueue": enqueued.as_json(), "drain": drained.as_json()})
        return
    say(f"{jobs:,} jobs in {where}")
    columns = [Column(""), Column("jobs/s", number=True), Column("CPU per job", number=True)]
    print_table(columns, [_row("enqueue", enqueued), _row("drain", drained)])


def _row(name: str, measured: Measured) -> list[str]:
    return [name, f"{measured.jobs_per_second:,.0f}", f"{measured.cpu_us_per_job:,.0f} µs"]


async def _measure(url: str, jobs: int) -> tuple[Measured, Measured, str]:
    from treadle.queue import Queue
    from treadle.store.connect import shown

    async with Queue(url) as queue:
        if await queue.count():
            raise WrongState(f"{shown(queue.url)} has jobs; measure in a database without any")
        queue.register(TOPIC, _nothing)
        return await _enqueue(queue, jobs), await _drain(queue, jobs), shown(queue.url)


async def _nothing() -> None:
    """The job."""


async def _enqueue(queue: Queue, jobs: int) -> Measured:
    await queue.save_templates()
    clock = Clock()
    for start in range(0, jobs, BATCH):
        await queue.enqueue_many(TOPIC, [{}] * min(BATCH, jobs - start))
    return clock.stop(jobs)


async def _drain(queue: Queue, jobs: int) -> Measured:
    """From the worker's start until the end of the last job is stored."""
    from treadle.worker import Worker

    ended = 0
    measured: Measured | None = None
    worker = Worker(queue, burst=True)

    def note(settlements: Sequence[Settlement]) -> None:
        nonlocal ended, measured
        ended += len(settlements)
        if ended >= jobs and measured is None:
            measured = clock.stop(jobs)

    worker.on_settled = note
    clock = Clock()
    await worker.run()
    if measured is None:
        raise WrongState(f"only {ended:,} of {jobs:,} jobs ran here; is there another worker for the topic {TOPIC}?")
    return measured
