"""Timestamps as clients write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from treadle.http.errors import bad_field
from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput
from treadle.model.job import to_ms

EXAMPLE = "write it like 2026-12-24T18:00:00Z"


def instant(text: str, field: str) -> datetime:
    """RFC 3339 with a time zone, within the range that every store can keep."""
    try:
        when = datetime.fromisoformat(text.upper())
    except ValueError:
        raise bad_field(field, f"is not a time; {EXAMPLE}") from None
    if when.utcoffset() is None:
        raise bad_field(field, f"has no time zone; {EXAMPLE}")
    try:
        to_ms(when, field)
    except InvalidInput as error:
        raise bad_field(field, error.message.partition(": ")[2]) from None
    except OverflowError:
        raise bad_field(field, "is out of range") from None
    return when


def optional_instant(text: str | None, field: str) -> datetime | None:
    return None if text is None else instant(text, field)


def since_instant(text: str) -> datetime:
    """An instant, or an age such as "1h"."""
    if not text.endswith(("s", "m", "h", "d")):
        return instant(text, "since")
    try:
        return max(
            datetime.now(UTC) - timedelta(milliseconds=duration_ms(text, "since")), datetime(1970, 1, 2, tzinfo=UTC)
        )
    except OverflowError:
        return datetime(1970, 1, 2, tzinfo=UTC)
