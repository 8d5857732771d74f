"""How much processor time a call takes without tracing."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(action: Callable[[], T]) -> tuple[T, float]:
    """The answer and the seconds. Measuring coverage makes a parser five times slower, so it has to look away."""
    tracer = sys.gettrace()
    sys.settrace(None)
    started = time.thread_time()
    try:
        return action(), time.thread_time() - started
    finally:
        sys.settrace(tracer)
