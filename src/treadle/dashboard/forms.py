"""Parses form input; an error names the form's field."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from pydantic_core import from_json

from treadle.http.errors import ApiError
from treadle.http.instants import instant
from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput

# Form field names that differ from Python's.
_NAMES = {
    "run_at": "runAt",
    "max_attempts": "maxAttempts",
    "scope_id": "scopeId",
    "expires_at": "expiresAt",
    "idempotency_key": "idempotencyKey",
}


def time_of(text: str, now: datetime, field: str = "run_at") -> datetime:
    """An instant, or a delay from now."""
    if text[:1].isdigit() and text[-1:].isalpha() and "T" not in text.upper():
        return now + timedelta(milliseconds=duration_ms(text, field))
    try:
        return instant(text, field)
    except ApiError as error:
        raise InvalidInput(error.message, field=field) from None


def priority_of(text: str) -> int | str | None:
    return int(text) if text.lstrip("-").isdigit() and len(text) < 12 else text or None


def count_of(text: str, field: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise InvalidInput(f"{field}: {text[:40]!r} is not a number", field=field)
    return int(text)


def object_of(text: str) -> dict[str, Any]:
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(f"payload: not JSON: {str(error)[:200]}", field="payload") from None
    if not isinstance(value, dict):
        raise InvalidInput("payload: must be a JSON object, such as {}", field="payload")
    return value


def problem_of(error: InvalidInput) -> dict[str, str]:
    """The error message for the field that caused it, if the error names one."""
    field = str(error.data.get("field") or "")
    message = error.message.removeprefix(f"{field}: ")
    return {_NAMES.get(field, field).partition(".")[0]: message[:1].upper() + message[1:]}


def page_number(text: str, most: int) -> int:
    """Which page of a list the address names: the first one unless it is a number."""
    return min(max(int(text), 1), most) if text.isascii() and text.isdigit() and len(text) < 10 else 1
