"""Reads that are wanted at the same time share one statement."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.waiting import give_way
from treadle.http.gathering import Gathered


class Shelf:
    """Values that can be changed, read when the test lets a read go through; remembers what was asked."""

    def __init__(self) -> None:
        self.values = {"a": 1, "b": 2}
        self.asked: list[list[str]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, keys: Sequence[str]) -> Sequence[int | None]:
        self.asked.append(list(keys))
        found = [self.values.get(key) for key in keys]
        await self.gate.wait()
        if self.error:
            raise self.error
        return found


async def started() -> None:
    """All callers have run until they wait, and the read for the ones so far has begun."""
    await give_way(5)


async def test_a_lone_read_runs_immediately() -> None:
    shelf = Shelf()
    shelf.gate.set()
    gathered = Gathered(shelf.read)
    assert await gathered(["a", "missing"]) == [1, None]
    assert await gathered(["b"]) == [2]
    assert shelf.asked == [["a", "missing"], ["b"]]


async def test_concurrent_callers_and_those_during_a_read_are_read_together_each_key_once() -> None:
    shelf = Shelf()
    gathered = Gathered(shelf.read)
    first = [asyncio.create_task(gathered(keys)) for keys in (["a"], ["a", "b"])]
    await started()
    then = [asyncio.create_task(gathered(keys)) for keys in (["b"], ["missing", "b", "a"])]
    await started()
    shelf.gate.set()
    assert [await call for call in first + then] == [[1], [1, 2], [2], [None, 2, 1]]
    assert shelf.asked == [["a", "b"], ["b", "missing", "a"]]


async def test_what_a_caller_gets_was_read_after_it_asked() -> None:
    shelf = Shelf()
    gathered = Gathered(shelf.read)
    early = asyncio.create_task(gathered(["a"]))
    await started()
    shelf.values["a"] = 100
    late = asyncio.create_task(gathered(["a"]))
    await started()
    shelf.gate.set()
    assert await early == [1]
    assert await late == [100]


async def test_an_error_reaches_all_of_the_group_and_no_later_caller() -> None:
    shelf = Shelf()
    gathered = Gathered(shelf.read)
    calls = [asyncio.create_task(gathered([key])) for key in ("a", "a", "b")]
    await started()
    shelf.error = ConnectionError("away")
    shelf.gate.set()
    assert [type(one) for one in await asyncio.gather(*calls, return_exceptions=True)] == [ConnectionError] * 3
    shelf.error = None
    assert await gathered(["a"]) == [1]


async def test_a_caller_that_gives_up_does_not_affect_the_others() -> None:
    shelf = Shelf()
    gathered = Gathered(shelf.read)
    first = asyncio.create_task(gathered(["a"]))
    await started()
    second, third = (asyncio.create_task(gathered([key])) for key in ("a", "b"))
    await started()
    first.cancel()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    shelf.gate.set()
    assert await third == [2]
    assert shelf.asked == [["a"], ["b"]]
    assert await gathered(["a"]) == [1]
