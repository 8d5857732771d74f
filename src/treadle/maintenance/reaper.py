"""Reclaims jobs of lost workers, and ends cancels after their grace and jobs after their deadline."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from treadle.insights.templates import saved_templates
from treadle.model.durations import duration_ms
from treadle.model.template import CancelPolicy
from treadle.store.protocol import Store
from treadle.store.values import Graces, Moved

log = logging.getLogger("treadle.maintenance")

BATCH = 1000
READ_TEMPLATES_EVERY_S = 60.0
# In sweeps. This is for the time in which all workers drain: a worker that claims expires jobs of every topic, too.
EXPIRE_EVERY = 6


class Reaper:
    def __init__(self, store: Store, on_moved: Callable[[list[Moved]], None] = lambda moved: None) -> None:
        self._store = store
        self._on_moved = on_moved
        self._graces = Graces(duration_ms(CancelPolicy().grace))
        self._read_at = float("-inf")
        self._sweeps = 0

    async def sweep(self) -> str:
        """Returns what it did, in words."""
        await self._read_templates()
        counts: Counter[str] = Counter()
        more = True
        while more:
            moved, more = await self._store.reap(self._graces, BATCH)
            counts += self._tell(moved)
        self._sweeps += 1
        if self._sweeps % EXPIRE_EVERY == 0:
            counts += await self._advance()
        told = (f"{count:,} {event.removeprefix('job:')}" for event, count in sorted(counts.items()))
        return ", ".join(told) or "nothing to take back"

    async def _advance(self) -> Counter[str]:
        """Expire jobs past their deadline while no worker does it."""
        counts: Counter[str] = Counter()
        while True:
            moved = (await self._store.advance(BATCH)).moved
            counts += self._tell(moved)
            if len(moved) < BATCH:
                return counts

    async def _read_templates(self) -> None:
        """The cancel grace of every topic, including topics that only other workers serve."""
        if time.monotonic() - self._read_at < READ_TEMPLATES_EVERY_S:
            return
        saved = await saved_templates(self._store)
        topics = {topic: duration_ms(one.template.cancel.grace) for topic, one in saved.items()}
        self._graces = self._graces._replace(topics=topics)
        self._read_at = time.monotonic()

    def _tell(self, moved: list[Moved]) -> Counter[str]:
        self._on_moved(moved)
        counts = Counter(one.event for one in moved)
        for event, count in counts.items():
            log.warning("%s: %d, the first is %s", event, count, next(one.id for one in moved if one.event == event))
        return counts
