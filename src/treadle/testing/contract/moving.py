"""Maintenance: promoting due jobs and reclaiming jobs of lost workers."""

from __future__ import annotations

import asyncio

import pytest

from treadle.maintenance import Reaper
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed
from treadle.queue import steering
from treadle.store.values import Graces, Reaped
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, LEASES_ONLY, MINUTE, SECOND, TOPIC, Workbench


class PromoteContract(ContractPart):
    async def test_nothing_is_due_and_nothing_will_be(self, bench: Workbench) -> None:
        assert await bench.store.advance() == (0, [], None)
        await bench.enqueue(1)
        assert await bench.store.advance() == (0, [], None)

    async def test_the_next_time_is_told(self, bench: Workbench) -> None:
        await bench.enqueue(1, delay_ms=HOUR)
        await bench.enqueue(1, delay_ms=MINUTE)
        moved, _, wait = await bench.store.advance()
        assert moved == 0
        assert wait is not None
        assert 59 * SECOND < wait <= MINUTE

    async def test_due_jobs_come_into_the_queue(self, bench: Workbench) -> None:
        soon = await bench.enqueue(3, delay_ms=MINUTE)
        await bench.enqueue(1, delay_ms=HOUR)
        await bench.pass_time(2 * MINUTE)
        moved, _, wait = await bench.store.advance()
        assert moved == 3
        assert wait is not None
        assert 57 * MINUTE < wait <= 58 * MINUTE
        assert await bench.claimable() == soon

    async def test_no_more_than_the_limit_oldest_first(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(delay_ms=MINUTE + i * SECOND) for i in (3, 1, 2)]
        await bench.pass_time(HOUR)
        moved, _, wait = await bench.store.advance(limit=2)
        assert (moved, wait) == (2, 0)
        assert await bench.claimable() == [ids[1], ids[2]]
        assert (await bench.store.advance(limit=2)) == (1, [], None)
        assert await bench.claimable() == [ids[1], ids[2], ids[0]]

    async def test_a_retried_job_keeps_its_attempts(self, bench: Workbench) -> None:
        await bench.make("retrying")
        await bench.pass_time(2 * HOUR)
        await bench.store.advance()
        assert (await bench.claim_one()).attempt == 2

    async def test_a_delayed_job_takes_its_priority_and_capability_along(self, bench: Workbench) -> None:
        plain = await bench.enqueue_one()
        urgent = await bench.enqueue_one(delay_ms=MINUTE, priority=100, capability="media")
        await bench.pass_time(HOUR)
        await bench.store.advance()
        assert [job.id for job in await bench.claim(5, capabilities=["media"])] == [urgent, plain]

    async def test_two_promoters_move_each_job_once(self, bench: Workbench) -> None:
        other = await bench.another()
        ids = await bench.enqueue(200, delay_ms=MINUTE)
        await bench.pass_time(HOUR)
        answers = await asyncio.gather(*((bench.store, other)[i % 2].advance(limit=30) for i in range(20)))
        while (await bench.store.advance()).promoted:
            pass
        assert sum(answer.promoted for answer in answers) <= 200
        assert sorted(await bench.claimable()) == sorted(ids)


