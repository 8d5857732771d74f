"""How the demo shows its jobs: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

from treadle.cli.jobs import note
from treadle.cli.output import Column, console, print_table, say, status, styled, table_of

if TYPE_CHECKING:
    from rich.text import Text

    from treadle.job import Job

COLUMNS = (
    Column("what it shows"),
    Column("topic"),
    Column("status"),
    Column("try", number=True),
    Column("note", flexible=True),
)


class View(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def show(self, titles: Sequence[str], jobs: Sequence[Job]) -> None:
        """The jobs as they are now, each with what it is there to show."""


class Nothing:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, titles: Sequence[str], jobs: Sequence[Job]) -> None:
        pass


class LiveTable(Nothing):
    """Redrawn in place, and gone when the demo is over."""

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(console=console(), auto_refresh=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, titles: Sequence[str], jobs: Sequence[Job]) -> None:
        rows = [_row(title, job) for title, job in zip(titles, jobs, strict=True)]
        self._live.update(table_of(COLUMNS, rows), refresh=True)


class ChangesAsLines(Nothing):
    """Starting from pending, which all are."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def show(self, titles: Sequence[str], jobs: Sequence[Job]) -> None:
        for title, job in zip(titles, jobs, strict=True):
            state = f"{job.status} (attempt {job.attempt})" if job.attempt else str(job.status)
            if self._seen.get(job.id, "pending") != state:
                self._seen[job.id] = state
                say(f"{job.topic} ({title}): {state}")


def print_result(titles: Sequence[str], jobs: Sequence[Job]) -> None:
    print_table(COLUMNS, [_row(title, job) for title, job in zip(titles, jobs, strict=True)])
    counts = Counter(str(job.status) for job in jobs)
    say(", ".join(f"{count} {name}" for name, count in counts.most_common()))


def _row(title: str, job: Job) -> list[Text]:
    remark = json.dumps(job.result_value) if job.status == "completed" else note(job)
    return [
        styled(title),
        styled(job.topic),
        status(job.status),
        styled(f"{job.attempt}/{job.max_attempts}"),
        styled(remark),
    ]
