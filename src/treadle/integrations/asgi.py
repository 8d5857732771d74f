"""A queue, and a worker if wanted, for as long as a FastAPI or Starlette application runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from treadle import InvalidInput, Queue, Worker

log = logging.getLogger("treadle.worker")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(queue: Queue, own: Lifespan | None, *, worker: bool, **options: Any) -> Lifespan:
    """See `Queue.lifespan`."""
    if hasattr(own, "routes"):
        raise InvalidInput("lifespan: call it first: lifespan=queue.lifespan()", field="own")
    if options and not worker:
        raise InvalidInput(f"{', '.join(options)}: an option of the worker; add worker=True", field="worker")

    @contextlib.asynccontextmanager
    async def running(app: Any) -> AsyncIterator[Mapping[str, Any] | None]:
        # The worker starts last and ends first, because handlers may use what the application's own lifespan opens.
        async with (
            queue,
            own(app) if own is not None else contextlib.nullcontext() as state,
            _working(queue, options) if worker else contextlib.nullcontext(),
        ):
            yield state

    return running


@contextlib.asynccontextmanager
async def _working(queue: Queue, options: Mapping[str, Any]) -> AsyncIterator[None]:
    worker = Worker(queue, **options)
    running = asyncio.create_task(worker.run(), name="treadle-worker")
    running.add_done_callback(_tell)
    try:
        yield
    finally:
        if not running.done():
            worker.stop()
        await asyncio.wait({running})


def _tell(running: asyncio.Task[None]) -> None:
    """The application goes on without its worker, so the log has to say that no jobs are run any more."""
    if not running.cancelled() and (error := running.exception()):
        log.error("the worker in this application has ended, so it runs no jobs any more", exc_info=error)