class ReclaimContract(ContractPart):
    async def test_nothing_to_reclaim(self, bench: Workbench) -> None:
        assert await bench.reap() == []
        await bench.make("processing")
        assert await bench.reap() == []

    async def test_a_job_of_a_lost_worker_is_tried_again(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        await bench.pass_time(2 * HOUR)
        (moved,) = await bench.reap()
        assert (moved.id, moved.topic, moved.status, moved.event) == (id, TOPIC, Status.PENDING, "job:reclaimed")
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.retries, seen.locked_by) == (Status.PENDING, 1, 1, None)
        assert await bench.history(id) == ["reclaimed"]
        assert (await bench.claim_one()).attempt == 2

    async def test_the_history_names_the_lost_worker(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        await bench.claim_one(lease=await bench.lease(MINUTE, worker="w-lost"))
        await bench.pass_time(HOUR)
        await bench.reap()
        (event,) = await bench.store.events(id) or ()
        assert "w-lost" in event.message
        assert (event.from_status, event.to_status) == ("processing", "pending")

    async def test_after_the_last_attempt_it_is_expired(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(max_attempts=2)
        for attempt in (1, 2):
            job = await bench.claim_one(lease=await bench.lease(MINUTE))
            assert job.attempt == attempt
            await bench.pass_time(HOUR)
            (moved,) = await bench.reap()
        assert (moved.status, moved.event) == (Status.EXPIRED, "job:expired")
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.last_error) == (Status.EXPIRED, 2, "worker lost")
        assert await bench.history(id) == ["reclaimed", "expired"]
        assert (await bench.store.stats()).counts["expired"] == 1

    async def test_a_reclaimed_job_keeps_its_place(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3)
        await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        await bench.reap()
        assert await bench.claimable() == ids

    async def test_only_lost_leases_are_reclaimed(self, bench: Workbench) -> None:
        ids = await bench.enqueue(4)
        await bench.claim(2, lease=await bench.lease(MINUTE))
        alive = await bench.claim(2, lease=await bench.lease(HOUR))
        await bench.pass_time(10 * MINUTE)
        assert sorted(moved.id for moved in await bench.reap()) == sorted(ids[:2])
        assert all([await bench.settle(job, Completed()) for job in alive])

    async def test_an_extended_lease_is_not_reclaimed(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        for _ in range(5):
            await bench.pass_time(50 * SECOND)
            assert await bench.store.renew(job.lease, MINUTE)
            assert await bench.reap() == []
        assert await bench.settle(job, Completed())

    async def test_all_jobs_of_a_lost_worker_come_back_together(self, bench: Workbench) -> None:
        ids = await bench.enqueue(150)
        await bench.claim(150, lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        assert len(await bench.reap()) == 150
        assert await bench.claimable() == ids

    async def test_the_limit_counts_jobs_and_more_is_told(self, bench: Workbench) -> None:
        ids = await bench.enqueue(30)
        for _ in range(3):
            await bench.claim(10, lease=await bench.lease(MINUTE))
        for _ in range(40):
            await bench.lease(MINUTE, worker="idle")
        await bench.pass_time(HOUR)
        reaped = [await bench.store.reap(LEASES_ONLY, 20)]
        while reaped[-1].more:
            reaped.append(await bench.store.reap(LEASES_ONLY, 20))
        assert max(len(one.moved) for one in reaped) <= 20
        assert sorted(moved.id for one in reaped for moved in one.moved) == sorted(ids)
        assert await bench.store.reap(LEASES_ONLY, 20) == Reaped([])

    async def test_a_worker_with_more_jobs_than_the_limit_is_taken_back_whole(self, bench: Workbench) -> None:
        await bench.enqueue(30)
        await bench.claim(30, lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        reaped = await bench.store.reap(LEASES_ONLY, 20)
        assert (len(reaped.moved), reaped.more) == (30, False)

    async def test_overdue_cancels_count_too(self, bench: Workbench) -> None:
        ids = await bench.enqueue(25)
        await bench.claim(25)
        await steering.cancel(bench.store, ids, "")
        await bench.pass_time(MINUTE)
        first = await bench.store.reap(Graces(SECOND), 20)
        assert (len(first.moved), first.more) == (20, True)
        second = await bench.store.reap(Graces(SECOND), 20)
        assert (len(second.moved), second.more) == (5, False)

    async def test_many_expired_leases_delay_a_crashed_workers_job_by_no_sweep(self, bench: Workbench) -> None:
        """External workers leave one lease per job."""
        for _ in range(15):
            await asyncio.gather(*(bench.lease(MINUTE, worker="external") for _ in range(100)))
        (id,) = await bench.enqueue(1)
        await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        sweep = Reaper(bench.store)
        await sweep.sweep()
        assert await bench.status(id) is Status.PENDING
        assert await bench.store.reap(LEASES_ONLY) == Reaped([])

    async def test_two_reapers_take_each_job_once(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(2)]
        ids = await bench.enqueue(60)
        for _ in range(20):
            await bench.claim(3, lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        swept = [
            one for moved in await asyncio.gather(*(bench.reap(store=store) for store in stores * 4)) for one in moved
        ]
        swept += await bench.reap()
        assert sorted(one.id for one in swept) == sorted(ids)
        assert {(await bench.job(id)).attempt for id in ids} == {1}
        assert [await bench.history(id) for id in ids] == [["reclaimed"]] * 60

    async def test_a_settled_job_is_not_reclaimed(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.settle(job, Completed())
        await bench.pass_time(HOUR)
        assert await bench.reap() == []
        assert await bench.status(id) is Status.COMPLETED

    @pytest.mark.parametrize("max_attempts", [1, 2])
    async def test_the_owner_of_a_reclaimed_job_is_told(self, bench: Workbench, max_attempts: int) -> None:
        (id,) = await bench.enqueue(1, max_attempts=max_attempts)
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        await bench.reap()
        before = await bench.job(id)
        assert not await bench.settle(job, Completed())
        assert not await bench.settle(job, Failed("Boom", "Boom"))
        assert not await bench.store.renew(job.lease, HOUR)
        assert (await bench.job(id)).status is before.status

    async def test_a_gated_job_keeps_its_room(self, bench: Workbench) -> None:
        gate = Limit("g", "queue_same_scope", 1)
        first, second = await bench.enqueue_one(limit=gate), await bench.enqueue_one(limit=gate)
        await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        await bench.reap()
        assert await bench.claimable() == [first]
        await steering.cancel(bench.store, [first], "")
        assert await bench.claimable() == [second]
