"""Options shared by several commands, and parsers for their values."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The database, such as sqlite:///jobs.db or postgresql://user@host/database.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], typer.Option("--log-level", help="The lowest level to log.")
]
JobId = Annotated[
    str, typer.Argument(metavar="ID", help="The job's id, or its first or last characters.", show_default=False)
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID...]", help="Ids, or their first or last characters.", show_default=False),
]


def instant(text: str, option: str) -> datetime:
    """An instant with a time zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option}: {text[:40]!r} is not a time; write it like 2026-12-24T18:00:00Z") from None
    if when.tzinfo is None:
        raise InvalidInput(f"{option}: {text[:40]!r} has no time zone; write {text[:40]}Z for UTC")
    return when


def since(text: str | None) -> datetime | None:
    """An age ("1h") or an instant."""
    if text is None:
        return None
    if text.endswith(("s", "m", "h", "d")):
        return datetime.now(UTC) - timedelta(milliseconds=duration_ms(text, "--since"))
    return instant(text, "--since")


def names(texts: list[str] | None) -> list[str] | None:
    """Comma-separated lists, from an option that may be repeated; None if it was not given."""
    return [name for text in texts for part in text.split(",") if (name := part.strip())] if texts else None


def priority(text: str | None) -> str | int | None:
    """A name or a number."""
    return int(text) if text is not None and text.removeprefix("-").isdigit() and len(text) < 12 else text


def shortest(text: str | None, option: str, least: str) -> str | None:
    """A duration of at least `least`."""
    if text is not None and duration_ms(text, option) < duration_ms(least):
        raise InvalidInput(f"{option}: {text} is too short; at least {least} is needed")
    return text


_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def size(text: str | None, option: str) -> int | None:
    """Bytes of "512M" or "2G"."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if not found or not int(found[1]):
        raise InvalidInput(f"{option}: {text[:40]!r} is not a size; write it like 512M or 2G")
    return int(found[1]) * _SIZES[found[2]]


def until(text: str | None) -> datetime | None:
    """A length from now ("1h") or an instant."""
    if text is None:
        return None
    if text.endswith(("s", "m", "h", "d")):
        return datetime.now(UTC) + timedelta(milliseconds=duration_ms(text, "--until"))
    return instant(text, "--until")


def plural(count: int, one: str) -> str:
    return f"{count:,} {one if count == 1 else one + 's'}"


def length(ms: int) -> str:
    """The two largest units: 38s, 14m 12s, 3h 22m, 2d 4h."""
    left = max(ms, 0) // 1000
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size}{unit}")
        left %= size
    return " ".join(parts) or "0s"
