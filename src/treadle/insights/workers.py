"""Live workers, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.store.protocol import Store
from treadle.store.views import LiveWorker


async def live_workers(store: Store) -> Sequence[LiveWorker]:
    """Workers with a live lease. An external worker has one lease per job, and no slots."""
    found: list[LiveWorker] = []
    outside: dict[str, int] = {}
    for worker in await store.workers():
        place = None if worker.slots else outside.setdefault(worker.name, len(found))
        if place is None or place == len(found):
            found.append(worker)
        else:
            found[place] = _together(found[place], worker)
    return found


def _together(one: LiveWorker, other: LiveWorker) -> LiveWorker:
    return replace(
        one,
        topics=list(dict.fromkeys([*one.topics, *other.topics])),
        capabilities=list(dict.fromkeys([*one.capabilities, *other.capabilities])),
        locked_until=max(one.locked_until, other.locked_until),
        running=one.running + other.running,
        draining=one.draining or other.draining,
    )
