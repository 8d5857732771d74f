"""Background tasks must not end the worker: log the exception, back off, continue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from treadle.model.errors import StoreUnavailable
from treadle.queue.backoff import StoreRetry
from treadle.telemetry.outages import OutageLog

log = logging.getLogger("treadle.worker")

T = TypeVar("T")

_retry: ContextVar[StoreRetry] = ContextVar("retry")


async def forever(name: str, step: Callable[[], Awaitable[None]], outage: OutageLog) -> None:
    """Repeat `step` until cancelled. `step` waits by itself as long as it succeeds, and calls `store_answered` before a
    long wait."""
    retry = StoreRetry(outage, name)
    _retry.set(retry)
    task = asyncio.current_task()
    # Asked again after each step, because a step may swallow the cancel, as `asyncio.wait_for` does before Python 3.12.
    while task and not task.cancelling():
        try:
            await step()
            retry.worked()
        except StoreUnavailable as error:
            retry.failed(error)
            await retry.pause()
        except Exception:
            log.exception("%s failed; it goes on", name)
            await retry.pause()


def store_answered() -> None:
    """Called by a step of `forever` that waits after its work, so that an outage does not seem to last until then."""
    if retry := _retry.get(None):
        retry.worked()


async def insist(name: str, step: Callable[[], Awaitable[T]], outage: OutageLog) -> T:
    """The result of `step`, which is retried while the database is unavailable."""
    retry = StoreRetry(outage, name)
    while True:
        try:
            answer = await step()
        except StoreUnavailable as error:
            retry.failed(error)
            await retry.pause()
        else:
            retry.worked()
            return answer


async def end(tasks: Sequence[asyncio.Task[Any]], seconds: float | None = None) -> None:
    """Cancel the tasks and wait for them to finish, ignoring their exceptions, for at most this many seconds."""
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        await asyncio.gather(*done, return_exceptions=True)
