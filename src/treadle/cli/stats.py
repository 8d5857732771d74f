"""`treadle stats`: job counts, success rates and run times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import options
from treadle.cli.database import ask, named_database
from treadle.cli.output import Column, print_json, print_table, say, span

if TYPE_CHECKING:
    from treadle.insights.stats import QueueStats
    from treadle.queue import Queue


def stats(
    topic: options.Topic = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only count jobs that ended since then: an age (1h, 7d) or a time (2026-12-24T18:00:00Z).",
        ),
    ] = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Count jobs by topic and status, with success rate and run time.

    Pending and running jobs are counted as they are now. Endings are counted by the minute.
    """
    start = options.since(since)

    async def read(queue: Queue) -> tuple[QueueStats, str]:
        return await queue.stats(topic=topic, since=start), named_database(queue, db)

    found, where = ask(db, read)
    if as_json:
        print_json(found.as_json())
    elif not found.topics:
        say(f"no jobs{where}")
    else:
        if where:
            say(f"jobs{where}")
        _print(found)


def table(found: QueueStats) -> tuple[list[Column], list[list[str]]]:
    """Columns and rows: a topic per line, and all of them at the end."""
    from treadle.model.status import Status

    total = {status.value: getattr(found, status.value) for status in Status}
    shown = [name for name, count in total.items() if count or name in ("pending", "completed", "failed")]
    rows = [[topic, *_cells(counts, shown)] for topic, counts in sorted(found.topics.items())]
    if len(rows) > 1:
        rows.append(["all", *_cells(total, shown)])
    return [Column("topic"), *(Column(name, number=True) for name in shown)], rows


def _print(found: QueueStats) -> None:
    print_table(*table(found))
    if found.success_rate is not None:
        say(f"success rate {found.success_rate:.1%}")
    if found.avg_execution_time is not None:
        say(f"average run time {_milliseconds(found.avg_execution_time)}")


def _cells(counts: Mapping[str, int], shown: Sequence[str]) -> list[str]:
    """Blank for zero, so that other values stand out."""
    return [f"{counts[name]:,}" if counts[name] else "" for name in shown]


def _milliseconds(value: float) -> str:
    from datetime import timedelta

    return f"{value:.0f} ms" if value < 1000 else span(timedelta(milliseconds=value))
