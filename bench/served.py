"""The queue of `treadle serve bench.served:queue`: its jobs do nothing."""

from __future__ import annotations

from bench.work import Noop
from treadle import Context, Queue

queue = Queue()


@queue.job
async def noop(ctx: Context, job: Noop) -> dict[str, bool]:
    return {"ok": True}
