"""Makes sure that payloads and results are JSON text that every store can keep.

JSON libraries accept values that databases can't store: NaN, lone surrogates, NUL, integers beyond 64 bits, unlimited
nesting. `dumps` refuses them and reports the path; `loads` is for text from outside. The limits are the same for every
store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pydantic_core import SchemaSerializer, core_schema, from_json, to_json

from treadle.model.errors import InvalidPayload, PayloadTooLarge

MAX_BYTES = 1_048_576
MAX_DEPTH = 100
MAX_PATH = 200
INT_MAX = 2**63 - 1
INT_MIN = -(2**63)
_ANYTHING = SchemaSerializer(core_schema.any_schema())


def dumps(value: Any, what: str = "payload", limit: int = MAX_BYTES) -> str:
    """`value` as compact JSON text, validated."""
    text = to_json(value if is_plain(value, 0) else _checked(value, what, 0))
    if len(text) > limit:
        raise PayloadTooLarge(
            f"{what} is {len(text):,} bytes of JSON, the limit is {limit:,}; "
            "store the data elsewhere and pass a reference",
            field=what,
        )
    return text.decode()


def loads(text: str | bytes, what: str = "payload") -> Any:
    """Parse JSON from outside, with the same rules as `dumps`."""
    try:
        value = from_json(text.encode() if isinstance(text, str) else text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidPayload(f"{what} is not JSON: {error}", field=what) from None
    dumps(value, what)
    return value


def check_plain(value: Any, what: str) -> None:
    """Refuse parsed JSON that a store could not keep."""
    if not is_plain(value):
        _checked(value, what, 0)


def dumps_object(value: Any, what: str = "payload") -> str:
    """Like `dumps` for a payload: a JSON object, `{}` if there is none."""
    if value is None:
        return "{}"
    text = dumps(value, what)
    if not text.startswith("{"):
        raise InvalidPayload(f"{what} must be a JSON object, not {type(value).__name__}", field=what)
    return text


def is_plain(value: Any, depth: int = 0) -> bool:
    """True for common values. Anything uncertain goes to `_checked`, which can report the path."""
    kind = type(value)
    if kind is str:
        return value.isascii() and "\x00" not in value
    if kind is int:
        return bool(INT_MIN <= value <= INT_MAX)
    if kind is dict:
        for key in value:
            if type(key) is not str or not key.isascii() or "\x00" in key:
                return False
        return depth < MAX_DEPTH and _all_plain(value.values(), depth + 1)
    if kind is list:
        return depth < MAX_DEPTH and _all_plain(value, depth + 1)
    if kind is float:
        return math.isfinite(value)
    return value is None or kind is bool


def _all_plain(values: Iterable[Any], depth: int) -> bool:
    # Runs for every payload and result: texts are checked here, because a call takes longer than the check.
    for value in values:
        if type(value) is str:
            if not value.isascii() or "\x00" in value:
                return False
        elif not is_plain(value, depth):
            return False
    return True


def _checked(value: Any, path: str, depth: int) -> Any:
    """The value in plain JSON types. Returns what was checked, because an iterator yields only once."""
    kind = type(value)
    if kind is str:
        return _checked_text(value, path)
    if kind is dict:
        _check_depth(path, depth)
        return {
            _checked_key(key, path): _checked(item, f"{path}.{key}"[:MAX_PATH], depth + 1)
            for key, item in value.items()
        }
    if kind is list or kind is tuple:
        _check_depth(path, depth)
        return [_checked(item, f"{path}[{i}]"[:MAX_PATH], depth + 1) for i, item in enumerate(value)]
    if kind is int and not INT_MIN <= value <= INT_MAX:
        raise _refused(path, "is an integer of more than 64 bits; send it as text")
    if kind is float and not math.isfinite(value):
        raise _refused(path, f"is {value}, which JSON can't express")
    if value is None or kind in (int, float, bool):
        return value
    return _checked(_written(value, path), path, depth)


def _written(value: Any, path: str) -> Any:
    """Dates, UUIDs, enums, dataclasses and models, serialized by pydantic; the output is checked like any value."""
    try:
        text = to_json(value, inf_nan_mode="constants")
        written, suspect = from_json(text), _ANYTHING.to_python(value) if b"null" in text else None
    except ValueError as error:
        raise _refused(path, f"can't be written as JSON: {error}") from None
    check_finite(suspect, path)
    return written


def check_finite(value: Any, path: str) -> None:
    """Models and typed fields write NaN and Infinity as null, which would be read back as a different value."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(path, f"has a {value}, which JSON can't express")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for item in value:
        check_finite(item, path)


def _check_depth(path: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _refused(path, f"is nested more than {MAX_DEPTH} levels deep")


def _checked_key(key: Any, path: str) -> str:
    if type(key) is not str:
        raise _refused(path, f"has a key that is not a string but {type(key).__name__}")
    return _checked_text(key, path)


def _checked_text(value: str, path: str) -> str:
    if "\x00" in value:
        raise _refused(path, "has a NUL character, which databases can't store as text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refused(path, "has a lone surrogate, which is not valid Unicode") from None
    return value


def _refused(path: str, problem: str) -> InvalidPayload:
    return InvalidPayload(f"{path} {problem}", field=path)
