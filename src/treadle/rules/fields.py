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
    """Also true and false, which are 1 and 0; absent is null."""


_TEXTS = (
    "id topic status lastError errorType progressMessage step cancelReason scope scopeId createdBy idempotencyKey "
    "capability lockedBy scheduleId parentId webhookUrl"
)
_DATES = (
    "staleAt runAt expiresAt createdAt updatedAt startedAt claimedAt completedAt failedAt cancelledAt "
    "lastHeartbeatAt lockedUntil cancelRequestedAt"
)
_NUMBERS = "priority progress attempt maxAttempts retries maxRetries eventsCount templateVersion webhookSent"

FIELDS: Mapping[str, Kind] = {
    **dict.fromkeys(_TEXTS.split(), Kind.TEXT),
    **dict.fromkeys(_DATES.split(), Kind.DATE),
    **dict.fromkeys(_NUMBERS.split(), Kind.NUMBER),
}
"""Single values; the JSON in the documents is reached by paths."""

DOCUMENTS = ("payload", "result", "steps")
