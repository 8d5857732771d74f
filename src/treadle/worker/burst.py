"""Runs all due jobs in this process once, for tests and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.maintenance import Reaper, Scheduler
from treadle.model.errors import TreadleError
from treadle.model.status import ENDED
from treadle.worker.worker import Worker

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.store.values import Settlement

MOST = 10_000


async def run_until_empty(queue: Queue) -> list[str]:
    """The ids of the jobs that ended, in order."""
    await queue.open()
    await queue.save_templates()
    await Reaper(queue.store).sweep()
    await Scheduler(queue).fire_due()
    ended: list[str] = []
    worker = Worker(queue, burst=True, maintenance=False)

    def note(settlements: Sequence[Settlement]) -> None:
        ended.extend(one.job.id for one in settlements if one.transition.to in ENDED)
        if len(ended) > MOST and not worker.stopping:
            worker.stop()

    worker.on_settled = note
    await worker.run()
    if len(ended) > MOST:
        raise TreadleError(f"more than {MOST:,} jobs have run; does a handler enqueue itself?")
    return ended
