"""Key expressions: which part of a job makes up its idempotency key, its dedupe key or the key of its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.model.errors import InvalidInput

# The idempotency key of `idempotent=True`.
WHOLE_PAYLOAD = "*"
_SCOPE_WORDS = {"scope": "scope", "scope_id": "scope_id", "scopeId": "scope_id"}


def checked_expression(expression: str) -> str:
    """`input.payment_id`, `payload.a.b`, a bare payload field, `scope` or `scope_id`."""
    parts = expression.split(".") if isinstance(expression, str) else []
    if not parts or not all(part.isidentifier() for part in parts):
        raise InvalidInput(f"key: {str(expression)[:60]!r} is not an expression like input.payment_id")
    return expression


def checked_expressions(expressions: Sequence[str], field: str) -> None:
    if isinstance(expressions, str):  # else it would count as a list of one-letter expressions
        raise InvalidInput(f"{field}: write a list, [{expressions[:60]!r}]", field=field)
    for expression in expressions:
        checked_expression(expression)


def evaluate_key(expression: str, payload: dict[str, Any], scope: str | None, scope_id: str | None) -> Any:
    """The value of a key expression; InvalidInput if the payload does not have it."""
    parts = checked_expression(expression).split(".")
    if len(parts) == 1 and parts[0] in _SCOPE_WORDS and parts[0] not in payload:
        return scope if _SCOPE_WORDS[parts[0]] == "scope" else scope_id
    if len(parts) > 1 and parts[0] in ("input", "payload"):
        parts = parts[1:]
    value: Any = payload
    for part in parts:
        if not isinstance(value, dict) or part not in value:
            raise InvalidInput(f"the payload has no {'.'.join(parts)}, which its key needs", field="payload")
        value = value[part]
    return value
