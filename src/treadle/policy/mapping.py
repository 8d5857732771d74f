"""Maps: one step for each item of a list. Which key an item has, and how many may fail, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from treadle.model.durations import shown
from treadle.model.errors import InvalidInput, TooManySteps
from treadle.model.lazy_list import LazyList
from treadle.model.steps import MAX_ROWS, checked_key

ItemKey: TypeAlias = "str | Callable[[Any], Any] | None"
"""A field of the item, a function of it, or None for its place in the list."""
LIMIT = 8
MOST_AT_ONCE = 1_000


def checked_limit(name: str, limit: Any) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_AT_ONCE:
        raise InvalidInput(
            f"map {name}: limit: {shown(limit)!r} is not a number from 1 to {MOST_AT_ONCE:,}", field="limit"
        )
    return limit


def checked_key_of(name: str, key: Any) -> ItemKey:
    if key is None or callable(key) or (isinstance(key, str) and key):
        return key  # type: ignore[no-any-return]
    raise InvalidInput(
        f"map {name}: key: {shown(key)!r} is not the name of a field or a function of the item", field="key"
    )


def checked_max_failed(name: str, most: Any) -> int | str:
    if isinstance(most, int) and not isinstance(most, bool) and most >= 0:
        return most
    if isinstance(most, str) and _percent(most) is not None:
        return most
    raise InvalidInput(
        f'map {name}: max_failed: {shown(most)!r} is not a number or a share such as "2%"', field="max_failed"
    )


def _percent(text: str) -> float | None:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        return None
    return percent if text.endswith("%") and 0 <= percent <= 100 else None


def may_fail(most: int | str, total: int) -> int:
    """How many of the items may fail."""
    return most if isinstance(most, int) else math.floor(total * (_percent(most) or 0) / 100)


def checked_items(name: str, items: Any) -> Sequence[Any]:
    """The list to map over. A text or an object is iterable too, but surely a mistake."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise InvalidInput(f"map {name}: {shown(items)!r} is not a list", field="items")
    listed = items if isinstance(items, list | tuple | LazyList) else list(islice(items, MAX_ROWS + 1))
    if len(listed) > MAX_ROWS:
        raise TooManySteps(
            f"map {name}: {len(listed):,} items are more than the {MAX_ROWS:,} that a job can have; "
            "map over lists of items, or split the work into several jobs"
        )
    return listed


def keys_of(name: str, items: Iterable[Any], key: ItemKey) -> list[str]:
    """The key of each item; an error if two have the same."""
    keys: list[str] = []
    places: dict[str, int] = {}
    for place, item in enumerate(items):
        one = checked_key(_key_of(name, place, item, key))
        if not one:
            raise InvalidInput(f"map {name}: item {place} has an empty key", field="key")
        before = places.setdefault(one, place)
        if before != place:
            raise InvalidInput(f"map {name}: items {before} and {place} have the same key, {shown(one)!r}", field="key")
        keys.append(one)
    return keys


def _key_of(name: str, place: int, item: Any, key: ItemKey) -> Any:
    if key is None:
        return place
    if callable(key):
        return key(item)
    try:
        return item[key] if isinstance(item, Mapping) else getattr(item, key)
    except (KeyError, AttributeError):
        raise InvalidInput(
            f"map {name}: item {place} has no field {shown(key)!r}, which is its key", field="key"
        ) from None
