"""For the command line: a handler that swallows every cancel."""

import asyncio

from treadle import Queue

queue = Queue()


@queue.job
async def deaf() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
