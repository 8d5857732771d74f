"""Output: appended by its owner, in order and once, and read from any place."""

from __future__ import annotations

import asyncio

from treadle.model.status import Status
from treadle.policy.lifecycle import Completed, Failed, Released
from treadle.policy.output import ChannelState, Chunk
from treadle.queue import steering
from treadle.queue.steering import Again
from treadle.store.protocol import Store
from treadle.store.values import Claimed, Effects, OutputWrite
from treadle.store.views import OutputPage
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import DAY, HOUR, Workbench, settlement


def chunk(*values: int, last: int | None = None, attempt: int = 1, channel: str = "tokens") -> Chunk:
    return Chunk(channel, str(list(values)), len(values), attempt, last)


async def write(store: Store, job: Claimed, *chunks: Chunk, lease: int | None = None) -> bool:
    """Whether it was accepted."""
    lost = await store.write_output(lease or job.lease, [OutputWrite(job.n, job.token, 5, chunks)])
    assert lost in ([], [(job.n, job.token)])
    return not lost


async def page(bench: Workbench, id: str, channel: str = "tokens", after: int = 0, size: int = 2**18) -> OutputPage:
    found = await bench.store.output(id, channel, after, size)
    assert found is not None, "there is no such job"
    return found


async def values(bench: Workbench, id: str, channel: str = "tokens", after: int = 0) -> list[int]:
    return [value for piece in (await page(bench, id, channel, after)).pieces for value in piece.values]


