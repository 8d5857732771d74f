"""Signals before, during and after parking: each one is received once. 1,000 races with TREADLE_FAULT=full."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fault.scale import scaled
from tests.faulty import Around, FaultyQueue
from tests.waiting import in_status
from treadle import Context, Queue, Status, StepEnded, Worker, WrongState
from treadle.queue.handlers.flows import Flow
from treadle.store.values import Settlement

RACES = scaled(60, 1000)
TOGETHER = 20
MOMENTS = ("before", "during", "after")


class Parkings:
    """Tells when a worker begins to write that a job waits."""

    def __init__(self) -> None:
        self.begun: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def settle(self, call: Around, settlements: Sequence[Settlement], **options: Any) -> Any:
        for one in settlements:
            if one.transition.to is Status.WAITING:
                self.begun[one.job.id].set()
        return await call(settlements, **options)


def declare(queue: Queue, ran: Counter[str]) -> Flow:
    flow = queue.flow("raced", max_attempts=1)

    @flow.step
    async def prepare(ctx: Context, payload: dict[str, Any]) -> None:
        ran[f"prepare {ctx.job_id}"] += 1

    flow.external("approve", answer=int)

    @flow.step
    async def publish(ctx: Context, payload: dict[str, Any]) -> int:
        ran[f"publish {ctx.job_id}"] += 1
        return int(ctx.results["approve"])

    return flow


async def test_each_signal_is_received_once(url: str) -> None:
    ran: Counter[str] = Counter()
    parkings = Parkings()
    queue = FaultyQueue(url)
    async with queue, Queue(url) as elsewhere:
        flow = declare(queue, ran)
        queue.faults.around("settle", parkings.settle)

        async def race(number: int) -> None:
            job = await flow.enqueue({})
            moment = MOMENTS[number % len(MOMENTS)]
            if moment == "during":
                await parkings.begun[job.id].wait()
            elif moment == "after":
                await in_status(queue, job, Status.WAITING)
            await elsewhere.signal(job.id, "approve", number)
            with pytest.raises((StepEnded, WrongState)):
                await elsewhere.signal(job.id, "approve", -1)
            assert await job.result("60s") == number
            assert (ran[f"prepare {job.id}"], ran[f"publish {job.id}"]) == (1, 1)
            types = [event.type for event in await queue.events(job.id)]
            assert types.count("job:step:completed") == 3

        worker = Worker(queue, slots=TOGETHER)
        running = asyncio.create_task(worker.run())
        try:
            for first in range(0, RACES, TOGETHER):
                await asyncio.gather(*(race(number) for number in range(first, min(first + TOGETHER, RACES))))
        finally:
            worker.stop()
            await running
    assert sum(ran.values()) == 2 * RACES
