"""Large values on a page: its beginning, and the whole when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.dashboard import words

LARGE_BYTES = 16 * 1024
"""A larger value is shown in part, so that a page stays light."""
SAMPLE_BYTES = 4 * 1024
"""Code samples of a larger payload are made when they are opened: each repeats it."""
MOST_NODES, MOST_MEMBERS, MOST_TEXT = 120, 12, 200


class More(str):
    """Stands for what is left out."""

    __slots__ = ()


class CutDict(dict[str, Any]):
    """The first members of an object that has `total`."""

    total: int


class CutList(list[Any]):
    """The first items of a list that has `total`."""

    total: int


def members(value: Any) -> int:
    """How many members the whole value has."""
    return value.total if isinstance(value, CutDict | CutList) else len(value)


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A payload or a result, as a page shows it."""

    value: Any
    bytes: int
    folded: bool

    @property
    def size(self) -> str:
        return words.size(self.bytes)


def shown_value(value: Any) -> ShownValue:
    length = len(words.as_json(value).encode())
    folded = length > LARGE_BYTES
    return ShownValue(_Cutter().cut(value) if folded else value, length, folded)


class _Cutter:
    """Keeps the first members of each level until there are enough."""

    def __init__(self) -> None:
        self._left = MOST_NODES

    def cut(self, value: Any) -> Any:
        self._left -= 1
        if isinstance(value, str) and len(value) > MOST_TEXT:
            return More(f"{words.as_json(value[:MOST_TEXT])[:-1]}… {len(value) - MOST_TEXT:,} more characters")
        if isinstance(value, dict):
            kept = CutDict({key[:MOST_TEXT]: self.cut(one) for key, one in list(value.items())[: self._room()]})
            kept.total, more = len(value), len(value) - len(kept)
            if more:
                kept["…"] = More(f"{more:,} more members")
            return kept
        if isinstance(value, list):
            items = CutList(self.cut(one) for one in value[: self._room()])
            items.total, more = len(value), len(value) - len(items)
            if more:
                items.append(More(f"{more:,} more items"))
            return items
        return value

    def _room(self) -> int:
        return max(min(MOST_MEMBERS, self._left), 1)
