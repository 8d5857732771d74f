"""Cancels that reach a slot's task though they were meant for a call that is over."""

from __future__ import annotations

import asyncio


def uncancel(task: asyncio.Task[None] | None) -> None:
    while task and task.cancelling():
        task.uncancel()


async def absorb_cancel(task: asyncio.Task[None]) -> None:
    """It may not have been raised yet: let it be raised here, where it harms nothing."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass
    uncancel(task)
