"""A store that fails now and then, before or after it did what was asked: every job still runs and ends once."""

import asyncio
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.faulty import Around, FaultyQueue
from tests.waiting import ended, give_way, until
from tests.worker.conftest import Start
from treadle import Context, Queue, Retry, StoreUnavailable

pytestmark = pytest.mark.every_store

VERBS = ("claim", "settle", "touch", "advance", "renew", "release_unknown", "reap", "elect")


def make_unreliable(queue: FaultyQueue, dice: random.Random) -> Counter[str]:
    """Every tenth call or so fails; in half of these cases only the answer is lost."""
    failures: Counter[str] = Counter()

    async def unreliable(verb: str, call: Around, *arguments: Any) -> Any:
        fate = dice.random()
        if fate < 0.06:
            failures[verb] += 1
            raise StoreUnavailable("before")
        answer = await call(*arguments)
        if fate < 0.12:
            failures[verb] += 1
            raise StoreUnavailable("after")
        return answer

    for verb in VERBS:
        queue.faults.around(verb, partial(unreliable, verb))
    return failures


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_job_runs_once_and_ends_once(queue: FaultyQueue, start: Start, seed: int) -> None:
    ran: Counter[int] = Counter()

    @queue.job
    async def once(ctx: Context, payload: dict[str, Any]) -> int:
        ran[payload["i"]] += 1
        await give_way()
        return ctx.attempt

    failures = make_unreliable(queue, random.Random(seed))
    worker = await start(queue, slots=10, reap_interval="200ms")
    jobs = []
    for i in range(0, 600, 20):
        jobs += await once.enqueue_many([{"i": i + k} for k in range(20)])
        await asyncio.sleep(0.01)  # so that there are many claims
    await until(lambda: worker.metrics.completed == 600, 60)
    assert [await job.result("60s") for job in jobs] == [1] * 600
    assert set(ran.values()) == {1}
    assert worker.metrics.lease_losses == 0
    assert failures["claim"]
    assert failures["settle"]


async def test_failures_and_retries_are_counted_right(queue: FaultyQueue, start: Start) -> None:
    ran: Counter[str] = Counter()

    @queue.job(retry=Retry(3, backoff=[0.001]))
    async def thrice(ctx: Context) -> None:
        ran[ctx.job_id] += 1
        raise ValueError(ctx.attempt)

    make_unreliable(queue, random.Random(3))
    await start(queue, slots=5)
    jobs = await thrice.enqueue_many([{}] * 30)
    done = [await ended(queue, job, 60) for job in jobs]
    assert {(job.status, job.attempt) for job in done} == {("failed", 3)}
    assert set(ran.values()) == {3}


async def test_cancels_against_completions_have_one_winner_each(queue: Queue, start: Start) -> None:
    finished: set[str] = set()
    dice = random.Random(4)

    @queue.job
    async def short(ctx: Context) -> str:
        await asyncio.sleep(dice.random() / 100)  # some end before their cancel, some after
        finished.add(ctx.job_id)
        return "done"

    await start(queue, slots=20)
    jobs = await short.enqueue_many([{}] * 300)
    answers = await asyncio.gather(*(job.cancel() for job in jobs), return_exceptions=True)
    done = [await ended(queue, job) for job in jobs]
    assert {str(job.status) for job in done} <= {"completed", "cancelled"}
    for job, answer in zip(done, answers, strict=True):
        events = [event.type for event in await queue.events(job.id)]
        assert events.count("job:completed") + events.count("job:cancelled") == 1
        if job.status == "completed":
            assert job.id in finished
            assert job.result_value == "done"
        if isinstance(answer, Exception):
            assert job.status == "completed", answer
