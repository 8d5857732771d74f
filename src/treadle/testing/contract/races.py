"""Two callers want the same job at the same instant: each time one of them wins, and the other is told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest

from treadle.model.errors import JobNotFound, LeaseLost, WrongState
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.lifecycle import Completed, Failed, Released
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import Claimed, Refusal, Wants
from treadle.testing.contract.racing import ROUNDS, rounds, together
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, LEASES_ONLY, TOPIC, Workbench, eventually, settlement


class RaceContract(ContractPart):
    @pytest.fixture
    async def stores(self, bench: Workbench) -> tuple[Store, Store]:
        return bench.store, await bench.another()

    async def claimed(self, bench: Workbench, count: int, lease_ms: int = HOUR, **options: Any) -> list[Claimed]:
        """This many running jobs, each under a separate lease."""
        await bench.enqueue(count, **options)
        return [await bench.claim_one(lease=await bench.lease(lease_ms)) for _ in range(count)]

    async def a_millisecond_later(self, bench: Workbench) -> None:
        now = await bench.store.now()

        async def later() -> bool:
            return await bench.store.now() > now

        await eventually(later)

    async def test_cancel_against_complete(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, operator = stores
        winners: Counter[str] = Counter()
        async for count in rounds():
            jobs = await self.claimed(bench, count)

            async def one(job: Claimed) -> None:
                accepted, (answer,) = await together(
                    bench.settle(job, Completed(), store=worker), steering.cancel(operator, [job.id], "stop")
                )
                assert accepted
                assert await bench.status(job.id) is Status.COMPLETED
                if isinstance(answer, Refusal):
                    assert isinstance(answer.error, WrongState)
                    assert answer.error.data["status"] == "completed"
                winners["cancel" if isinstance(answer, Job) else "complete"] += 1

            await asyncio.gather(*map(one, jobs))
        assert sum(winners.values()) == ROUNDS

    async def test_cancel_against_failure(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, operator = stores
        async for count in rounds():
            jobs = await self.claimed(bench, count)

            async def one(job: Claimed) -> None:
                accepted, (answer,) = await together(
                    bench.settle(job, Failed("Boom", "Boom"), store=worker), steering.cancel(operator, [job.id], "stop")
                )
                assert accepted
                told = Status.FAILED if isinstance(answer, Refusal) else Status.CANCELLED
                assert await bench.status(job.id) is told

            await asyncio.gather(*map(one, jobs))

    async def test_cancel_against_retry(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, operator = stores
        async for count in rounds():
            jobs = await self.claimed(bench, count)

            async def one(job: Claimed) -> None:
                accepted, (answer,) = await together(
                    bench.settle(job, Failed("Boom", "Boom", retry_in_ms=HOUR), store=worker),
                    steering.cancel(operator, [job.id], "stop"),
                )
                assert accepted
                assert isinstance(answer, Job), "a job that lives can always be cancelled"
                assert await bench.status(job.id) is Status.CANCELLED

            await asyncio.gather(*map(one, jobs))

    async def test_cancel_against_claim(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, operator = stores
        async for count in rounds():
            ids = await bench.enqueue(count)
            claims, answers = await together(
                asyncio.gather(*(bench.claim(1, store=worker) for _ in ids)),
                asyncio.gather(*(steering.cancel(operator, [id], "stop") for id in ids)),
            )
            claimed = {job.id: job for jobs in claims for job in jobs}
            assert all(isinstance(answer, Job) for (answer,) in answers)
            for id in ids:
                expected = Status.CANCELLING if id in claimed else Status.CANCELLED
                assert await bench.status(id) is expected
            await asyncio.gather(*(bench.settle(job, Released()) for job in claimed.values()))

    async def test_cancel_against_promotion(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        leader, operator = stores
        async for count in rounds():
            ids = await bench.enqueue(count, delay_ms=1)
            await self.a_millisecond_later(bench)
            _, answers = await together(
                leader.advance(), asyncio.gather(*(steering.cancel(operator, [id], "") for id in ids))
            )
            assert all(isinstance(answer, Job) for (answer,) in answers)
            assert set(await bench.statuses(ids)) == {Status.CANCELLED}

    async def test_two_cancels(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        async for count in rounds():
            ids = await bench.enqueue(count)

            async def one(id: str) -> None:
                answers = await together(*(steering.cancel(store, [id], "stop") for store in stores))
                done = [answer for (answer,) in answers if isinstance(answer, Job)]
                assert done, "both were refused"
                assert await bench.history(id) == ["cancelled"]

            await asyncio.gather(*map(one, ids))

    async def test_requeue_against_requeue_and_claim(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        """The job gets exactly one new attempt, no matter which requeue and which claim win."""
        async for count in rounds():
            jobs = await self.claimed(bench, count)
            await bench.store.settle([settlement(job, Failed("Boom", "Boom")) for job in jobs])
            ids = [job.id for job in jobs]
            answers = await together(
                *(steering.requeue(store, ids) for store in stores),
                *(bench.claim(count, store=store) for store in stores),
            )
            assert [await bench.history(id) for id in ids] == [["failed", "requeued"]] * count
            claimed = [job for claim in answers[2:] for job in claim] + await bench.claim(count)
            assert sorted(job.id for job in claimed) == sorted(ids)
            assert {job.attempt for job in claimed} == {1}
            for one, other in zip(*answers[:2], strict=True):
                assert isinstance(one, Job) or isinstance(other, Job)
            assert await bench.store.settle([settlement(job, Completed()) for job in claimed]) == []

    @pytest.mark.parametrize("max_attempts", [1, 3])
    async def test_reaper_against_completion(
        self, bench: Workbench, stores: tuple[Store, Store], max_attempts: int
    ) -> None:
        """Either the completion stands or the worker is told that it lost the job."""
        worker, reaper = stores
        async for count in rounds():
            jobs = await self.claimed(bench, count, max_attempts=max_attempts)

            async def lose(job: Claimed) -> None:
                await reaper.close_lease(job.lease)
                await reaper.reap(LEASES_ONLY)

            answers = await asyncio.gather(
                *(together(bench.settle(job, Completed('"mine"'), store=worker), lose(job)) for job in jobs)
            )
            await reaper.reap(LEASES_ONLY)  # a lease that another sweep was already processing
            for job, (accepted, _) in zip(jobs, answers, strict=True):
                seen = await bench.job(job.id)
                if accepted:
                    assert (seen.status, seen.result_value) == (Status.COMPLETED, "mine")
                else:
                    assert seen.status is (Status.PENDING if max_attempts > 1 else Status.EXPIRED)
                    assert (seen.attempt, seen.result_value) == (1, None)
            left = await bench.claim(count)
            assert await bench.store.settle([settlement(job, Completed()) for job in left]) == []

    async def test_reaper_against_extension(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        """A renewed lease is not reclaimed; a reclaimed one is not renewed."""
        worker, reaper = stores
        outcomes: Counter[bool] = Counter()
        async for count in rounds():
            await bench.enqueue(count)
            jobs = await bench.claim(count)

            async def one(job: Claimed) -> None:
                lease = await worker.open_lease("short", 4)
                fresh = await worker.claim(lease, Wants([TOPIC], [], 1, 1))
                await asyncio.sleep(random.uniform(0.002, 0.004))  # about as long as the lease
                renewed, reaped = await together(worker.renew(lease, HOUR), reaper.reap(LEASES_ONLY))
                outcomes[renewed is not None] += 1
                for mine in fresh.jobs:
                    reclaimed = mine.id in [one.id for one in reaped.moved]
                    assert not (renewed and reclaimed)
                    if renewed:
                        assert await bench.settle(mine, Completed(), store=worker)

            await bench.store.settle([settlement(job, Released()) for job in jobs])
            await asyncio.gather(*(self._unless_lost(one(job)) for job in jobs))

            async def none_left() -> bool:
                await reaper.reap(LEASES_ONLY)
                return (await bench.store.stats()).counts["processing"] == 0

            await eventually(none_left)

    async def _unless_lost(self, actor: Awaitable[None]) -> None:
        try:
            await actor
        except LeaseLost:
            pass  # the machine was too busy: the short lease expired before its claim

    async def test_release_against_settle(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, operator = stores
        async for count in rounds():
            jobs = await self.claimed(bench, count)

            async def one(job: Claimed) -> None:
                accepted, (answer,) = await together(
                    bench.settle(job, Completed(), store=worker), steering.release(operator, [job.id])
                )
                assert accepted is isinstance(answer, Refusal)
                assert await bench.status(job.id) is (Status.COMPLETED if accepted else Status.PENDING)

            await asyncio.gather(*map(one, jobs))
            left = await bench.claim(count)
            assert {job.attempt for job in left} <= {1}
            await bench.store.settle([settlement(job, Completed()) for job in left])

    async def test_delete_against_claim(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, operator = stores
        async for count in rounds():
            ids = await bench.enqueue(count)
            claims, answers = await together(
                asyncio.gather(*(bench.claim(1, store=worker) for _ in ids)),
                asyncio.gather(*(steering.delete(operator, [id]) for id in ids)),
            )
            claimed = [job for jobs in claims for job in jobs]
            deleted = [id for id, (answer,) in zip(ids, answers, strict=True) if answer is None]
            assert not {job.id for job in claimed} & set(deleted)
            left = await bench.claim(count)
            assert sorted([*(job.id for job in claimed + left), *deleted]) == sorted(ids)
            for job in claimed + left:
                assert await bench.settle(job, Completed())

    async def test_delete_against_requeue(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        async for count in rounds():
            jobs = await self.claimed(bench, count)
            await bench.store.settle([settlement(job, Failed("Boom", "Boom")) for job in jobs])

            async def one(job: Claimed) -> None:
                (deleted,), (requeued,) = await together(
                    steering.delete(stores[0], [job.id]), steering.requeue(stores[1], [job.id])
                )
                status = (await bench.store.get([job.id]))[0]
                if deleted is None:
                    assert status is None
                else:
                    assert isinstance(requeued, Job)
                    assert status is not None
                if isinstance(requeued, Refusal):
                    assert isinstance(requeued.error, JobNotFound | WrongState)

            await asyncio.gather(*map(one, jobs))
            await steering.cancel(bench.store, [job.id for job in jobs], "")

    async def test_reschedule_against_claim(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, operator = stores
        async for count in rounds():
            ids = await bench.enqueue(count)
            later = await bench.store.now() + HOUR
            claims, answers = await together(
                asyncio.gather(*(bench.claim(1, store=worker) for _ in ids)),
                asyncio.gather(*(steering.reschedule(operator, [id], run_at=later) for id in ids)),
            )
            claimed = {job.id for jobs in claims for job in jobs}
            changed = {answer.id for (answer,) in answers if isinstance(answer, Job)}
            assert not claimed & changed
            left = {job.id for job in await bench.claim(count)}
            assert claimed | changed | left == set(ids)
            await steering.cancel(bench.store, ids, "")

    async def test_delete_against_promotion(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        leader, operator = stores
        async for count in rounds():
            ids = await bench.enqueue(count, delay_ms=1)
            await self.a_millisecond_later(bench)
            _, answers = await together(
                leader.advance(), asyncio.gather(*(steering.delete(operator, [id]) for id in ids))
            )
            assert [answer for (answer,) in answers] == [None] * count, "a pending job can be deleted in any place"
            assert await bench.store.get(ids) == [None] * count

    async def test_reschedule_against_promotion(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        leader, operator = stores
        async for count in rounds():
            ids = await bench.enqueue(count, delay_ms=1)
            later = await bench.store.now() + HOUR
            _, answers = await together(
                leader.advance(),
                asyncio.gather(*(steering.reschedule(operator, [id], run_at=later) for id in ids)),
            )
            assert all(isinstance(answer, Job) for (answer,) in answers), "a pending job can be changed in any place"
            assert await bench.claim(count) == []
            await steering.cancel(bench.store, ids, "")

    async def test_deadline_against_claim(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        worker, leader = stores
        async for count in rounds():
            ids = await bench.enqueue(count, expires_in_ms=random.randint(1, 6))
            await asyncio.sleep(0.003)  # the deadlines of some
            claimed, _ = await together(bench.claim(count, store=worker), leader.advance())

            async def none_left() -> bool:
                await leader.advance()
                return (await bench.store.stats()).counts["pending"] == 0

            await eventually(none_left)
            kept = {job.id for job in claimed}
            for id in ids:
                assert await bench.status(id) is (Status.PROCESSING if id in kept else Status.EXPIRED)
            assert await bench.store.settle([settlement(job, Completed()) for job in claimed]) == []

    async def test_the_same_ending_sent_twice_concurrently(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        async for count in rounds():
            jobs = await self.claimed(bench, count)
            answers = await asyncio.gather(
                *(together(*(bench.settle(job, Completed(), store=store) for store in stores)) for job in jobs)
            )
            assert all(accepted for pair in answers for accepted in pair)
        assert (await bench.store.stats()).counts["completed"] == ROUNDS

    async def test_two_reapers_and_two_promoters(self, bench: Workbench, stores: tuple[Store, Store]) -> None:
        done = 0
        async for count in rounds():
            await bench.enqueue(count, delay_ms=1)
            jobs = await self.claimed(bench, count)
            for job in jobs:
                await bench.store.close_lease(job.lease)
            answers = await together(
                *(store.reap(LEASES_ONLY) for store in stores * 2), *(store.advance() for store in stores * 2)
            )
            moved = [one.id for answer in answers[:4] for one in answer.moved]
            assert sorted(moved) == sorted(job.id for job in jobs)
            await self.a_millisecond_later(bench)
            await bench.store.advance()
            left = await bench.claim(2 * count)
            assert len(left) == 2 * count
            assert await bench.store.settle([settlement(job, Completed()) for job in left]) == []
            done += len(left)
        assert (await bench.store.stats()).counts["completed"] == done == 2 * ROUNDS
