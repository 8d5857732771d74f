"""Slots: one pulls as long as nothing waits, and wakes the next when it does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.waiting import until
from treadle.model.retry import Retry
from treadle.policy.lifecycle import Completed, Outcome, decide
from treadle.store.values import Claimed, Settlement
from treadle.worker.attempt import Attempt
from treadle.worker.claim_budget import ClaimBudget
from treadle.worker.job_log import JobLog
from treadle.worker.lease_keeper import Lease
from treadle.worker.metrics import Times
from treadle.worker.recipe import Recipe, Run
from treadle.worker.slots import Slots


class Endings(list[Settlement]):
    """Stands for the settler."""

    add = list.append

    def add_touch(self, *news: Any) -> None: ...


def jobs(count: int) -> list[Claimed]:
    return [Claimed(n, str(n), "mail", "{}", 1, 3, 0, None, None, None, token=n, lease=1) for n in range(count)]


@pytest.fixture
def endings() -> Endings:
    return Endings()


@pytest.fixture
async def slots(endings: Endings) -> AsyncIterator[Slots]:
    slots = Slots(3, Lease(1, 1e9), endings, JobLog())  # type: ignore[arg-type]
    yield slots
    await asyncio.wait(slots.close())


async def start(slots: Slots, run: Run) -> None:
    slots.start({"mail": Recipe(run, Times(), Retry())})
    await until(lambda: slots.parked == 3)


async def test_jobs_that_never_wait_run_one_after_the_other_in_one_slot(slots: Slots, endings: Endings) -> None:
    tasks = set()

    def run(attempt: Attempt) -> Outcome:
        tasks.add(asyncio.current_task())
        return Completed()

    await start(slots, run)
    slots.feed(jobs(50))
    await until(lambda: len(endings) == 50)
    assert [one.job.n for one in endings] == list(range(50))
    assert len(tasks) == 1


@pytest.mark.parametrize("result", [None, "1"])
async def test_a_completion_is_what_the_lifecycle_decides(slots: Slots, endings: Endings, result: str | None) -> None:
    await start(slots, lambda attempt: Completed(result))
    tried = [job._replace(attempt=attempt, max_attempts=2000) for job in jobs(1) for attempt in (1, 63, 64, 1000)]
    slots.feed(tried)
    await until(lambda: len(endings) == len(tried))
    assert [one.transition for one in endings] == [decide(job, Completed(result)) for job in tried]


async def test_a_job_that_waits_wakes_the_next_slot(slots: Slots, endings: Endings) -> None:
    let_go = asyncio.Event()

    async def run(attempt: Attempt) -> Outcome:
        await let_go.wait()
        return Completed()

    await start(slots, run)
    slots.feed(jobs(5))
    await until(lambda: slots.parked == 0)
    assert [attempt.job.n for attempt in slots.running()] != []
    assert (len(list(slots.running())), len(slots.inbox)) == (3, 2)
    let_go.set()
    await until(lambda: len(endings) == 5)


async def test_parked_slots_are_not_free_while_jobs_wait(slots: Slots, endings: Endings) -> None:
    await start(slots, lambda attempt: Completed())
    budget = ClaimBudget(slots)
    assert (slots.free, budget.limit(unwritten=0)) == (3, 3)
    slots.feed(jobs(1))
    assert slots.parked == 2, "one was woken and has not run yet"
    assert (slots.free, budget.limit(unwritten=0)) == (0, 0)
    await until(lambda: len(endings) == 1)
    await until(lambda: slots.free == 3)
