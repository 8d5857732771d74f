"""How races are run: actors that start together in random order, many times."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

FULL = os.environ.get("TREADLE_FAULT") == "full"
ROUNDS = 10_000 if FULL else 60
AT_ONCE = 20
ONE_BY_ONE = 10_000 if FULL else 40


async def together(*actors: Awaitable[Any]) -> Sequence[Any]:
    """Start all of them concurrently, in random order."""
    order = list(range(len(actors)))
    random.shuffle(order)

    async def start(i: int) -> Any:
        if random.random() < 0.3:
            await asyncio.sleep(random.random() / 1000)
        return await actors[i]

    answers = await asyncio.gather(*(start(i) for i in order))
    return [answers[order.index(i)] for i in range(len(actors))]


async def rounds() -> AsyncIterator[int]:
    """The sizes of the batches that add up to ROUNDS. The races of one batch overlap and disturb each other."""
    for start in range(0, ROUNDS, AT_ONCE):
        yield min(AT_ONCE, ROUNDS - start)