class OutputContract(ContractPart):
    async def test_values_are_kept_in_order_by_channel(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        assert await write(bench.store, job, chunk(1, 2), chunk(7, channel="log"))
        assert await write(bench.store, job, chunk(3))
        assert await values(bench, id) == [1, 2, 3]
        assert await values(bench, id, "log") == [7]
        assert await values(bench, id, "none") == []
        assert (await page(bench, id)).last == 3
        assert await values(bench, id, after=1) == [2, 3]
        assert (await page(bench, id, after=1)).pieces[0].first == 2
        assert await values(bench, id, after=3) == []
        assert await bench.store.output("0" * 8 + id[8:], "tokens") is None

    async def test_a_job_that_writes_is_seen_to_run(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await write(bench.store, job, chunk(1))
        assert (await bench.job(id)).started_at is not None

    async def test_only_the_owner_writes(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        other = await bench.lease(worker="w2")
        assert not await write(bench.store, job, chunk(1), lease=other)
        assert not await write(bench.store, job._replace(token=job.token - 1), chunk(1))
        await bench.settle(job, Released())
        assert not await write(bench.store, job, chunk(1))
        assert await values(bench, id) == []

    async def test_a_write_that_is_repeated_is_stored_once(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        for _ in range(2):
            assert await write(bench.store, job, chunk(1, 2, last=2))
        assert await write(bench.store, job, chunk(1, 2, last=2), chunk(3, last=3))
        assert await values(bench, id) == [1, 2, 3]
        state = (await bench.store.output_states([id]))[id]
        assert state.channels == {"tokens": ChannelState(3, len("[1, 2][3]"), 1)}

    async def test_the_last_values_come_with_the_outcome(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await write(bench.store, job, chunk(1, last=1))
        done = settlement(job, Completed("1"))._replace(effects=Effects(output=(chunk(1, last=1), chunk(2, last=2))))
        assert not await bench.store.settle([done])
        assert await values(bench, id) == [1, 2]
        assert (await page(bench, id)).status is Status.COMPLETED

    async def test_a_lost_outcome_leaves_no_output(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        stale = settlement(job._replace(token=job.token - 1), Completed())._replace(effects=Effects(output=(chunk(1),)))
        assert await bench.store.settle([stale])
        assert await values(bench, id) == []

    async def test_an_unknown_cancel_keeps_the_output(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "not wanted")
        failed = settlement(job, Failed("Boom", "Boom"))._replace(effects=Effects(output=(chunk(1),)))
        assert not await bench.store.settle([failed])
        assert await bench.status(id) is Status.CANCELLED
        assert await values(bench, id) == [1]

    async def test_a_later_attempt_resets(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await write(bench.store, job, chunk(1))
        await bench.settle(job, Failed("Boom", "Boom", retry_in_ms=1))
        await bench.pass_time(1000)
        await bench.promoted()
        again = await bench.claim_one()
        await write(bench.store, again, chunk(2, attempt=2))
        await write(bench.store, again, chunk(3, attempt=2))
        pieces = (await page(bench, id)).pieces
        assert [(piece.first, piece.attempt, piece.resets) for piece in pieces] == [
            (1, 1, False),
            (2, 2, True),
            (3, 2, False),
        ]

    async def test_the_attempt_after_a_release_goes_on_and_the_one_after_a_requeue_resets(
        self, bench: Workbench
    ) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await write(bench.store, job, chunk(1))
        await bench.settle(job, Released())
        again = await bench.claim_one()
        await write(bench.store, again, chunk(2))
        await bench.settle(again, Completed())
        await steering.requeue(bench.store, [id], again=Again(force=True))
        third = await bench.claim_one()
        await write(bench.store, third, chunk(3))
        assert [piece.resets for piece in (await page(bench, id)).pieces] == [False, False, True]

    async def test_a_page_has_a_size(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        for i in range(10):
            await write(bench.store, job, chunk(*range(i * 100, i * 100 + 100)))
        first = await page(bench, id, size=1)
        assert len(first.pieces) == 1, "at least one row comes, so that a reader gets on"
        assert first.last == 1000
        found: list[int] = []
        after = 0
        while some := (await page(bench, id, after=after, size=600)).pieces:
            assert len(some) <= 3
            found += [value for piece in some for value in piece.values]
            after = some[-1].first + len(some[-1].values) - 1
        assert found == list(range(1000))

    async def test_states_of_many_jobs(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3)
        jobs = {job.id: job for job in await bench.claim(3)}
        await write(bench.store, jobs[ids[0]], chunk(1), chunk(1, channel="log"))
        await write(bench.store, jobs[ids[1]], chunk(1, 2))
        await bench.settle(jobs[ids[1]], Completed())
        found = await bench.store.output_states([*ids, "no id", "0" * 8 + ids[0][8:]])
        assert found.keys() == set(ids)
        assert sorted(found[ids[0]].channels) == ["log", "tokens"]
        assert (found[ids[1]].status, found[ids[1]].channels["tokens"].last) == (Status.COMPLETED, 2)
        assert (found[ids[2]].status, found[ids[2]].channels) == (None, {})

    async def test_deleted_jobs_leave_no_output(self, bench: Workbench) -> None:
        deleted, pruned = await bench.enqueue(2)
        for job in await bench.claim(2):
            await write(bench.store, job, chunk(1))
            await bench.settle(job, Failed("Boom", "Boom"))
        await steering.delete(bench.store, [deleted])
        await bench.pass_time(DAY)
        assert await bench.store.prune(HOUR) == 1
        assert await bench.store.output_states([deleted, pruned]) == {}

    async def test_old_output_goes_before_its_job(self, bench: Workbench) -> None:
        ended, live = await bench.enqueue(2)
        for job in await bench.claim(2):
            await write(bench.store, job, chunk(1), chunk(1, channel="log"))
            if job.id == ended:
                await bench.settle(job, Completed("7"))
        assert await bench.store.prune_output(HOUR) == 0
        await bench.pass_time(DAY)
        assert await bench.store.prune_output(HOUR) == 2
        assert await bench.store.prune_output(HOUR) == 0
        assert await values(bench, ended) == []
        assert await values(bench, live) == [1]
        assert (await bench.job(ended)).result_value == 7

    async def test_writes_of_one_job_by_two_at_a_time_lose_nothing(self, bench: Workbench) -> None:
        """As an external worker may send them."""
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        other = await bench.another()
        writes = (write(store, job, chunk(i)) for i in range(20) for store in (bench.store, other))
        assert all(await asyncio.gather(*writes))
        assert sorted(await values(bench, id)) == sorted([*range(20)] * 2)
