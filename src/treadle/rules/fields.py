"""The fields of a job that rules, filters and sorts may name, by their names in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Kind(Enum):
    TEXT = "text"
    """What is absent is the empty text, as in a PocketBase column."""
    DATE = "date"
    """RFC 3339 text, UTC, milliseconds; absent is the empty text, which is before every date."""
    NUMBER = "number"


_TEXTS = (
    "id topic status lastError errorType progressMessage cancelReason scope scopeId createdBy idempotencyKey "
    "capability lockedBy"
)
_DATES = "staleAt runAt expiresAt createdAt startedAt claimedAt completedAt failedAt cancelledAt"
_NUMBERS = "priority progress attempt maxAttempts retries maxRetries templateVersion"

FIELDS: Mapping[str, Kind] = {
    **dict.fromkeys(_TEXTS.split(), Kind.TEXT),
    **dict.fromkeys(_DATES.split(), Kind.DATE),
    **dict.fromkeys(_NUMBERS.split(), Kind.NUMBER),
}
"""Single values; the JSON in `payload` and `result` is reached by paths."""

DOCUMENTS = ("payload", "result")
