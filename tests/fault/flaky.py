"""Faults by number: the n-th call fails before it is made, or after it has happened and only the answer is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from treadle.model.errors import StoreUnavailable

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
