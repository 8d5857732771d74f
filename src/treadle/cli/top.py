"""`treadle top`: topics, workers and the newest failures, live at a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options, stats, workers
from treadle.cli.database import existing
from treadle.cli.output import Column, age, console, one_line, print_json, styled, table_of
from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput, StoreUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from treadle.insights.stats import QueueStats
    from treadle.model.job import Job
    from treadle.queue import Queue
    from treadle.store.views import LiveWorker

SINCE = timedelta(hours=1)
MOST_FAILURES = 10
SHORTEST_MS = 100


@dataclass(frozen=True)
class Snapshot:
    """What the queue does now, and what ended in the last hour."""

    database: str
    counts: QueueStats
    workers: Sequence[LiveWorker]
    failures: Sequence[Job]

    def as_json(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "stats": self.counts.as_json(),
            "workers": [workers.document(one) for one in self.workers],
            "failures": [job.as_json() for job in self.failures],
        }


def top(
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="How often to look again, such as 500ms or 5s.")
    ] = "2s",
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Watch the queue: jobs by topic, live workers and the newest failures. Ctrl-C ends it.

    Pending and running jobs are counted as they are now, endings over the last hour. Without a terminal, and with
    --json, it prints this once.
    """
    pause_ms = duration_ms(interval, "--interval")
    if pause_ms < SHORTEST_MS:
        raise InvalidInput(f"--interval: {interval} is too short; at least {SHORTEST_MS} ms is needed")
    live = sys.stdout.isatty() and not as_json
    with contextlib.suppress(KeyboardInterrupt) if live else contextlib.nullcontext():
        asyncio.run(_watch(db, pause_ms / 1000) if live else _once(db, as_json))


async def _once(db: str | None, as_json: bool) -> None:
    async with existing(db) as queue:
        found = await _read(queue)
    if as_json:
        print_json(found.as_json())
    else:
        out = console()
        with out.capture() as captured:
            out.print(_shown(found))
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


async def _watch(db: str | None, pause_s: float) -> None:
    from rich.live import Live

    async with existing(db) as queue:
        with Live(_shown(await _read(queue)), console=console(), screen=True, auto_refresh=False) as screen:
            while True:
                await asyncio.sleep(pause_s)
                try:
                    screen.update(_shown(await _read(queue)), refresh=True)
                except StoreUnavailable as error:  # the next look may find it again
                    screen.update(styled(one_line(str(error)), "red"), refresh=True)


async def _read(queue: Queue) -> Snapshot:
    from treadle.insights.workers import live_workers
    from treadle.store.connect import shown

    counts = await queue.stats(since=datetime.now(UTC) - SINCE)
    failures = await queue.list(status="failed", limit=MOST_FAILURES)
    return Snapshot(shown(queue.url), counts, await live_workers(queue.store), failures)


def _shown(found: Snapshot) -> RenderableType:
    from rich.console import Group

    busy, slots = (sum(getattr(one, name) for one in found.workers) for name in ("running", "slots"))
    noun = "worker" if len(found.workers) == 1 else "workers"
    head = f"{found.database}  {len(found.workers)} {noun}, {busy} of {slots} slots busy"
    parts: list[RenderableType] = [styled(head, "bold"), styled(""), _topics(found.counts)]
    for table in (_workers(found.workers), _failures(found.failures)):
        if table is not None:
            parts += [styled(""), table]
    return Group(*parts)


def _topics(counts: QueueStats) -> Table:
    columns, rows = stats.table(counts)
    return table_of(columns, [[styled(cell) for cell in row] for row in rows])


def _workers(found: Sequence[LiveWorker]) -> Table | None:
    if not found:
        return None
    rows = [[styled(cell) for cell in workers.row(one)] for one in found]
    return table_of(workers.COLUMNS, rows)


def _failures(found: Sequence[Job]) -> Table | None:
    from treadle.model.error_line import error_line

    if not found:
        return None
    columns = (Column("failed"), Column("topic"), Column("age"), Column("error", flexible=True))
    rows = [
        [job.id, job.topic, age(job.ended_at or job.updated_at), error_line(job.last_error or "", job.error_type or "")]
        for job in found
    ]
    return table_of(columns, [[styled(cell) for cell in row] for row in rows])
