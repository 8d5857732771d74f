"""Validates payloads with the JSON schema of a saved template, for topics without a handler in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jsonschema_rs
from pydantic_core import from_json, to_json

from treadle.model.errors import InvalidInput, InvalidPayload
from treadle.model.payload import dumps_object
from treadle.model.secrets import Path, touches


def payload_writer(topic: str, schema: dict[str, Any], secret: Sequence[Path] = ()) -> Callable[[Any], str]:
    """Converts a payload to the stored text; refuses it with the path if the schema does not allow it."""
    validator = _validator(to_json(schema))

    def write(payload: Any) -> str:
        text = dumps_object(payload)
        error = next(validator.iter_errors(from_json(text)), None)
        if error is not None:
            path = ".".join(str(part) for part in ("payload", *error.instance_path))
            # The validator quotes what it refuses.
            quoted = touches(error.instance_path, secret)
            reason = "it has a secret, and its schema refuses it" if quoted else error.message[:300]
            raise InvalidPayload(f"{topic}: {path}: {reason}", field=path[:200])
        return text

    return write


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    try:
        return jsonschema_rs.validator_for(schema.decode(), retriever=_refuse)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidInput(f"the payload schema can't be used: {str(error)[:300]}", field="payloadSchema") from None


def _refuse(address: str) -> Any:
    """Refuses external references: a schema must be self-contained, and nothing is ever fetched."""
    raise ValueError(f"{address[:100]} is outside of the schema")
