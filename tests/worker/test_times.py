"""A worker counts how long its jobs waited and ran."""

import asyncio
from collections import Counter

from tests.waiting import until
from tests.worker.conftest import Start
from treadle import Fail, Queue


async def test_waits_and_runs_of_every_attempt_are_in_the_histograms(queue: Queue, start: Start) -> None:
    @queue.job
    async def quick() -> None: ...

    @queue.job
    async def slow() -> None:
        await asyncio.sleep(0.07)  # beyond the seventh bucket

    @queue.job
    async def broken() -> None:
        raise Fail("no")

    await quick.enqueue_many([{}] * 20)
    await slow.enqueue_many([{}] * 3)
    await broken.enqueue()
    worker = await start(queue, slots=5)
    await until(lambda: worker.metrics.completed == 23 and worker.metrics.failed == 1)
    found = (await queue.store.history(0, 1)).times
    jobs: Counter[tuple[str, str]] = Counter()
    for one in found:
        jobs[one.topic, one.kind] += one.jobs
    assert jobs == {
        ("quick", "wait"): 20,
        ("quick", "run"): 20,
        ("slow", "wait"): 3,
        ("slow", "run"): 3,
        ("broken", "wait"): 1,
    }
    assert all(one.bucket >= 7 for one in found if (one.topic, one.kind) == ("slow", "run"))
