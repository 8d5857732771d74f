"""The output of a job: values that its handler emits to named channels while it runs."""

from __future__ import annotations

import re
from typing import Any

from treadle.model.errors import InvalidInput
from treadle.model.payload import dumps

DEFAULT_CHANNEL = "output"
MAX_CHANNELS = 100
MAX_CHANNEL_BYTES = 16 * 1024 * 1024
_CHANNEL = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def checked_channel(name: str) -> str:
    if not isinstance(name, str) or not _CHANNEL.fullmatch(name):
        raise InvalidInput(
            f"channel: {str(name)[:60]!r} is not a channel; use letters, digits, _ . and -, at most 100 characters",
            field="channel",
        )
    return name


def value_text(value: Any) -> str:
    """A value as JSON text; it has a payload's limits."""
    return dumps(value, "value")


def check_room(channel: str, stored: int, more: int) -> None:
    """Refuse what doesn't fit into the channel any more. Sizes are in bytes of JSON."""
    if stored + more > MAX_CHANNEL_BYTES:
        raise InvalidInput(
            f"channel {channel} is full: it has {stored:,} bytes and {more:,} more would pass the limit of "
            f"{MAX_CHANNEL_BYTES:,}; store the data elsewhere and emit a reference",
            field="channel",
        )


def check_channels(channel: str, others: int) -> None:
    """Refuse a new channel if the job has as many as it may have."""
    if others >= MAX_CHANNELS:
        raise InvalidInput(f"channel {channel}: a job has at most {MAX_CHANNELS} channels", field="channel")
