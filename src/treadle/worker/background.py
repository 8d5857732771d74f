"""No exception in a background task may end the worker: log, back off, go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from treadle.errors import StoreUnavailable
from treadle.worker.backoff import Backoff

log = logging.getLogger("treadle.worker")


async def forever(name: str, step: Callable[[], Awaitable[None]]) -> None:
    """Repeat `step` until cancelled; it does its own waiting while all is well."""
    backoff = Backoff()
    while True:
        try:
            await step()
            backoff.reset()
        except StoreUnavailable as error:
            log.warning("%s: the store is not available: %s", name, error)
            await asyncio.sleep(backoff.delay_s())
        except Exception:
            log.exception("%s failed; it goes on", name)
            await asyncio.sleep(backoff.delay_s())


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait until they are gone, whatever they have to say about it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
