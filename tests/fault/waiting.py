"""Waiting for something to be so, with a generous deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from treadle import Queue
from treadle.errors import StoreUnavailable


async def until(
    condition: Callable[[], Any], seconds: float = 60.0, explain: Callable[[], str] = lambda: "", every: float = 0.01
) -> Any:
    """What the condition says once it says something true."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds} s\n{explain()}"
        await asyncio.sleep(every)


async def nothing_live(queue: Queue) -> bool:
    """Whether all jobs have ended; not so if the store can't say."""
    try:
        stats = await queue.stats()
    except StoreUnavailable:
        return False
    return not (stats.pending or stats.processing or stats.cancelling)
