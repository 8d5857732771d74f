"""Long work on an event loop, in slices between which everything else goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.010


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """The items one by one, with a pause for the loop whenever a slice is used up."""
    until = time.perf_counter() + SLICE_S
    for item in items:
        yield item
        if time.perf_counter() > until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_S
