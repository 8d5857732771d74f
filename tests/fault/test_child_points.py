"""kill -9 at the named points of parents and children: making, parking, ending, cancelling.

A child is made once, its parent goes on once and gets all results, and nothing is lost.
"""

from typing import Any

import pytest

from tests.fault.audit import in_order
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.test_named_points import LEASE_MS, crashes, die, recover
from treadle import Queue, Status

DIES = {"no_maintenance": True, "slots": 1, "lease": f"{LEASE_MS}ms"}
RESULT = [1, 0, 1, 2, 3]


@pytest.fixture
async def queue(crew: Crew) -> Any:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        yield queue


async def each_was_made_once(queue: Queue, ids: list[str]) -> None:
    for id in ids:
        job = await queue.get(id)
        assert (job.status, job.result_value) == (Status.COMPLETED, RESULT), job.last_error
        children = await queue.list(filter=f"parentId = '{id}'", limit=100)
        assert [one.status for one in children] == [Status.COMPLETED] * len(RESULT)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["make child", "park"])
async def test_a_parent_dies(crew: Crew, queue: Queue, point: str, nth: int) -> None:
    """With its first child, and with the first window of a map."""
    ids = []
    for crash in crashes(point, seed=nth):
        job = await queue.enqueue("family", {})
        ids.append(job.id)
        await die(crew, "work", crash._replace(nth=nth), topics="family,leaf", **DIES)
        await in_order(queue)
        await crew.dismiss()
        await queue.reclaim()
    await recover(crew, queue)
    await each_was_made_once(queue, ids)


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_the_worker_of_a_child_dies(crew: Crew, queue: Queue, nth: int) -> None:
    """With its end, which wakes the parent in the same transaction or not at all."""
    ids = []
    for crash in crashes("end child", seed=nth):
        job = await queue.enqueue("family", {})
        ids.append(job.id)
        await die(crew, "work", crash._replace(nth=nth), topics="family,leaf", **DIES)
        await in_order(queue)
    await recover(crew, queue)
    await each_was_made_once(queue, ids)


async def test_a_cancel_dies_on_its_way_down(crew: Crew, queue: Queue) -> None:
    """What the parent's cancel has noted is done by the next process."""
    for crash in crashes("cancel child"):
        job = await queue.enqueue("family", {})
        while (await job.refresh()).status is not Status.WAITING:
            await queue.work(topics=["family"], burst=True, maintenance=False)
        await die(crew, "cancel", crash, job=job.id)
        await in_order(queue)
        await queue.store.advance()
        cancelled = (await job.refresh()).status is Status.CANCELLED
        assert cancelled in {"before": (False,), "during": (False, True), "after": (True,)}[crash.moment]
        [child] = await queue.list(filter=f"parentId = '{job.id}'")
        assert (child.status is Status.CANCELLED) is cancelled
        if not cancelled:
            await queue.cancel(job.id)
        assert (await child.refresh()).status is Status.CANCELLED
