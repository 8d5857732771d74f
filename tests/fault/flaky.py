"""A store whose calls fail on demand: before they are made, or after they have happened and only the answer is lost."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from treadle import Queue
from treadle.errors import StoreUnavailable
from treadle.store.base import Store

When = Literal["before", "after"]


class Fault(NamedTuple):
    nth: int
    when: When
    lasts: int = 1
    """How many calls in a row fail."""

    def hits(self, number: int) -> bool:
        return self.nth <= number < self.nth + self.lasts


class Calls:
    """Counts the calls of all stores of a queue, from every thread, and remembers which failed."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.made: list[str] = []
        self.failed: list[str] = []
        self._numbers = itertools.count(1)

    async def make(self, verb: str, call: Callable[..., Any], *values: Any, **options: Any) -> Any:
        number = next(self._numbers)
        self.made.append(verb)
        hit = self.fault is not None and self.fault.hits(number)
        if hit:
            self.failed.append(verb)
        if hit and self.fault and self.fault.when == "before":
            raise StoreUnavailable(f"call {number} ({verb}) was never made")
        answer = await call(*values, **options)
        if hit:
            raise StoreUnavailable(f"the answer to call {number} ({verb}) was lost")
        return answer


class FlakyStore:
    def __init__(self, store: Store, calls: Calls) -> None:
        self._store = store
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name in ("open", "close") or not inspect.iscoroutinefunction(attribute):
            return attribute
        return functools.partial(self._calls.make, name, attribute)


class FlakyQueue(Queue):
    """Every store that it opens, its workers' lease keepers' too, is flaky."""

    def __init__(self, url: str, calls: Calls) -> None:
        super().__init__(url)
        self._calls = calls

    def new_store(self) -> Store:
        store: Any = FlakyStore(super().new_store(), self._calls)
        return store
