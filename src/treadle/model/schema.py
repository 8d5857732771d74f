"""Validates payloads with the JSON schema of a saved template, for topics without a handler in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs
from pydantic_core import from_json, to_json

from treadle.model.errors import InvalidAnswer, InvalidInput, InvalidPayload
from treadle.model.payload import dumps_object


def payload_writer(topic: str, schema: dict[str, Any]) -> Callable[[Any], str]:
    """Converts a payload to the stored text; refuses it with the path if the schema does not allow it."""
    validator = _validator(to_json(schema))

    def write(payload: Any) -> str:
        text = dumps_object(payload)
        error = next(validator.iter_errors(from_json(text)), None)
        if error is not None:
            path = ".".join(str(part) for part in ("payload", *error.instance_path))
            raise InvalidPayload(f"{topic}: {path}: {error.message[:300]}", field=path[:200])
        return text

    return write


def check_answer(step: str, schema: Mapping[str, Any], text: str) -> None:
    """Refuse an answer that its step's schema does not allow, with the path."""
    error = next(_validator(to_json(schema)).iter_errors(from_json(text)), None)
    if error is not None:
        path = ".".join(str(part) for part in ("result", *error.instance_path))
        raise InvalidAnswer(f"{step}: {path}: {error.message[:300]}", field=path[:200])


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    try:
        return jsonschema_rs.validator_for(schema.decode(), retriever=_refuse)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidInput(f"the payload schema can't be used: {str(error)[:300]}", field="payloadSchema") from None


def _refuse(address: str) -> Any:
    """Refuses external references: a schema must be self-contained, and nothing is ever fetched."""
    raise ValueError(f"{address[:100]} is outside of the schema")
