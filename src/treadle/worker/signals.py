"""SIGTERM and SIGINT for a process dedicated to its worker or its server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

# If a handler blocks the loop or swallows its cancel, only the end of the process stops it.
PATIENCE_S = 1.0


@contextlib.contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Each signal calls `stop` on the loop. After the second one the process exits even if handlers still run. Works
    only in the main thread.
    """
    loop = asyncio.get_running_loop()
    heard = 0
    left = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        loop.call_soon_threadsafe(stop)
        if heard == 2:
            threading.Thread(target=_leave_anyway, args=(left, 128 + number), daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if heard < 2:
            left.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_anyway(left: threading.Event, code: int) -> None:
    if not left.wait(PATIENCE_S):
        os._exit(code)
