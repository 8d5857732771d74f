"""A time limit for what the main thread of a child does: a signal interrupts it, as nothing can interrupt a thread."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

# More than the timers of some systems take; the time limit of the whole call comes first.
LONGEST_S = 10_000_000.0


@contextlib.contextmanager
def time_limit(seconds: float, error: Callable[[], BaseException]) -> Iterator[None]:
    """Raise this error in the block after this time. Limits may be nested; the one that ends first counts."""
    outer_s, _ = signal.getitimer(signal.ITIMER_REAL)
    if threading.current_thread() is not threading.main_thread() or 0 < outer_s <= seconds:
        yield
        return

    def interrupt(*_: object) -> None:
        raise error()

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 0.001), LONGEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer_s:
            signal.setitimer(signal.ITIMER_REAL, max(outer_s - (time.monotonic() - began), 0.001))
