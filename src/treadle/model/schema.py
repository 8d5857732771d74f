"""Validates payloads with the JSON schema of a saved template, for topics without a handler in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jsonschema_rs
from pydantic_core import from_json, to_json

from treadle.model.errors import InvalidAnswer, InvalidInput, InvalidPayload
from treadle.model.payload import dumps_object
from treadle.model.secrets import Path, touches


def payload_writer(topic: str, schema: dict[str, Any], secret: Sequence[Path] = ()) -> Callable[[Any], str]:
    """Converts a payload to the stored text; refuses it with the path if the schema does not allow it."""
    validator = _validator(to_json(schema))

    def write(payload: Any) -> str:
        text = dumps_object(payload)
        error = next(validator.iter_errors(from_json(text)), None)
        if error is not None:
            inside, message = _told(error)
            path = ".".join(("payload", *inside))
            # The validator quotes what it refuses.
            if touches(error.instance_path, secret):
                message = "it has a secret, and the schema does not accept it"
            raise InvalidPayload(f"{topic}: {path}: {message}", field=path[:200])
        return text

    return write


def check_answer(step: str, schema: Mapping[str, Any], text: str) -> None:
    """Refuse an answer that its step's schema does not allow, with the path."""
    error = next(_validator(to_json(schema)).iter_errors(from_json(text)), None)
    if error is not None:
        inner, message = _told(error)
        path = ".".join(("result", *inner))
        raise InvalidAnswer(f"{step}: {path}: {message}", field=path[:200])


def schema_problems(schema: dict[str, Any], payload: Any) -> list[tuple[tuple[str, ...], str]]:
    """Everything that the schema does not allow: the path inside the payload, also of a missing member, and why."""
    return [_told(error) for error in _validator(to_json(schema)).iter_errors(payload)]


def _told(error: Any) -> tuple[tuple[str, ...], str]:
    """Where a payload does not fit, and why."""
    path = tuple(str(part) for part in error.instance_path)
    missing = getattr(error.kind, "property", None)
    if isinstance(missing, str):
        return (*path, missing), "is required"
    branches = getattr(error.kind, "context", None)
    if branches and len(branches) == 2 and _is_null(branches[1]):  # an optional field: say what its type refuses
        return _told(branches[0][0])
    return path, error.message[:300]


def _is_null(branch: Any) -> bool:
    return len(branch) == 1 and getattr(branch[0].kind, "types", None) == ["null"]


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    try:
        return jsonschema_rs.validator_for(schema.decode(), retriever=_refuse)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidInput(f"the payload schema can't be used: {str(error)[:300]}", field="payloadSchema") from None


def _refuse(address: str) -> Any:
    """Refuses external references: a schema must be self-contained, and nothing is ever fetched."""
    raise ValueError(f"{address[:100]} is outside the schema")
