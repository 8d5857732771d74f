"""Background tasks must not end the worker: log the exception, back off, continue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from treadle.model.errors import StoreUnavailable
from treadle.queue.backoff import Backoff
from treadle.telemetry.outages import OutageLog

log = logging.getLogger("treadle.worker")


async def forever(name: str, step: Callable[[], Awaitable[None]], outage: OutageLog) -> None:
    """Repeat `step` until cancelled. `step` waits by itself as long as it succeeds."""
    backoff = Backoff()
    caller = outage.caller(name)
    while True:
        try:
            await step()
            backoff.reset()
            caller.worked()
        except StoreUnavailable as error:
            caller.failed(error)
            await asyncio.sleep(backoff.delay_s())
        except Exception:
            log.exception("%s failed; it goes on", name)
            await asyncio.sleep(backoff.delay_s())


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait for them to finish, ignoring their exceptions."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
