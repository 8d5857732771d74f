"""Enqueues that wait at the same time share a transaction; a failure of one does not affect the others."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.faulty import Around, faulty
from tests.queue.hands import Hands, eventually
from treadle import Job, KeyReused, Queue, StoreUnavailable
from treadle.store.values import NewJob


class Watched:
    """Lets a test see how jobs reach the store, hold them up there, and break it."""

    def __init__(self, queue: Queue) -> None:
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        faulty(queue).around("insert", self._insert)

    async def _insert(self, insert: Around, jobs: Sequence[NewJob], **options: Any) -> Any:
        self.batches.append(len(jobs))
        await self.gate.wait()
        if self.error:
            raise self.error
        return await insert(jobs, **options)


async def test_a_hundred_concurrent_enqueues_share_a_few_transactions(queue: Queue, hands: Hands) -> None:
    watched = Watched(queue)
    jobs = await asyncio.gather(*(queue.enqueue("mail", {"n": n}) for n in range(100)))
    assert watched.batches == [1, 99]
    assert [job.payload["n"] for job in jobs] == list(range(100))
    assert sorted(await hands.claimable("mail")) == sorted(job.id for job in jobs)


async def test_one_alone_does_not_wait_for_company(queue: Queue) -> None:
    watched = Watched(queue)
    for n in range(3):
        await queue.enqueue("mail", {"n": n})
    assert watched.batches == [1, 1, 1]


async def test_a_crowd_goes_in_groups_of_five_hundred(queue: Queue) -> None:
    watched = Watched(queue)
    await asyncio.gather(*(queue.enqueue("mail") for _ in range(1201)))
    assert watched.batches == [1, 500, 500, 200]
    assert await queue.count() == 1201


async def test_one_that_is_refused_does_not_fail_the_others(queue: Queue) -> None:
    await queue.enqueue("mail", {"n": -1}, idempotency_key="taken")
    calls = [queue.enqueue("mail", {"n": n}, idempotency_key="taken" if n % 10 == 5 else None) for n in range(100)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [n for n, answer in enumerate(answers) if isinstance(answer, KeyReused)]
    assert refused == [n for n in range(100) if n % 10 == 5]
    assert sum(isinstance(answer, Job) for answer in answers) == 90
    assert await queue.count() == 91


async def test_a_bad_payload_among_them_never_gets_there(queue: Queue) -> None:
    calls = [queue.enqueue("mail", {"n": float("nan") if n == 50 else n}) for n in range(100)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, Job) for answer in answers) == 99
    assert await queue.count() == 99


async def test_a_cancelled_caller_does_not_affect_the_others(queue: Queue) -> None:
    watched = Watched(queue)
    watched.gate.clear()
    calls = [asyncio.create_task(queue.enqueue("mail", {"n": n})) for n in range(100)]
    await eventually(lambda: watched.batches == [1])
    for leader_and_others in (0, 7, 42):
        calls[leader_and_others].cancel()
    await eventually(lambda: watched.batches == [1, 97])
    calls[77].cancel()
    watched.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [n for n, one in enumerate(answers) if isinstance(one, asyncio.CancelledError)] == [0, 7, 42, 77]
    assert sum(isinstance(answer, Job) for answer in answers) == 96
    for answer in answers:
        if isinstance(answer, Job):
            await queue.get(answer.id)
    # And the queue goes on as before.
    assert (await queue.enqueue("mail", {"n": "next"})).payload == {"n": "next"}


async def test_an_error_of_the_store_reaches_every_caller(queue: Queue) -> None:
    watched = Watched(queue)
    watched.error = StoreUnavailable("the disk is full")
    watched.gate.clear()
    calls = [asyncio.create_task(queue.enqueue("mail")) for _ in range(100)]
    await eventually(lambda: watched.batches == [1])
    watched.gate.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert watched.batches == [1, 99]
    assert [str(answer) for answer in answers] == ["the disk is full"] * 100
    watched.error = None
    jobs = await asyncio.gather(*(queue.enqueue("mail") for _ in range(100)))
    assert len(jobs) == 100
    assert await queue.count() == 100


@pytest.mark.parametrize("count", [1, 50])
async def test_every_caller_is_answered_only_after_the_commit(queue: Queue, url: str, count: int) -> None:
    async with Queue(url) as other:

        async def enqueue_and_look(n: int) -> None:
            job = await queue.enqueue("mail", {"n": n})
            assert (await other.get(job.id)).payload == {"n": n}

        await asyncio.gather(*(enqueue_and_look(n) for n in range(count)))
