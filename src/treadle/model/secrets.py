"""Payload fields that only handlers may see: everyone else reads `***`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

HIDDEN = "***"
Path = tuple[str, ...]


def secret_paths(expressions: Iterable[str]) -> tuple[Path, ...]:
    """`card.number`, or the same with `input.` or `payload.` before it."""
    found = [tuple(expression.split(".")) for expression in expressions]
    return tuple(path[1:] if len(path) > 1 and path[0] in ("input", "payload") else path for path in found)


def hide(payload: Any, paths: Sequence[Path]) -> Any:
    """A copy without the values at these paths. A path goes into every item of a list."""
    if not paths:
        return payload
    if isinstance(payload, list):
        return [hide(item, paths) for item in payload]
    if not isinstance(payload, dict):
        return payload
    return {name: _hide_member(name, value, paths) for name, value in payload.items()}


def _hide_member(name: str, value: Any, paths: Sequence[Path]) -> Any:
    if (name,) in paths:
        return HIDDEN
    return hide(value, [path[1:] for path in paths if path[0] == name])


def restore(payload: Any, old: Any, paths: Sequence[Path]) -> Any:
    """An edited payload with the old values where `***` was left. In a list, only for items that are unchanged.

    An item of a list that was moved or edited keeps its `***`: its secret may be that of another item.
    """
    if isinstance(payload, list) and isinstance(old, list):
        if len(payload) != len(old):
            return payload
        pairs = zip(payload, old, strict=True)
        return [before if item == hide(before, paths) else item for item, before in pairs]
    if not isinstance(payload, dict) or not isinstance(old, dict):
        return payload
    return {name: _restore_member(name, value, old, paths) for name, value in payload.items()}


def _restore_member(name: str, value: Any, old: dict[str, Any], paths: Sequence[Path]) -> Any:
    if name not in old:
        return value
    if (name,) in paths:
        return old[name] if value == HIDDEN else value
    return restore(value, old[name], [path[1:] for path in paths if path[0] == name])


def is_hidden(payload: Any, path: Path) -> bool:
    """Whether `***` stands in place of the value, as in a payload that was read and is sent again."""
    if isinstance(payload, list):
        return any(is_hidden(item, path) for item in payload)
    if not path:
        return bool(payload == HIDDEN)
    return isinstance(payload, dict) and is_hidden(payload.get(path[0]), path[1:])


def touches(path: Sequence[str | int], paths: Iterable[Path]) -> bool:
    """Whether the value at `path` contains one of these values, or is part of one."""
    names = tuple(part for part in path if isinstance(part, str) and not part.isdigit())
    return any(names[: len(one)] == one[: len(names)] for one in paths)
