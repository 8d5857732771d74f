"""Fault 14: SIGSTOP past the lease, then SIGCONT. What the worker still writes is refused, its handlers are told."""

import asyncio
import contextlib
import signal
from pathlib import Path

from tests.fault.audit import audit, read
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.waiting import nothing_live, until
from treadle import Job, Queue

FROZEN_AT_ONCE = scaled(3, 10)
ROUNDS = scaled(1, 20)
LEASE_MS = 1_000


async def test_a_worker_frozen_past_its_lease_can_write_nothing_and_its_handlers_are_told(
    crew: Crew, tmp_path: Path
) -> None:
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        jobs: list[Job] = []
        for number in range(ROUNDS):
            jobs += await _round(crew, queue, tmp_path / f"thawed-{number}")
        ledger = await audit(queue, crew.journal, expected={job.id for job in jobs}, lost=crew.lost())
        assert {row.attempt for row in ledger.jobs.values()} == {2}
    for phase in ("refused_ending", "refused_progress", "refused_renewal", "told"):
        assert len(crew.journal.by_job(phase)) == len(jobs), phase
    print(f"\n{len(jobs)} freezes, {3 * len(jobs)} stale writes refused")


async def _round(crew: Crew, queue: Queue, thawed: Path) -> list[Job]:
    """Several workers are frozen, each with one job; a later worker takes over all of them."""
    team = [crew.hire(slots=1, lease=f"{LEASE_MS}ms", no_maintenance=True) for _ in range(FROZEN_AT_ONCE)]
    jobs = [await queue.enqueue("frozen", {"thawed": str(thawed)}, max_attempts=2) for _ in team]
    ids = {job.id for job in jobs}
    await until(lambda: ids <= crew.journal.by_job("start").keys(), 60, crew.tails)
    for hand in team:
        await hand.freeze()
    rescuer = crew.hire(lease="60s", reap="100ms", slots=20)
    await _rescued(queue, ids)
    thawed.touch()
    for hand in team:
        hand.thaw()
    await until(lambda: ids <= crew.journal.by_job("told").keys(), 60, crew.tails)
    await until(lambda: nothing_live(queue), 60, crew.tails)
    for hand in team:
        hand.kill()
        await hand.gone()
    rescuer.send(signal.SIGTERM)
    assert await rescuer.gone() == 0, rescuer.tail()
    return jobs


async def _rescued(queue: Queue, ids: set[str]) -> None:
    """Done by the rescuer. A process frozen in the middle of a transaction keeps its locks, and what they
    protect, until it wakes: then its leases are over all the same, and waiting longer would prove nothing."""

    async def done() -> bool:
        ledger = await asyncio.wait_for(read(queue), 30)
        return ids <= ledger.with_status("completed")

    with contextlib.suppress(AssertionError):
        await until(done, LEASE_MS / 1000 + 5, every=0.05)
