"""Leases, and what is done under them: extend, close, touch, cancel requests, lost claims."""

from __future__ import annotations

import pytest

from treadle.errors import LeaseLost
from treadle.lifecycle import Completed, Failed, Status
from treadle.store.base import Touch
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, SECOND, TOPIC, Workbench

NOBODYS_LEASE = 999_999


class LeaseContract(ContractPart):
    async def test_every_lease_is_another(self, bench: Workbench) -> None:
        leases = [await bench.lease(worker="same name") for _ in range(3)]
        assert len(set(leases)) == 3

    async def test_a_live_lease_can_be_extended(self, bench: Workbench) -> None:
        lease = await bench.lease(MINUTE)
        assert await bench.store.extend(lease, HOUR)
        await bench.pass_time(30 * MINUTE)
        assert await bench.store.extend(lease, HOUR)

    async def test_a_lease_that_ran_out_stays_lost(self, bench: Workbench) -> None:
        lease = await bench.lease(MINUTE)
        await bench.pass_time(2 * MINUTE)
        assert not await bench.store.extend(lease, HOUR)
        assert not await bench.store.extend(lease, HOUR)

    async def test_a_closed_lease_cannot_be_extended(self, bench: Workbench) -> None:
        lease = await bench.lease()
        await bench.store.close_lease(lease)
        assert not await bench.store.extend(lease, HOUR)

    async def test_nobodys_lease_cannot_be_used(self, bench: Workbench) -> None:
        assert not await bench.store.extend(NOBODYS_LEASE, HOUR)
        await bench.store.close_lease(NOBODYS_LEASE)
        with pytest.raises(LeaseLost):
            await bench.claim(lease=NOBODYS_LEASE)

    async def test_closing_twice_changes_nothing(self, bench: Workbench) -> None:
        lease = await bench.lease()
        await bench.store.close_lease(lease)
        await bench.store.close_lease(lease)
        assert await bench.store.reclaim() == []

    async def test_what_runs_under_a_closed_lease_is_reclaimed_at_once(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        lease = (await bench.store.workers())[0]
        assert lease.running == 1
        job = await bench.job(id)
        assert job.locked_by == "w1"
        await bench.pass_time(2 * HOUR)
        assert [moved.id for moved in await bench.store.reclaim()] == [id]

    async def test_a_workers_lease_tells_what_it_serves(self, bench: Workbench) -> None:
        serves = {"topics": ["a", "b"], "capabilities": ["media"], "slots": 7}
        lease = await bench.store.open_lease("w7", HOUR, serves)
        await bench.enqueue(2, topic="a")
        await bench.claim(2, topics=["a"], lease=lease)
        (worker,) = await bench.store.workers()
        assert (worker.name, worker.topics, worker.capabilities) == ("w7", ["a", "b"], ["media"])
        assert (worker.slots, worker.running) == (7, 2)
        assert abs(worker.locked_until - await bench.store.now() - HOUR) < MINUTE

    async def test_only_live_workers_are_shown(self, bench: Workbench) -> None:
        await bench.lease(MINUTE, worker="old")
        closed = await bench.lease(worker="closed")
        await bench.pass_time(2 * MINUTE)
        await bench.store.close_lease(closed)
        await bench.lease(worker="here")
        assert [worker.name for worker in await bench.store.workers()] == ["here"]

    async def test_extending_moves_the_jobs_lock(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        before = (await bench.job(id)).locked_until
        await bench.store.extend(job.lease, HOUR)
        after = await bench.job(id)
        assert before is not None
        assert after.locked_until is not None
        assert after.locked_until > before
        assert after.last_heartbeat_at is not None


class TouchContract(ContractPart):
    async def test_a_touch_tells_start_and_progress(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        assert (await bench.job(id)).started_at is None
        assert await bench.store.touch(job.lease, [Touch(job.n, job.token, 2 * SECOND, 40, "frame 4")]) == []
        seen = await bench.job(id)
        assert (seen.progress, seen.progress_message) == (40, "frame 4")
        assert seen.started_at is not None
        assert seen.claimed_at is not None
        assert (seen.claimed_at - seen.started_at).total_seconds() == pytest.approx(2, abs=0.5)

    async def test_the_first_start_stands(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, None, None)])
        first = (await bench.job(id)).started_at
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 5 * HOUR, None, None)])
        assert (await bench.job(id)).started_at == first

    async def test_nothing_new_keeps_the_old(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, 10, "ten")])
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, None, None)])
        seen = await bench.job(id)
        assert (seen.progress, seen.progress_message) == (10, "ten")

    async def test_only_the_lost_ones_are_named(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        a, b, c = await bench.claim(3)
        await bench.settle(b, Completed())
        touches = [
            Touch(a.n, a.token, 0, 1, "a"),
            Touch(b.n, b.token, 0, 2, "b"),
            Touch(c.n, c.token - 1, 0, 3, "c"),
            Touch(NOBODYS_LEASE, 1, 0, 4, "d"),
        ]
        assert await bench.store.touch(a.lease, touches) == [b.n, c.n, NOBODYS_LEASE]
        assert (await bench.job(a.id)).progress_message == "a"
        assert (await bench.job(c.id)).progress_message is None

    async def test_without_a_live_lease_all_are_lost(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        job_row = (await bench.job(id)).progress
        await bench.enqueue(1)
        job = await bench.claim_one()
        await bench.store.close_lease(job.lease)
        assert await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, 50, "x")]) == [job.n]
        assert (await bench.job(job.id)).progress == job_row == 0

    async def test_touching_nothing_is_nothing(self, bench: Workbench) -> None:
        assert await bench.store.touch(await bench.lease(), []) == []

    async def test_progress_is_kept_in_the_outcome_of_a_failure(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, 30, "nearly")])
        await bench.settle(job, Failed("Boom", "Boom"))
        seen = await bench.job(id)
        assert (seen.status, seen.progress, seen.progress_message) == (Status.FAILED, 30, "nearly")


