"""Wake-ups inside one process: a hint goes at once to every loop here that waits on the same database.

Other processes are told by the database (NOTIFY, `data_version`) or find out by polling; a hint is
never the only way to learn something.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from treadle.store.base import NewJob

READY = "ready"
LATER = "later"
CANCEL = "cancel"
ENDED = "ended"
ALL = (READY, LATER, CANCEL, ENDED)

Wake = Callable[[str], None]


def of_new(jobs: Iterable[NewJob]) -> list[str]:
    """Whom new jobs may concern."""
    tell = {READY}
    for job in jobs:
        if job.run_at is not None or job.delay_ms:
            tell.add(LATER)
        if job.gate and job.gate.policy == "replace_same_scope":
            tell.update((CANCEL, ENDED))
    return [hint for hint in ALL if hint in tell]


_hubs: dict[str, Hub] = {}
_hubs_lock = threading.Lock()


class Hub:
    """Who waits for news of one database, in this process."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[asyncio.AbstractEventLoop, Wake]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def of(database: str) -> Hub:
        with _hubs_lock:
            return _hubs.setdefault(database, Hub())

    def subscribe(self, wake: Wake) -> Callable[[], None]:
        ticket = object()
        with self._lock:
            self._waiting[ticket] = (asyncio.get_running_loop(), wake)

        def unsubscribe() -> None:
            with self._lock:
                self._waiting.pop(ticket, None)

        return unsubscribe

    def publish(self, hints: Iterable[str]) -> None:
        """From any thread."""
        if not self._waiting:
            return
        with self._lock:
            waiting = list(self._waiting.values())
        for loop, wake in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_tell, wake, tuple(hints))


def _tell(wake: Wake, hints: tuple[str, ...]) -> None:
    for hint in hints:
        wake(hint)
