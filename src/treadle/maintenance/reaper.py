"""Takes back what lost its worker, ends cancels whose grace is over and jobs whose deadline has passed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from pydantic_core import from_json

from treadle.policy import duration_ms
from treadle.store.base import Moved, Store
from treadle.template import CancelPolicy

log = logging.getLogger("treadle.maintenance")

BATCH = 1000
READ_TEMPLATES_EVERY_S = 60.0


class Reaper:
    def __init__(self, store: Store, on_moved: Callable[[list[Moved]], None] = lambda moved: None) -> None:
        self._store = store
        self._on_moved = on_moved
        self._grace_ms: dict[str, int] = {}
        self._read_at = float("-inf")
        self._turn = False

    async def sweep(self) -> None:
        await self._until_done(self._store.reclaim)
        # By turns: neither is as urgent, and an idle worker has two statements a second for everything.
        self._turn = not self._turn
        if self._turn:
            await self._end_overdue_cancels()
        else:
            await self._until_done(self._store.expire_overdue)

    async def _until_done(self, move: Callable[[int], Awaitable[list[Moved]]]) -> None:
        while True:
            moved = await move(BATCH)
            self._tell(moved)
            if len(moved) < BATCH:
                return

    async def _end_overdue_cancels(self) -> None:
        await self._read_templates()
        self._tell(await self._store.end_overdue_cancels(self._grace_ms, duration_ms(CancelPolicy().grace)))

    async def _read_templates(self) -> None:
        """The grace of every topic, also of those that other workers serve."""
        if time.monotonic() - self._read_at < READ_TEMPLATES_EVERY_S:
            return
        saved = await self._store.templates()
        policies = {topic: from_json(text)["cancelPolicy"] for topic, (text, _) in saved.items()}
        self._grace_ms = {topic: round(policy["graceSeconds"] * 1000) for topic, policy in policies.items()}
        self._read_at = time.monotonic()

    def _tell(self, moved: list[Moved]) -> None:
        self._on_moved(moved)
        for event, count in Counter(one.event for one in moved).items():
            log.warning("%s: %d, the first is %s", event, count, next(one.id for one in moved if one.event == event))
