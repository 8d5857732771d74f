"""Leases and the calls made under them: renew, close, touch, cancel requests, lost claims."""

from __future__ import annotations

import time

import pytest

from treadle.model.errors import LeaseLost
from treadle.model.status import Status
from treadle.policy.lifecycle import Completed, Failed
from treadle.queue import steering
from treadle.store.values import CancelRequest, Touch
from treadle.store.views import ProcessId
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, SECOND, TOPIC, Workbench

NOBODYS_LEASE = 999_999


class LeaseContract(ContractPart):
    async def test_every_lease_is_another(self, bench: Workbench) -> None:
        leases = [await bench.lease(worker="same name") for _ in range(3)]
        assert len(set(leases)) == 3

    async def test_a_live_lease_can_be_renewed(self, bench: Workbench) -> None:
        lease = await bench.lease(MINUTE)
        renewed = await bench.store.renew(lease, HOUR)
        assert renewed is not None
        assert abs(renewed.until - await bench.store.now() - HOUR) < MINUTE
        await bench.pass_time(30 * MINUTE)
        assert await bench.store.renew(lease, HOUR)

    async def test_a_lease_that_ran_out_lives_until_it_is_taken_back(self, bench: Workbench) -> None:
        lease = await bench.lease(MINUTE)
        await bench.pass_time(2 * MINUTE)
        with pytest.raises(LeaseLost):
            await bench.claim(lease=lease)
        assert await bench.store.renew(lease, MINUTE)
        await bench.claim(lease=lease)
        await bench.pass_time(2 * MINUTE)
        await bench.reap()
        assert await bench.store.renew(lease, HOUR) is None
        assert await bench.store.renew(lease, HOUR) is None

    async def test_a_closed_lease_cannot_be_renewed(self, bench: Workbench) -> None:
        lease = await bench.lease()
        await bench.store.close_lease(lease)
        assert await bench.store.renew(lease, HOUR) is None

    async def test_a_worker_that_is_asked_to_drain_learns_it_from_its_next_renewal(self, bench: Workbench) -> None:
        serves = {"topics": [TOPIC], "capabilities": [], "slots": 2}
        store = bench.store
        mine, others = await store.open_lease("mine", HOUR, serves), await store.open_lease("other", HOUR, serves)
        outside = await store.open_lease("outside", HOUR, {**serves, "slots": 0})
        assert await store.drain("mine")
        for lease, draining in ((mine, True), (others, False), (outside, False)):
            for _ in range(2):
                renewed = await store.renew(lease, HOUR)
                assert renewed
                assert renewed.draining is draining
        assert {worker.name: worker.draining for worker in await store.workers()} == {
            "mine": True,
            "other": False,
            "outside": False,
        }

    async def test_a_worker_that_was_asked_to_drain_can_be_told_to_go_on(self, bench: Workbench) -> None:
        serves = {"topics": [TOPIC], "capabilities": ["gpu"], "slots": 2, "host": "h"}
        store = bench.store
        mine, others = await store.open_lease("mine", HOUR, serves), await store.open_lease("other", HOUR, serves)
        await store.drain("mine")
        await store.drain("other")
        assert await store.drain("mine", False)
        for lease, draining in ((mine, False), (others, True)):
            renewed = await store.renew(lease, HOUR)
            assert renewed
            assert renewed.draining is draining
        (worker,) = [one for one in await store.workers() if one.name == "mine"]
        assert not worker.draining
        assert (worker.topics, worker.capabilities, worker.slots, worker.host) == ([TOPIC], ["gpu"], 2, "h")
        assert await store.drain("mine", False), "once more changes nothing"
        assert not await store.drain("nobody", False)

    async def test_only_a_live_worker_with_slots_can_be_drained(self, bench: Workbench) -> None:
        store = bench.store
        await store.open_lease("outside", HOUR, {"slots": 0})
        await store.open_lease("late", MINUTE, {"slots": 1})
        await store.open_lease("unknown abilities", HOUR)
        await bench.pass_time(2 * MINUTE)
        for name in ("outside", "late", "unknown abilities", "nobody", "'; --"):
            assert not await store.drain(name), name

    async def test_nobodys_lease_cannot_be_used(self, bench: Workbench) -> None:
        assert await bench.store.renew(NOBODYS_LEASE, HOUR) is None
        await bench.store.close_lease(NOBODYS_LEASE)
        with pytest.raises(LeaseLost):
            await bench.claim(lease=NOBODYS_LEASE)

    async def test_leases_of_a_home_name_their_processes(self, bench: Workbench) -> None:
        store = bench.store
        one, other = ProcessId("boot-1", 7, 100), ProcessId("boot-1", 8, 101)
        leases = [await store.open_lease(f"w{one.pid}", HOUR, one._asdict()) for one in (one, other)]
        await store.open_lease("elsewhere", HOUR, ProcessId("boot-2", 7, 100)._asdict())
        await store.open_lease("external", HOUR)
        assert sorted(await store.leases_of("boot-1")) == [(leases[0], one), (leases[1], other)]
        assert await store.leases_of("boot-3") == []

    async def test_the_lease_of_a_dead_process_is_closed_only_if_it_names_that_process(self, bench: Workbench) -> None:
        store, dead = bench.store, ProcessId("boot-1", 7, 100)
        (id,) = await bench.enqueue(1)
        lease = await store.open_lease("killed", HOUR, dead._asdict())
        await bench.claim_one(lease=lease)
        others = [dead._replace(home="boot-2"), dead._replace(pid=8), dead._replace(started=101)]
        assert not any([await store.close_lease(lease, owner) for owner in others])
        assert await bench.reap() == []
        assert await store.renew(lease, HOUR)
        assert await store.close_lease(lease, dead)
        assert not await store.close_lease(lease, dead), "only one of two tells that it did"
        assert await store.leases_of("boot-1") == []
        assert [one.id for one in await bench.reap()] == [id]
        assert (await bench.claim_one()).attempt == 2

    async def test_the_lease_of_an_external_worker_names_no_process(self, bench: Workbench) -> None:
        store = bench.store
        lease = await store.open_lease("external", HOUR, {"topics": [TOPIC], "slots": 0})
        assert not await store.close_lease(lease, ProcessId("boot-1", 7, 100))
        assert await store.renew(lease, HOUR)

    async def test_closing_twice_changes_nothing(self, bench: Workbench) -> None:
        lease = await bench.lease()
        await bench.store.close_lease(lease)
        await bench.store.close_lease(lease)
        assert await bench.reap() == []

    async def test_jobs_under_a_closed_lease_are_reclaimed_immediately(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        lease = (await bench.store.workers())[0]
        assert lease.running == 1
        job = await bench.job(id)
        assert job.locked_by == "w1"
        await bench.pass_time(2 * HOUR)
        assert [moved.id for moved in await bench.reap()] == [id]

    async def test_a_workers_lease_tells_what_it_serves(self, bench: Workbench) -> None:
        serves = {"topics": ["a", "b"], "capabilities": ["media"], "slots": 7, "host": "web-1", "version": "1.4.0"}
        lease = await bench.store.open_lease("w7", HOUR, serves)
        await bench.enqueue(2, topic="a")
        await bench.claim(2, topics=["a"], lease=lease)
        (worker,) = await bench.store.workers()
        assert (worker.name, worker.topics, worker.capabilities) == ("w7", ["a", "b"], ["media"])
        assert (worker.slots, worker.running) == (7, 2)
        assert (worker.host, worker.version) == ("web-1", "1.4.0")
        assert abs(worker.locked_until - await bench.store.now() - HOUR) < MINUTE

    async def test_only_live_workers_are_shown(self, bench: Workbench) -> None:
        await bench.lease(MINUTE, worker="old")
        closed = await bench.lease(worker="closed")
        await bench.pass_time(2 * MINUTE)
        await bench.store.close_lease(closed)
        await bench.lease(worker="here")
        assert [worker.name for worker in await bench.store.workers()] == ["here"]

    async def test_workers_are_found_by_name(self, bench: Workbench) -> None:
        for name in ("here", "there", "here"):
            await bench.lease(worker=name)
        assert [worker.name for worker in await bench.store.workers()] == ["here", "here", "there"]
        assert [worker.name for worker in await bench.store.workers("here")] == ["here", "here"]
        assert await bench.store.workers("nowhere") == []

    async def test_renewing_moves_the_jobs_lock(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        before = (await bench.job(id)).locked_until
        await bench.store.renew(job.lease, HOUR)
        after = await bench.job(id)
        assert before is not None
        assert after.locked_until is not None
        assert after.locked_until > before
        assert after.last_heartbeat_at is not None


class TouchContract(ContractPart):
    async def test_a_touch_tells_start_and_progress(self, bench: Workbench) -> None:
        id = await bench.enqueue_one()
        begun = time.monotonic()
        job = await bench.claim_one()
        assert (await bench.job(id)).started_at is None
        assert await bench.store.touch(job.lease, [Touch(job.n, job.token, 2 * SECOND, 40, "frame 4")]) == []
        took = time.monotonic() - begun
        seen = await bench.job(id)
        assert (seen.progress, seen.progress_message) == (40, "frame 4")
        assert seen.started_at is not None
        assert seen.claimed_at is not None
        assert (seen.claimed_at - seen.started_at).total_seconds() == pytest.approx(2, abs=took + 0.05)

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
        assert await bench.store.touch(a.lease, touches) == [
            (b.n, b.token),
            (c.n, c.token - 1),
            (NOBODYS_LEASE, 1),
        ]
        assert (await bench.job(a.id)).progress_message == "a"
        assert (await bench.job(c.id)).progress_message is None

    async def test_under_a_lease_that_was_taken_back_all_are_lost(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await bench.store.close_lease(job.lease)
        await bench.reap()
        assert await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, 50, "x")]) == [(job.n, job.token)]
        assert (await bench.job(job.id)).progress == 0

    async def test_news_that_come_late_but_before_the_reaper_count(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one(lease=await bench.lease(MINUTE))
        await bench.pass_time(HOUR)
        assert await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, 50, "half")]) == []
        assert (await bench.job(job.id)).progress_message == "half"

    async def test_a_job_claimed_again_by_the_same_worker_tells_its_first_run(self, bench: Workbench) -> None:
        """Both runs are in one batch: the old one is reported lost, the new one is written, and nothing fails."""
        await bench.enqueue(2)
        lease = await bench.lease()
        old, other = await bench.claim(2, lease=lease)
        await steering.release(bench.store, [old.id])
        new = await bench.claim_one(lease=lease)
        assert new.n == old.n
        touches = [
            Touch(old.n, old.token, 0, 10, "old"),
            Touch(new.n, new.token, 0, 20, "new"),
            Touch(other.n, other.token, 0, 30, "other"),
        ]
        for order in (touches, touches[::-1]):
            assert await bench.store.touch(lease, order) == [(old.n, old.token)]
            assert (await bench.job(new.id)).progress_message == "new"
            assert (await bench.job(other.id)).progress_message == "other"

    async def test_two_news_of_one_run_in_one_batch_are_both_written(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        touches = [Touch(job.n, job.token, 0, 10, "ten"), Touch(job.n, job.token, 0, None, "more")]
        assert await bench.store.touch(job.lease, touches) == []
        seen = await bench.job(job.id)
        assert (seen.progress, seen.progress_message) == (10, "more")

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
    async def requests(self, bench: Workbench, lease: int) -> list[CancelRequest]:
        renewed = await bench.store.renew(lease, HOUR)
        assert renewed is not None
        return renewed.cancels

    async def test_a_worker_hears_only_of_cancels_of_its_jobs(self, bench: Workbench) -> None:
        await bench.enqueue(2)
        mine, theirs = await bench.claim_one(), await bench.claim_one()
        await steering.cancel(bench.store, [mine.id, theirs.id], "stop it")
        (request,) = await self.requests(bench, mine.lease)
        assert (request.n, request.token, request.reason) == (mine.n, mine.token, "stop it")

    async def test_no_cancel_no_request(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        assert await self.requests(bench, job.lease) == []

    async def test_the_first_reason_stands(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [job.id], "first")
        await steering.cancel(bench.store, [job.id], "second")
        assert [request.reason for request in await self.requests(bench, job.lease)] == ["first"]


class SplitLeaseContract(ContractPart):
    """Jobs that are claimed together and kept apart."""

    async def test_each_job_lives_and_ends_under_its_own_lease(self, bench: Workbench) -> None:
        lease = await bench.lease()
        ids = await bench.enqueue(3)
        jobs = await bench.claim(3, lease=lease)
        leases = await bench.store.split_lease(lease, jobs, MINUTE)
        assert len({lease, *leases}) == 4
        first, second, third = (job._replace(lease=own) for job, own in zip(jobs, leases, strict=True))
        assert not await bench.settle(jobs[0], Completed()), "it is no longer under the old lease"
        assert await bench.settle(first, Completed())
        assert await bench.store.renew(second.lease, HOUR)
        await bench.pass_time(2 * MINUTE)
        assert [moved.id for moved in await bench.reap()] == [third.id]
        assert await bench.statuses(ids) == [Status.COMPLETED, Status.PROCESSING, Status.PENDING]

    async def test_the_worker_keeps_its_name(self, bench: Workbench) -> None:
        lease = await bench.lease(worker="gopher")
        (id,) = await bench.enqueue(1)
        await bench.store.split_lease(lease, await bench.claim(1, lease=lease), MINUTE)
        await bench.store.close_lease(lease)
        assert (await bench.job(id)).locked_by == "gopher"

    async def test_a_lease_that_was_taken_back_is_not_split(self, bench: Workbench) -> None:
        lease = await bench.lease()
        await bench.enqueue(1)
        jobs = await bench.claim(1, lease=lease)
        await bench.store.close_lease(lease)
        await bench.reap()
        with pytest.raises(LeaseLost):
            await bench.store.split_lease(lease, jobs, MINUTE)
        assert await bench.store.split_lease(lease, [], MINUTE) == []


class LostClaimContract(ContractPart):
    """The answer to a claim got lost: its jobs run under the lease, but the worker never heard of them."""

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
        await steering.cancel(bench.store, [id], "too late")
        assert await bench.store.release_unknown(lease, []) == 1
        assert await bench.status(id) is Status.CANCELLED

    async def test_claims_of_a_topic_not_served_are_empty(self, bench: Workbench) -> None:
        await bench.enqueue(1, topic="other")
        assert await bench.claim(5, topics=[TOPIC]) == []
