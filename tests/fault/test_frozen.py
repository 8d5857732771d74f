"""Fault 14: SIGSTOP past the lease, then SIGCONT. What the worker still writes is refused, its handlers are told."""

import asyncio

from tests.fault.audit import audit, read
from tests.fault.crew import Crew, Hand
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.waiting import until
from treadle import Job, Queue

FROZEN_AT_ONCE = scaled(3, 10)
ROUNDS = scaled(1, 20)
LEASE_MS = 1_000


async def test_a_worker_frozen_past_its_lease_can_write_nothing_and_its_handlers_are_told(crew: Crew) -> None:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        crew.hire(topics="frozen", lease="10s", reap="100ms", slots=20)
        rescuer = crew.hands[0]
        await until(queue.store.workers)
        jobs: list[Job] = []
        for _ in range(ROUNDS):
            jobs += await _round(crew, queue, rescuer)
        await crew.dismiss()
        ledger = await audit(queue, crew.journal, expected={job.id for job in jobs}, lost=crew.lost())
        assert {row.attempt for row in ledger.jobs.values()} == {2}
    for phase in ("refused_ending", "refused_progress", "refused_renewal", "told"):
        assert len(crew.journal.by_job(phase)) == len(jobs), phase
    print(f"\n{len(jobs)} freezes, {3 * len(jobs)} stale writes refused")


async def _round(crew: Crew, queue: Queue, rescuer: Hand) -> list[Job]:
    """Each of some workers gets a job of its own and is frozen with it, while the rescuer is asleep."""
    await rescuer.freeze()
    team = [
        crew.hire(topics="frozen", slots=1, lease=f"{LEASE_MS}ms", no_maintenance=True) for _ in range(FROZEN_AT_ONCE)
    ]
    jobs = [await queue.enqueue("frozen", {"lease_ms": LEASE_MS}, max_attempts=2) for _ in team]
    ids = {job.id for job in jobs}
    await until(lambda: ids <= crew.journal.by_job("start").keys(), 60, crew.tails)
    for hand in team:
        await hand.freeze()
    rescuer.thaw()
    await asyncio.wait_for(_rescued(crew, queue, ids), 60)
    for hand in team:
        hand.thaw()
    await until(lambda: ids <= crew.journal.by_job("told").keys(), 60, crew.tails)
    for hand in team:
        hand.kill()
        await hand.gone()
    return jobs


async def _rescued(crew: Crew, queue: Queue, ids: set[str]) -> None:
    """Done by the rescuer. A process frozen in the middle of a transaction keeps its locks, and what they
    protect, until it wakes: then its leases are over all the same, and waiting longer would prove nothing."""
    patience = asyncio.get_running_loop().time() + LEASE_MS / 1000 + 5
    while asyncio.get_running_loop().time() < patience:
        ledger = await asyncio.wait_for(read(queue), 30)
        if ids <= ledger.with_status("completed"):
            return
        await asyncio.sleep(0.05)
