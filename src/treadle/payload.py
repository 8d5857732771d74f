"""Payloads and results are JSON text that every store can keep; this is where that is made sure.

JSON libraries let through what databases choke on: NaN, lone surrogates, NUL, integers past 64
bits, nesting without end. `dumps` refuses those with the path of the culprit; `loads` is for text
from outside. Limits hold on every store alike.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from treadle.errors import InvalidPayload, PayloadTooLarge

MAX_BYTES = 1_048_576
MAX_DEPTH = 100
INT_MAX = 2**63 - 1
INT_MIN = -(2**63)


def dumps(value: Any, what: str = "payload") -> str:
    """Compact JSON text of `value`, checked."""
    try:
        if not _plain(value, 0):
            _check(value, what, 0)
        text = to_json(value, inf_nan_mode="constants")
    except (PydanticSerializationError, RecursionError) as error:
        raise InvalidPayload(f"{what} can't be written as JSON: {error}", field=what) from None
    if len(text) > MAX_BYTES:
        raise PayloadTooLarge(
            f"{what} is {len(text):,} bytes of JSON, the limit is {MAX_BYTES:,}; "
            "store the data elsewhere and pass a reference",
            field=what,
        )
    return text.decode()


def loads(text: str | bytes, what: str = "payload") -> Any:
    """Parse JSON from outside under the same rules as `dumps`."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidPayload(f"{what} is not JSON: {error}", field=what) from None
    dumps(value, what)
    return value


def dumps_object(value: Any, what: str = "payload") -> str:
    """Like `dumps` for a payload: a JSON object, `{}` if there is none."""
    if value is None:
        return "{}"
    text = dumps(value, what)
    if not text.startswith("{"):
        raise InvalidPayload(f"{what} must be a JSON object, not {type(value).__name__}", field=what)
    return text


def _plain(value: Any, depth: int) -> bool:
    """True for the everyday value; whatever it is unsure of goes to `_check`, which knows the path."""
    kind = type(value)
    if kind is str:
        return value.isascii() and "\x00" not in value
    if kind is dict:
        return depth < MAX_DEPTH and all(
            type(key) is str and key.isascii() and "\x00" not in key and _plain(item, depth + 1)
            for key, item in value.items()
        )
    if kind is int:
        return INT_MIN <= value <= INT_MAX
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return depth < MAX_DEPTH and all(_plain(item, depth + 1) for item in value)
    return value is None or kind is bool


def _check(value: Any, path: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, path)
    elif kind is dict:
        if depth >= MAX_DEPTH:
            raise InvalidPayload(f"{path} is nested more than {MAX_DEPTH} levels deep", field=path)
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidPayload(f"{path} has a key that is not a string: {key!r}"[:200], field=path)
            _check_text(key, path)
            _check(item, f"{path}.{key}", depth + 1)
    elif kind is list or kind is tuple:
        if depth >= MAX_DEPTH:
            raise InvalidPayload(f"{path} is nested more than {MAX_DEPTH} levels deep", field=path)
        for i, item in enumerate(value):
            _check(item, f"{path}[{i}]", depth + 1)
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise InvalidPayload(f"{path} is an integer of more than 64 bits; send it as text", field=path)
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidPayload(f"{path} is {value}, which JSON does not have", field=path)
    elif value is not None and kind is not bool:
        # Dates, UUIDs, enums, dataclasses and models: pydantic writes them; check what it wrote.
        _check(from_json(to_json(value, inf_nan_mode="constants")), path, depth)


def _check_text(value: str, path: str) -> None:
    if "\x00" in value:
        raise InvalidPayload(f"{path} has a NUL character, which databases can't store as text", field=path)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidPayload(f"{path} has a lone surrogate, which is not valid Unicode", field=path) from None
