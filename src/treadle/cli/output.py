"""What commands print: JSON for programs, tables for people, and nothing that could steer a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

STATUS_STYLES = {
    "pending": "cyan",
    "processing": "blue",
    "waiting": "blue",
    "cancelling": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "red",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}
# For pipes and files, where there is no width to fit into.
UNBOUNDED = 10_000

# Everything that moves a cursor, rings, reorders text or breaks a line in the middle of a word.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """The text with control characters spelled out; lines and tabs stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    return safe(" ".join(text.split()))


def print_json(value: Any) -> None:
    """Indented JSON, as UTF-8 or with escapes where the terminal knows no UTF-8."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    print(json.dumps(value, indent=2, ensure_ascii=ascii_only))


def listed(items: Iterable[Any], **more: Any) -> dict[str, Any]:
    """The shape of every list in JSON."""
    return {"items": list(items), **more}


def say(text: str) -> None:
    """One plain line for people."""
    print(one_line(text))


def complain(text: str) -> None:
    """One line on stderr."""
    print(f"treadle: {one_line(text)}", file=sys.stderr)


def console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNBOUNDED
    return Console(width=width, highlight=False, markup=False, emoji=False)


def styled(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(safe(text), style=style)


def status(name: str) -> Text:
    return styled(name, STATUS_STYLES.get(name, ""))


class Column(NamedTuple):
    name: str
    number: bool = False
    flexible: bool = False
    """May be broken into lines where room is short; all others are shown whole."""
    extra: bool = False
    """May be left out where room is shorter still."""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Text | str]]) -> None:
    """A table if the terminal is wide enough for it, perhaps without its extras; else one paragraph per row."""
    cells = [[styled(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    needed = [i for i, column in enumerate(columns) if not column.extra]
    out = console()
    for chosen in (range(len(columns)), needed):
        table = table_of([columns[i] for i in chosen], [[row[i] for i in chosen] for row in cells])
        if out.measure(table, options=out.options.update(max_width=UNBOUNDED)).minimum <= out.width:
            return _emit(out, table)
    for row in cells:
        _print_paragraph(out, columns, row)


def _emit(out: Console, shown: RenderableType) -> None:
    """Tables fill their cells with blanks; a file or a pipe gets none at the ends of lines."""
    if out.is_terminal:
        out.print(shown)
        return
    with out.capture() as captured:
        out.print(shown)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def table_of(columns: Sequence[Column], rows: Iterable[Sequence[Text]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.name.upper(),
            justify="right" if column.number else "left",
            no_wrap=not column.flexible,
            min_width=20 if column.flexible else None,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return table


def _print_paragraph(out: Console, columns: Sequence[Column], row: Sequence[Text]) -> None:
    out.print(row[0], style="bold", overflow="fold")
    print_facts({column.name: cell for column, cell in zip(columns[1:], row[1:], strict=True) if cell.plain}, indent=2)


def print_facts(facts: Mapping[str, Text | str], indent: int = 0) -> None:
    """Names and values, one a line."""
    from rich.padding import Padding
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, styled(value) if isinstance(value, str) else value)
    _emit(console(), Padding(grid, (0, 0, 0, indent), expand=False))


def print_heading(text: str) -> None:
    console().print(styled(text, "bold"))


def span(duration: timedelta) -> str:
    """A length of time in its largest fitting unit."""
    seconds = abs(duration.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 or seconds == 0 else f"{seconds:.1f}s"


def age(when: datetime) -> str:
    return span(datetime.now(UTC) - when)


def relative(when: datetime) -> str:
    """Seen from now: "5m ago", "in 2h"."""
    away = when - datetime.now(UTC)
    return f"in {span(away)}" if away > timedelta(0) else f"{span(away)} ago"
