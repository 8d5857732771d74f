"""Output of commands: JSON for programs, tables for people, and no terminal control characters."""

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
# For pipes and files, which have no width limit.
UNBOUNDED = 10_000

# Characters that move the cursor, ring the bell, reorder text or break a line inside a word.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """The text with control characters escaped; line breaks and tabs stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    return safe(" ".join(text.split()))


def print_json(value: Any) -> None:
    """Indented JSON, in UTF-8, or with escapes if the terminal has no UTF-8."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    print(json.dumps(value, indent=2, ensure_ascii=ascii_only))


def listed(items: Iterable[Any], **more: Any) -> dict[str, Any]:
    """The JSON format of every list."""
    return {"items": list(items), **more}


def say(text: str) -> None:
    """One plain line for people."""
    print(one_line(text))


_quiet = False


def be_quiet(quiet: bool) -> None:
    """Suppress notes, for programs that read the output."""
    global _quiet  # noqa: PLW0603 - one command a process
    _quiet = quiet


def note(text: str) -> None:
    """One line on stderr about what the command does."""
    if not _quiet:
        complain(text)


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
    """May be wrapped if space is short; all other columns are shown in full."""
    extra: bool = False
    """May be left out if space is even shorter."""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Text | str]]) -> None:
    """Print a table if the terminal is wide enough, with extra columns below their rows if necessary. Otherwise print
    one paragraph per row.
    """
    cells = [[styled(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    out = console()
    if _fits(out, whole := table_of(columns, cells)):
        return _emit(out, whole)
    needed = [i for i, column in enumerate(columns) if not column.extra]
    extra = [i for i, column in enumerate(columns) if column.extra]
    short = table_of([columns[i] for i in needed], [[row[i] for i in needed] for row in cells])
    if extra and _fits(out, short):
        return _print_with_extras(out, short, [[row[i] for i in extra] for row in cells])
    for row in cells:
        _print_paragraph(out, columns, row)


def print_list(
    documents: Iterable[Any], columns: Sequence[Column], rows: Sequence[Sequence[Text | str]], none: str, as_json: bool
) -> None:
    """A list as JSON, as a table, or as one line that says that it is empty."""
    if as_json:
        print_json(listed(documents))
    elif rows:
        print_table(columns, rows)
    else:
        say(none)


def _fits(out: Console, table: Table) -> bool:
    return out.measure(table, options=out.options.update(max_width=UNBOUNDED)).minimum <= out.width


def _print_with_extras(out: Console, table: Table, extras: Sequence[Sequence[Text]]) -> None:
    """Each row on one line, followed by the columns that did not fit, cut at the line's end."""
    from rich.text import Text

    header, *lines = (
        Text.assemble(*((part.text, part.style or "") for part in line))
        for line in out.render_lines(table, out.options.update(no_wrap=True), pad=False)
    )
    shown = [header]
    for line, extra in zip(lines, extras, strict=True):
        shown += [line, *(Text("  ") + cell for cell in extra if cell.plain)]
    for text in shown:
        text.rstrip()
        text.truncate(out.width, overflow="ellipsis")
        out.print(text, no_wrap=True)


def _emit(out: Console, shown: RenderableType) -> None:
    """Tables pad their cells with blanks; strip them at line ends in files and pipes."""
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
    """Names and values, one per line."""
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
    """A duration in its largest fitting unit."""
    seconds = abs(duration.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 or seconds == 0 else f"{seconds:.1f}s"


def age(when: datetime) -> str:
    return span(datetime.now(UTC) - when)


def relative(when: datetime) -> str:
    """Relative to now: "5m ago", "in 2h"."""
    away = when - datetime.now(UTC)
    return f"in {span(away)}" if away > timedelta(0) else f"{span(away)} ago"
