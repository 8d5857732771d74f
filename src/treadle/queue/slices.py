"""Long work on an event loop, in slices between which everything else goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.010


async def in_slices(items: Iterable[T], *, pauses: bool = True) -> AsyncIterator[T]:
    """The items one by one, with a pause for the loop whenever a slice is used up.

    `pauses=False` is for callers that may have no loop: blocking ones with a connection.
    """
    until = time.perf_counter() + SLICE_S
    for item in items:
        yield item
        if pauses and time.perf_counter() > until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_S
