"""Waiting for something to be so. Time only runs out when something is wrong, so there is plenty of it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def until(
    condition: Callable[[], Any], seconds: float = 60.0, explain: Callable[[], str] = lambda: "", every: float = 0.01
) -> Any:
    """What the condition, a function or a coroutine function, returns once that is true."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds} s\n{explain()}"
        await asyncio.sleep(every)
