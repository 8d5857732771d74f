"""Options that several commands share, and the values that people write in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from treadle.errors import InvalidInput
from treadle.policy import duration_ms

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
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only jobs of this topic.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
JobIds = Annotated[list[str], typer.Argument(metavar="ID...", help="One or more ids.", show_default=False)]


def instant(text: str, option: str) -> datetime:
    """A point in time, with its zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option}: {text[:40]!r} is not a time; write it like 2026-12-24T18:00:00Z") from None
    if when.tzinfo is None:
        raise InvalidInput(f"{option}: {text[:40]!r} has no time zone; write {text[:40]}Z for UTC")
    return when


def since(text: str | None) -> datetime | None:
    """An age ("1h") or a point in time."""
    if text is None:
        return None
    if text.endswith(("s", "m", "h", "d")):
        return datetime.now(UTC) - timedelta(milliseconds=duration_ms(text, "--since"))
    return instant(text, "--since")


def names(text: str | None) -> list[str] | None:
    """A list with commas."""
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]


def priority(text: str | None) -> str | int | None:
    """A name, or a number in digits."""
    return int(text) if text is not None and text.removeprefix("-").isdigit() and len(text) < 12 else text
