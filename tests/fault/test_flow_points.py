"""kill -9 at the named points of a flow: parking, its answer, waking, tries of a step, requeue.

Each write is stored completely or not at all, finished steps never run again, and nothing is lost.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fault.audit import in_order
from tests.fault.crew import Crew
from tests.fault.flows import STUMBLING
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.test_named_points import LEASE_MS, SWEEP_MS, crashes, die, recover
from tests.waiting import until
from treadle import Job, Queue, Status, StepEnded

DIES = {"no_maintenance": True, "slots": 1, "lease": f"{LEASE_MS}ms"}


@pytest.fixture
async def queue(crew: Crew) -> Any:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        yield queue


def states(job: Job) -> list[str]:
    return [step["status"] for step in job.steps]


def calls(crew: Crew, name: str, job_id: str) -> int:
    return len(crew.journal.by_job(name)[job_id])


async def all_waiting(queue: Queue, ids: list[str]) -> bool:
    return all([(await queue.get(id)).status is Status.WAITING for id in ids])


async def test_parking(crew: Crew, queue: Queue) -> None:
    ids = []
    for crash in crashes("park"):
        job = await queue.enqueue("asking", {})
        await die(crew, "work", crash, topics="asking", **DIES)
        await in_order(queue)
        seen = await job.refresh()
        parked = seen.status is Status.WAITING
        assert parked in {"before": (False,), "during": (False, True), "after": (True,)}[crash.moment]
        assert states(seen) == ["completed", "waiting" if parked else "pending", "pending"]
        ids.append(job.id)
    worker = crew.hire(lease=f"{LEASE_MS}ms", reap=f"{SWEEP_MS}ms")
    await until(lambda: all_waiting(queue, ids), 60, crew.tails)
    worker.kill()
    assert await worker.gone() == -9
    for id in ids:
        await queue.signal(id, "approve", "yes")
    await recover(crew, queue)
    await _each_ran_once(crew, queue, ids)


async def _each_ran_once(crew: Crew, queue: Queue, ids: list[str]) -> None:
    for id in ids:
        job = await queue.get(id)
        assert (job.status, job.result_value) == (Status.COMPLETED, "yes")
        assert (calls(crew, "prepare", id), calls(crew, "publish", id)) == (1, 1)
        told = [event.message for event in await queue.events(id) if event.type == "job:step:completed"]
        assert told == ["prepare", "approve", "publish"]


@pytest.mark.parametrize("early", [True, False], ids=["before_parking", "after_parking"])
async def test_an_answer(crew: Crew, queue: Queue, early: bool) -> None:
    """The answer is stored with the waking of its job, or kept; a caller without a reply can send it again."""
    ids = []
    for crash in crashes("answer", seed=early):
        job = await queue.enqueue("asking", {})
        if not early:
            await queue.run_until_empty()
        await die(crew, "signal", crash, job=job.id, step="approve")
        await in_order(queue)
        seen = await job.refresh()
        assert early or (seen.status, states(seen)[1]) in ((Status.WAITING, "waiting"), (Status.PENDING, "completed"))
        stored = await _answered_before(queue, job.id)
        assert stored in {"before": (False,), "during": (False, True), "after": (True,)}[crash.moment]
        assert early or stored is (seen.status is Status.PENDING)
        ids.append(job.id)
        await queue.run_until_empty()
    await recover(crew, queue)
    await _each_ran_once(crew, queue, ids)


async def _answered_before(queue: Queue, job_id: str) -> bool:
    try:
        await queue.signal(job_id, "approve", "yes")
    except StepEnded:
        return True
    return False


async def test_waking(crew: Crew, queue: Queue) -> None:
    """The process that ends waits dies when a wait is over."""
    ids = []
    for crash in crashes("wake"):
        job = await queue.enqueue("asking_briefly")
        await die(crew, "work", crash._replace(point="park", moment="after"), topics="asking_briefly", **DIES)
        assert (await job.refresh()).status is Status.WAITING
        await die(crew, "work", crash, topics="quick", lease=f"{LEASE_MS}ms")
        await in_order(queue)
        seen = (await job.refresh()).status
        waits, woken = Status.WAITING, Status.PENDING
        assert seen in {"before": (waits,), "during": (waits, woken), "after": (woken,)}[crash.moment]
        ids.append(job.id)
        if seen is woken:
            await queue.run_until_empty()  # or the next one to die would claim two
    await recover(crew, queue)
    for id in ids:
        assert (await queue.get(id)).status is Status.COMPLETED
        assert (calls(crew, "prepare", id), calls(crew, "timeout", id)) == (1, 1)


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_the_tries_of_a_step(crew: Crew, queue: Queue, nth: int) -> None:
    """The first write is the step before it, the others are its failed tries."""
    ids = []
    for crash in crashes("step", seed=nth + 10):
        job = await queue.enqueue("retrying", {})
        await die(crew, "work", crash._replace(nth=nth), topics="retrying", **DIES)
        before, flaky = (await job.refresh()).steps
        stored = (before["status"] == "completed") + flaky["attempt"]
        assert stored in {"before": (nth - 1,), "during": (nth - 1, nth), "after": (nth,)}[crash.moment]
        assert (flaky["error"] is not None) is (stored > 1)
        ids.append(job.id)
    await recover(crew, queue)
    for id in ids:
        assert (await queue.get(id)).status is Status.COMPLETED
        assert calls(crew, "flaky", id) == 3
        assert calls(crew, "before", id) in ((1, 2) if nth == 1 else (1,))


async def test_a_step_that_is_tried_again_later(crew: Crew, queue: Queue) -> None:
    """Its slot, its attempt and what it has done are given back in one write."""
    ids = []
    for crash in crashes("settle", seed=20):
        job = await queue.enqueue("retrying_later", {})
        await die(crew, "work", crash, topics="retrying_later", **DIES)
        await in_order(queue)
        seen = await job.refresh()
        later = seen.status is Status.PENDING
        assert later in {"before": (False,), "during": (False, True), "after": (True,)}[crash.moment]
        assert (seen.attempt, seen.steps[1]["attempt"], bool(seen.steps[1]["error"])) == (not later, later, later)
        ids.append(job.id)
    crew.hire(lease=f"{LEASE_MS}ms", reap=f"{SWEEP_MS}ms")
    await until(lambda: _hurried(queue, ids), 60, crew.tails)
    for id in ids:
        assert (await queue.get(id)).status is Status.COMPLETED
        assert (calls(crew, "before", id), calls(crew, "flaky", id)) == (1, 3)


async def _hurried(queue: Queue, ids: list[str]) -> bool:
    """The test does not wait an hour for the next try."""
    jobs = [await queue.get(id) for id in ids]
    for job in jobs:
        if job.status is Status.PENDING and job.run_at > datetime.now(UTC):
            await queue.reschedule(job.id, run_at=datetime.now(UTC))
    return all(job.ended for job in jobs)


@pytest.mark.parametrize(
    ("mode", "step", "again", "ran"),
    [
        ("unfinished", None, ["completed", "completed", "pending"], [1, 1, 2]),
        ("from", "two", ["completed", "pending", "pending"], [1, 2, 2]),
        ("all", None, ["pending", "pending", "pending"], [2, 2, 2]),
    ],
)
async def test_requeue(crew: Crew, queue: Queue, mode: str, step: str | None, again: list[str], ran: list[int]) -> None:
    for crash in crashes("requeue", seed=len(mode)):
        job = await queue.enqueue("stumbling", {})
        await queue.run_until_empty()
        await die(crew, "requeue", crash, job=job.id, mode=mode, step=step)
        await in_order(queue)
        seen = await job.refresh()
        before, after = (Status.FAILED, ["completed", "completed", "failed"]), (Status.PENDING, again)
        expected = {"before": (before,), "during": (before, after), "after": (after,)}[crash.moment]
        assert (seen.status, states(seen)) in expected
        if seen.status is Status.FAILED:
            await queue.requeue(job.id, mode=mode, step=step)
        await queue.run_until_empty()
        assert (await job.refresh()).status is Status.COMPLETED
        assert [calls(crew, name, job.id) for name in STUMBLING] == ran