class CancelRequestContract(ContractPart):
    async def test_a_worker_hears_of_its_own_cancels_only(self, bench: Workbench) -> None:
        await bench.enqueue(2)
        mine, theirs = await bench.claim_one(), await bench.claim_one()
        await bench.store.cancel([mine.id, theirs.id], "stop it")
        (request,) = await bench.store.cancel_requests(mine.lease)
        assert (request.n, request.token, request.reason) == (mine.n, mine.token, "stop it")

    async def test_no_cancel_no_request(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        assert await bench.store.cancel_requests(job.lease) == []
        assert await bench.store.cancel_requests(NOBODYS_LEASE) == []

    async def test_the_first_reason_stands(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await bench.store.cancel([job.id], "first")
        await bench.store.cancel([job.id], "second")
        assert [request.reason for request in await bench.store.cancel_requests(job.lease)] == ["first"]


class LostClaimContract(ContractPart):
    """A claim whose answer got lost: its jobs run under the lease, but their worker never heard of them."""

    async def test_unknown_claims_are_given_back_unspent(self, bench: Workbench) -> None:
        lease = await bench.lease()
        ids = await bench.enqueue(3)
        (known,) = await bench.claim(1, lease=lease)
        await bench.claim(2, lease=lease)  # this answer is lost
        assert await bench.store.release_unknown(lease, [known.token]) == 2
        jobs = [await bench.job(id) for id in ids]
        assert [job.status for job in jobs] == [Status.PROCESSING, Status.PENDING, Status.PENDING]
        assert [job.attempt for job in jobs] == [1, 0, 0]
        assert await bench.history(ids[1]) == ["released"]

    async def test_a_worker_that_knows_nothing_gives_everything_back(self, bench: Workbench) -> None:
        lease = await bench.lease()
        await bench.enqueue(2)
        await bench.claim(2, lease=lease)
        assert await bench.store.release_unknown(lease, []) == 2
        assert len(await bench.claimable()) == 2

    async def test_other_leases_are_left_alone(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        other = await bench.claim_one()
        assert await bench.store.release_unknown(await bench.lease(), []) == 0
        assert await bench.store.release_unknown(NOBODYS_LEASE, []) == 0
        assert await bench.settle(other, Completed())

    async def test_a_cancelled_one_ends_as_cancelled(self, bench: Workbench) -> None:
        lease = await bench.lease()
        (id,) = await bench.enqueue(1)
        await bench.claim(1, lease=lease)
        await bench.store.cancel([id], "too late")
        assert await bench.store.release_unknown(lease, []) == 1
        assert await bench.status(id) is Status.CANCELLED

    async def test_claims_of_a_topic_not_served_are_empty(self, bench: Workbench) -> None:
        await bench.enqueue(1, topic="other")
        assert await bench.claim(5, topics=[TOPIC]) == []
