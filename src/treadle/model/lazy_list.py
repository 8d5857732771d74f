"""A list whose values stay where they are and are read in pages, as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

ValueT = TypeVar("ValueT")
PAGE = 200


class LazyList(Sequence[ValueT]):
    """It keeps one page at a time. Equal to a list with the same values."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, length: int, read: Callable[[int, int], Sequence[ValueT]]) -> None:
        """`read(first, last)` returns the values from place `first` to before `last`."""
        self._length = length
        self._read = read
        self._first = 0
        self._page: Sequence[ValueT] = ()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> ValueT: ...
    @overload
    def __getitem__(self, place: slice) -> list[ValueT]: ...
    def __getitem__(self, place: int | slice) -> ValueT | list[ValueT]:
        if isinstance(place, slice):
            return [self._at(one) for one in range(*place.indices(self._length))]
        at = place + self._length if place < 0 else place
        if not 0 <= at < self._length:
            raise IndexError(f"no value {place} in a list of {self._length:,}")
        return self._at(at)

    def _at(self, place: int) -> ValueT:
        if not self._first <= place < self._first + len(self._page):
            self._first = place - place % PAGE
            self._page = self._read(self._first, min(self._first + PAGE, self._length))
        return self._page[place - self._first]

    def __iter__(self) -> Iterator[ValueT]:
        for first in range(0, self._length, PAGE):
            yield from self._read(first, min(first + PAGE, self._length))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, list | LazyList):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self]

    def __repr__(self) -> str:
        return f"<a list of {self._length:,} values, read in pages>"
