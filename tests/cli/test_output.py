"""What is printed, down to the character."""

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from treadle.cli import options, output
from treadle.cli.output import Column, one_line, relative, safe, span
from treadle.model.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, Zoë 🦊", "plain, Zoë 🦊"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("dos\r\nline", "dos\nline"),
        ("\x1b[2J\x07\x08\x7f", r"\x1b[2J\x07\x08\x7f"),
        ("over\rwritten", r"over\rwritten"),
        ("c1 \x9b31m", r"c1 \x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2028", r"\u2028"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_one_line_is_one_line() -> None:
    assert one_line("a\n  b\x1b\n\tc") == r"a b\x1b c"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (0.4, "0.4s"), (9.96, "10.0s"), (59, "59s"), (60, "1m"), (3599, "60m"), (7200, "2h"), (864000, "10d")],
)
def test_spans(seconds: float, shown: str) -> None:
    assert span(timedelta(seconds=seconds)) == shown


def test_times_seen_from_now() -> None:
    now = datetime.now(UTC)
    assert relative(now - timedelta(minutes=5)) == "5m ago"
    assert relative(now + timedelta(hours=3, seconds=1)) == "in 3h"


def drawn(monkeypatch: pytest.MonkeyPatch, width: int, colour: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, no_color=not colour, highlight=False)
    monkeypatch.setattr(output, "console", lambda: console)
    output.print_table(
        (Column("id"), Column("count", number=True), Column("note", flexible=True)),
        [["0190-aaaa", "7", "a note that is rather long and [bold]not markup"], ["0190-bbbb", "1,000", ""]],
    )
    return file.getvalue()


def test_a_wide_table(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.rstrip() for line in drawn(monkeypatch, 100).splitlines()]
    plain = [part.replace("\x1b[1m", "").replace("\x1b[0m", "").rstrip() for part in lines]
    assert plain == [
        "ID         COUNT  NOTE",
        "0190-aaaa      7  a note that is rather long and [bold]not markup",
        "0190-bbbb  1,000",
    ]


def test_a_narrower_one_breaks_only_what_may_break(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, 45)
    assert "0190-aaaa      7  a note that is rather" in text
    assert max(len(line.rstrip()) for line in text.splitlines()[1:]) <= 45


def test_a_very_narrow_terminal_gets_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, 30)
    assert "COUNT" not in text
    assert "count" in text
    assert "note" in text
    assert text.count("0190-") == 2


def test_extras_stand_below_their_rows_where_room_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(output, "console", lambda: Console(file=file, width=20, highlight=False))
    columns = (Column("id"), Column("note", flexible=True, extra=True))
    output.print_table(columns, [["0190-aaaa", "something that is long"], ["0190-bbbb", ""]])
    assert file.getvalue().splitlines() == ["ID", "0190-aaaa", "  something that is…", "0190-bbbb"]


# -- values that people write --------------------------------------------------------------------------------------


def test_names_and_priorities() -> None:
    assert options.names(None) is None
    assert options.names([" a, b,,c ", "d"]) == ["a", "b", "c", "d"]
    assert [options.priority(text) for text in (None, "high", "7", "-7", "x7")] == [None, "high", 7, -7, "x7"]


def test_instants() -> None:
    assert options.instant("2026-12-24T18:00:00Z", "--run-at") == datetime(2026, 12, 24, 18, tzinfo=UTC)
    assert options.instant("2026-12-24T18:00:00+02:00", "--run-at") == datetime(2026, 12, 24, 16, tzinfo=UTC)
    with pytest.raises(InvalidInput, match="has no time zone"):
        options.instant("2026-12-24", "--run-at")


def test_sizes_and_shortest_times() -> None:
    assert [options.size(text, "--max-memory") for text in (None, "512M", "2g", "10kb", "7")] == [
        None,
        512 * 2**20,
        2 * 2**30,
        10 * 2**10,
        7,
    ]
    for bad in ("0", "much", "-5M", "1.5G"):
        with pytest.raises(InvalidInput, match="--max-memory: .* is not a size"):
            options.size(bad, "--max-memory")
    assert options.shortest("2s", "--lease", "1s") == "2s"
    with pytest.raises(InvalidInput, match="--lease: 10ms is too short; at least 1s"):
        options.shortest("10ms", "--lease", "1s")
