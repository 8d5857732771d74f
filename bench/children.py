"""Children: many parents with a few each, and one with very many."""

from __future__ import annotations

import time
from pathlib import Path

from bench.scenarios import Figures
from treadle import Context, Queue, Status, Worker

EACH = 10
WINDOW = 8


async def families(url: str, parents: int, items: int) -> Figures:
    """Children per second, and how the second half of a long map compares with its first half."""
    queue, began = Queue(url), dict[int, float]()

    @queue.job(topic="child")
    async def child(n: int) -> int:
        began[n] = time.perf_counter()
        return n

    @queue.job(topic="parent")
    async def parent(ctx: Context) -> int:
        return len(await ctx.run_many(child, [{"n": n} for n in range(EACH)]))

    @queue.job(topic="mapper", timeout="1h")
    async def mapper(ctx: Context) -> int:
        return len(await ctx.map("items", child, range(items), limit=WINDOW))

    async with queue:
        await queue.enqueue_many("parent", [{}] * parents)
        many_s = await _drained(queue)
        began.clear()
        job = await queue.enqueue("mapper", {})
        before = _memory_mb()
        map_s = await _drained(queue)
        done = await queue.get(job.id)
        if done.status is not Status.COMPLETED or done.result_value != items:
            raise SystemExit(f"children: the map ended as {done.status}: {done.last_error}")
        grown = _memory_mb() - before
    half = began[items // 2] - began[0]
    return {
        "children of many parents /s": parents * EACH / many_s,
        "children of one map /s": items / map_s,
        "map, second half / first": half / (began[items - 1] - began[items // 2]),
        "map, memory growth MB": grown,
    }


async def _drained(queue: Queue) -> float:
    start = time.perf_counter()
    await Worker(queue, burst=True, maintenance=False, slots=20).run()
    return time.perf_counter() - start


def _memory_mb() -> float:
    """Of this process, resident."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
