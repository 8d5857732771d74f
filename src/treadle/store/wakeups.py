"""Wake-ups inside one process: a hint immediately reaches every loop here that waits on the same database.

Other processes are woken by the database (NOTIFY, `data_version`) or by polling. A hint is never the only way to learn
something.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from treadle.model.durations import PRIORITIES
from treadle.policy.admission import REPLACE
from treadle.store.values import NewJob

READY = "ready"
LATER = "later"
CANCEL = "cancel"
ENDED = "ended"
URGENT = "urgent"
"""A job of more than normal priority: it belongs in front of what claims have seen so far."""
OUTPUT = "output"
WEBHOOK = "webhook"
"""A delivery is to be sent. Ends of jobs give no such hint: `ENDED` says that there may be one."""
ALL = (READY, LATER, CANCEL, ENDED, URGENT, OUTPUT, WEBHOOK)

Wake = Callable[[str], None]


def of_new(jobs: Iterable[NewJob]) -> list[str]:
    """The claim loops that new jobs may concern."""
    tell = {READY}
    for job in jobs:
        if job.run_at is not None or job.delay_ms:
            tell.add(LATER)
        if job.priority > PRIORITIES["normal"]:
            tell.add(URGENT)
        if job.limit and job.limit.policy == REPLACE:
            tell.update((CANCEL, ENDED, LATER))
    return [hint for hint in ALL if hint in tell]


_hubs: dict[str, Wakeups] = {}
_hubs_lock = threading.Lock()


class _Waiting(NamedTuple):
    loop: asyncio.AbstractEventLoop
    wake: Wake
    claims_through: object


class Wakeups:
    """The subscribers of one database, in this process."""

    def __init__(self) -> None:
        self._waiting: tuple[_Waiting, ...] = ()
        """Replaced as a whole under the lock, so readers in other threads need none."""
        self._lock = threading.Lock()

    @staticmethod
    def of(database: str) -> Wakeups:
        with _hubs_lock:
            return _hubs.setdefault(database, Wakeups())

    @staticmethod
    def tell_all(hints: Sequence[str]) -> None:
        """For any database."""
        with _hubs_lock:
            hubs = list(_hubs.values())
        for hub in hubs:
            hub.publish(hints)

    def subscribe(self, wake: Wake, claims_through: object = None) -> Callable[[], None]:
        mine = _Waiting(asyncio.get_running_loop(), wake, claims_through)
        with self._lock:
            self._waiting += (mine,)

        def unsubscribe() -> None:
            with self._lock:
                self._waiting = tuple(one for one in self._waiting if one is not mine)

        return unsubscribe

    def publish(self, hints: Sequence[str], told: object = None) -> None:
        """From any thread. Claim loops on `told` already know about "ready" (`tell_claimants`)."""
        for one in self._waiting:
            if not one.loop.is_closed():
                mine = tuple(hint for hint in hints if told is None or hint != READY or one.claims_through is not told)
                if mine:
                    one.loop.call_soon_threadsafe(_tell, one.wake, mine)

    def tell_claimants(self, through: object) -> None:
        """Called on their loop. New jobs are on their way `through` this store; a claim can only come after them."""
        for one in self._waiting:
            if one.claims_through is through:
                one.wake(READY)


def _tell(wake: Wake, hints: tuple[str, ...]) -> None:
    for hint in hints:
        wake(hint)
