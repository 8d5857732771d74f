"""Concurrency limits by key: exact under concurrent callers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from treadle.model.errors import ConcurrencyRejected
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed, Released, Snoozed
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import Claimed, Inserted, Refusal, Wants
from treadle.store.views import LimitReached, Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, TOPIC, Workbench, new_job, settlement

CLIENTS = 24


def queued(limit: int = 1, key: str = "g") -> Limit:
    return Limit(key, "queue_same_scope", limit)


def rejecting(limit: int = 1) -> Limit:
    return Limit("g", "reject_same_scope", limit)


def replacing(limit: int = 1) -> Limit:
    return Limit("g", "replace_same_scope", limit)


class QueuePolicyContract(ContractPart):
    """`queue_same_scope`: a job over the limit waits for room."""

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_no_more_than_the_limit_at_once(self, bench: Workbench, limit: int) -> None:
        ids = [await bench.enqueue_one(limit=queued(limit)) for _ in range(5)]
        jobs = await bench.claim(10)
        assert [job.id for job in jobs] == ids[:limit]
        assert await bench.claim(10) == []
        assert await bench.settle(jobs[0], Completed())
        assert [job.id for job in await bench.claim(10)] == [ids[limit]]

    async def test_in_one_batch_too(self, bench: Workbench) -> None:
        jobs = [new_job(limit=queued(2)) for _ in range(5)]
        await bench.store.insert(jobs)
        assert await bench.claimable() == [job.id for job in jobs[:2]]
        assert await bench.statuses([job.id for job in jobs]) == [Status.PENDING] * 5

    async def test_keys_do_not_know_each_other(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(limit=queued(key=key)) for key in "aabbc"]
        assert await bench.claimable() == [ids[0], ids[2], ids[4]]

    async def test_topics_may_share_a_key(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(limit=queued(), topic="a")
        await bench.enqueue_one(limit=queued(), topic="b")
        assert await bench.claimable(["a", "b"]) == [first]

    async def test_the_most_urgent_waiting_job_goes_first(self, bench: Workbench) -> None:
        await bench.enqueue_one(limit=queued())
        job = await bench.claim_one()
        normal, urgent, second = [await bench.enqueue_one(limit=queued(), priority=p) for p in (50, 90, 90)]
        assert await bench.claim(10) == []
        for expected in (urgent, second, normal):
            assert await bench.settle(job, Completed())
            (job,) = await bench.claim(10)
            assert job.id == expected

    @pytest.mark.parametrize(
        "outcome",
        [Completed(), Failed("Boom", "Boom"), Failed("Boom", "Boom", retry_in_ms=HOUR), Snoozed(HOUR)],
        ids=["completed", "failed", "retrying", "snoozed"],
    )
    async def test_a_job_that_stops_running_makes_room(self, bench: Workbench, outcome: Any) -> None:
        first, second = [await bench.enqueue_one(limit=queued()) for _ in range(2)]
        job = await bench.claim_one()
        assert job.id == first
        assert await bench.settle(job, outcome)
        assert await bench.claimable() == [second]

    async def test_a_released_job_keeps_its_room(self, bench: Workbench) -> None:
        first, second = [await bench.enqueue_one(limit=queued()) for _ in range(2)]
        assert await bench.settle(await bench.claim_one(), Released())
        assert await bench.claimable() == [first]
        await steering.cancel(bench.store, [first], "")
        assert await bench.claimable() == [second]

    async def test_a_held_job_is_let_in_when_the_one_before_it_leaves_without_a_run(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(limit=queued()) for _ in range(4)]
        job = (await bench.claim(10))[0]
        assert await bench.settle(job, Completed())  # the second one is queued now
        await steering.cancel(bench.store, [ids[1]], "")
        assert await bench.claimable() == [ids[2]]
        await steering.delete(bench.store, [ids[2]])
        assert await bench.claimable() == [ids[3]]

    async def test_a_held_job_is_let_in_when_the_one_before_it_is_put_off(self, bench: Workbench) -> None:
        _, second, third = [await bench.enqueue_one(limit=queued()) for _ in range(3)]
        assert await bench.settle((await bench.claim(10))[0], Completed())
        later = await bench.store.now() + HOUR
        await steering.reschedule(bench.store, [second], run_at=later)
        assert await bench.claimable() == [third]

    async def test_jobs_that_only_wait_do_not_count(self, bench: Workbench) -> None:
        await bench.enqueue(5, limit=queued())
        urgent = await bench.enqueue_one(limit=queued(), priority=100)
        assert [job.id for job in await bench.claim(10)] == [urgent]

    async def test_an_urgent_job_overtakes_held_ones(self, bench: Workbench) -> None:
        await bench.enqueue(20, limit=queued())
        job = (await bench.claim(30))[0]
        urgent = await bench.enqueue_one(limit=queued(), priority=100)
        assert await bench.settle(job, Completed())
        assert [job.id for job in await bench.claim(30)] == [urgent]

    async def test_a_job_that_no_worker_can_run_blocks_no_other_job(self, bench: Workbench) -> None:
        await bench.enqueue(2, limit=queued(), capability="gpu", priority=100)
        ids = await bench.enqueue(3, limit=queued())
        for id in ids:
            (job,) = await bench.claim(10)
            assert job.id == id
            assert await bench.settle(job, Completed())

    async def test_nor_does_one_that_is_held(self, bench: Workbench) -> None:
        front = await bench.enqueue_one(limit=queued())
        await bench.enqueue(2, limit=queued(), capability="gpu", priority=100)
        ids = await bench.enqueue(3, limit=queued())
        job = await bench.claim_one()
        assert job.id == front
        assert await bench.claim(10, capabilities=["gpu"]) == []  # all others are held by now
        for id in ids:
            assert await bench.settle(job, Completed())
            (job,) = await bench.claim(10)
            assert job.id == id

    async def test_a_job_keeps_the_limit_it_was_enqueued_with(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3, limit=queued(3))
        await bench.enqueue(1, limit=queued(1))
        await bench.store.tidy()
        assert [job.id for job in await bench.claim(10)] == ids

    async def test_a_count_that_was_tidied_away_changes_no_limit(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3, limit=queued(3))
        for job in await bench.claim(10):
            assert await bench.settle(job, Failed("Boom", "Boom"))
        await bench.store.tidy()
        await steering.requeue(bench.store, ids)
        assert sorted(await bench.claimable()) == sorted(ids)

    async def test_a_claim_of_one_looks_behind_many_that_have_to_be_held(self, bench: Workbench) -> None:
        blocked = await bench.enqueue(30, limit=queued())
        assert (await bench.claim_one()).id == blocked[0]
        plain = await bench.enqueue_one()
        assert (await bench.claim_one()).id == plain

    async def test_many_keys_at_the_head_do_not_hide_the_jobs_behind_them(self, bench: Workbench) -> None:
        blocked = await bench.enqueue(30, limit=queued())
        plain = await bench.enqueue(3)
        lease = await bench.lease()
        claimed: list[str] = []
        for _ in range(10):
            claim = await bench.store.claim(lease, Wants([TOPIC], [], 5, 5))
            claimed += [job.id for job in claim.jobs]
            if claim.again_in_ms != 0:
                break
        assert claimed == [blocked[0], *plain]

    async def test_cancelling_is_still_running(self, bench: Workbench) -> None:
        first, second = [await bench.enqueue_one(limit=queued()) for _ in range(2)]
        job = await bench.claim_one()
        await steering.cancel(bench.store, [first], "")
        assert await bench.claimable() == []
        await bench.settle(job, Released())  # it stops
        assert await bench.status(first) is Status.CANCELLED
        assert await bench.claimable() == [second]

    async def test_a_delayed_job_takes_its_room_when_its_time_has_come(self, bench: Workbench) -> None:
        later = await bench.enqueue_one(limit=queued(), delay_ms=MINUTE)
        now = await bench.enqueue_one(limit=queued())
        assert await bench.claimable() == [now]
        await bench.pass_time(HOUR)
        assert (await bench.store.advance()).promoted == 1
        assert await bench.claimable() == [later]  # it has been due longer
        assert await bench.status(now) is Status.PENDING
        await steering.cancel(bench.store, [later], "")
        assert await bench.claimable() == [now]

    async def test_many_that_wait_are_let_in_one_by_one(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(limit=queued(2)) for _ in range(9)]
        done = []
        while jobs := await bench.claim(10):
            assert len(jobs) <= 2
            for job in jobs:
                assert await bench.settle(job, Completed())
                done.append(job.id)
        assert done == ids

    async def test_keys_that_are_left_together_let_in_as_many_as_each_has_room_for(self, bench: Workbench) -> None:
        narrow, wide = await bench.enqueue(4, limit=queued(1, "a")), await bench.enqueue(6, limit=queued(3, "b"))
        jobs = await bench.claim(10)
        assert [job.id for job in jobs] == [narrow[0], *wide[:3]]
        assert await bench.store.settle([settlement(job, Completed()) for job in jobs]) == []
        assert await bench.claimable() == [narrow[1], *wide[3:]]

    async def test_a_higher_limit_applies_to_the_jobs_that_have_it(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(limit=queued(1)) for _ in range(4)]
        assert await bench.claimable() == ids[:1]
        last = await bench.enqueue_one(limit=queued(3))
        assert await bench.claimable() == [ids[0], last]

    async def test_what_keeps_it_waiting_is_told(self, bench: Workbench) -> None:
        first, _, third = [await bench.enqueue_one(limit=queued()) for _ in range(3)]
        assert await bench.store.obstacles(third) == []
        await bench.claim_one()
        assert await bench.store.obstacles(first) == []
        assert await bench.store.obstacles(third) == [LimitReached(1, [first], ahead=1)]

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_exact_under_many_claimers_and_enqueuers(self, bench: Workbench, limit: int) -> None:
        stores = [bench.store, *await bench.others(3)]
        running: Counter[str] = Counter()
        done: list[str] = []
        keys = ["a", "b"]

        async def produce(i: int) -> None:
            store = stores[i % len(stores)]
            for key in keys:
                await store.insert([new_job(limit=queued(limit, key), payload=json.dumps({"key": key}))])

        async def work(i: int) -> None:
            store = stores[i % len(stores)]
            lease = await bench.lease(store=store)
            while len(done) < CLIENTS * len(keys):
                for job in await bench.claim(2, lease=lease, store=store):
                    await self._run(bench, store, job, running, limit)
                    done.append(job.id)
                await asyncio.sleep(0)

        await asyncio.gather(*(produce(i) for i in range(CLIENTS)), *(work(i) for i in range(8)))
        assert len(set(done)) == CLIENTS * len(keys)
        assert (await bench.store.stats()).counts["completed"] == CLIENTS * len(keys)

    async def _run(self, bench: Workbench, store: Store, job: Claimed, running: Counter[str], limit: int) -> None:
        key = json.loads(job.payload)["key"]
        running[key] += 1
        assert running[key] <= limit, "more running than the limit allows"
        await asyncio.sleep(0)
        running[key] -= 1
        assert await bench.settle(job, Completed(), store=store)

    async def test_what_no_longer_waits_is_tidied_away(self, bench: Workbench) -> None:
        job_id = await bench.enqueue_one(limit=queued())
        await bench.store.tidy()
        assert await bench.claimable() == [job_id]
        await bench.settle(await bench.claim_one(), Completed())
        await bench.store.tidy()
        ids = [await bench.enqueue_one(limit=queued(2)) for _ in range(3)]
        assert await bench.claimable() == ids[:2]

    async def test_a_delayed_job_keeps_its_gate_from_being_tidied_away(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(limit=queued(2), delay_ms=MINUTE)
        await bench.store.tidy()
        await bench.pass_time(HOUR)
        await bench.store.advance()
        assert await bench.claimable() == [id]


class RejectPolicyContract(ContractPart):
    """`reject_same_scope`: a job over the limit is refused."""

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_one_too_many_is_refused(self, bench: Workbench, limit: int) -> None:
        ids = [await bench.enqueue_one(limit=rejecting(limit)) for _ in range(limit)]
        with pytest.raises(ConcurrencyRejected) as refusal:
            await bench.store.insert([new_job(limit=rejecting(limit))])
        assert refusal.value.data["jobId"] == ids[0]
        assert await bench.store.count(Listing()) == limit

    @pytest.mark.parametrize("state", ["pending", "delayed", "retrying", "processing", "cancelling"])
    async def test_while_the_first_lives(self, bench: Workbench, state: str) -> None:
        await bench.make(state, limit=rejecting())
        with pytest.raises(ConcurrencyRejected):
            await bench.store.insert([new_job(limit=rejecting())])

    @pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
    async def test_not_after_it_has_ended(self, bench: Workbench, state: str) -> None:
        await bench.make(state, limit=rejecting())
        await bench.enqueue(1, limit=rejecting())

    async def test_a_refused_job_keeps_no_keys(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(limit=rejecting())
        job = new_job(limit=rejecting(), idempotency_key="k", dedupe_key="d")
        (answer,) = await bench.store.insert([job], atomic=False)
        assert isinstance(answer, ConcurrencyRejected)
        await steering.delete(bench.store, [first])
        await bench.enqueue(1, limit=rejecting(), idempotency_key="k", dedupe_key="d")

    async def test_in_one_batch_the_limit_counts_too(self, bench: Workbench) -> None:
        jobs = [new_job(limit=rejecting(2)) for _ in range(4)]
        answers = await bench.store.insert(jobs, atomic=False)
        assert [isinstance(answer, Inserted) for answer in answers] == [True, True, False, False]
        with pytest.raises(ConcurrencyRejected):
            await bench.store.insert([new_job(), new_job(limit=rejecting(2))])
        assert await bench.store.count(Listing()) == 2

    async def test_a_key_that_is_known_is_answered_before_the_limit(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(limit=rejecting(), idempotency_key="k")
        answer = await bench.insert(new_job(limit=rejecting(), idempotency_key="k"))
        assert answer.existing_id == first

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_exact_under_many_enqueuers(self, bench: Workbench, limit: int) -> None:
        stores = [bench.store, *await bench.others(3)]
        for _ in range(3):
            answers = await asyncio.gather(
                *(stores[i % 4].insert([new_job(limit=rejecting(limit))], atomic=False) for i in range(CLIENTS))
            )
            made = [answer for (answer,) in answers if isinstance(answer, Inserted)]
            assert len(made) == limit
            for job in await bench.claim(10):
                assert await bench.settle(job, Completed())

    async def test_a_job_that_comes_back_is_refused_too(self, bench: Workbench) -> None:
        old = await bench.make("failed", limit=rejecting())
        live = await bench.enqueue_one(limit=rejecting())
        (answer,) = await steering.requeue(bench.store, [old])
        assert isinstance(answer, Refusal)
        assert isinstance(answer.error, ConcurrencyRejected)
        assert answer.error.data["jobId"] == live
        assert await bench.status(old) is Status.FAILED
        await steering.cancel(bench.store, [live], "")
        assert isinstance((await steering.requeue(bench.store, [old]))[0], Job)


class ReplacePolicyContract(ContractPart):
    """`replace_same_scope`: a job over the limit replaces the oldest one."""

    async def test_a_waiting_job_is_replaced(self, bench: Workbench) -> None:
        old = await bench.enqueue_one(limit=replacing())
        new = await bench.enqueue_one(limit=replacing())
        assert await bench.statuses([old, new]) == [Status.CANCELLED, Status.PENDING]
        assert new in ((await bench.job(old)).cancel_reason or "")
        assert await bench.claimable() == [new]

    async def test_a_running_job_is_asked_to_stop_and_its_heir_waits(self, bench: Workbench) -> None:
        old = await bench.enqueue_one(limit=replacing())
        job = await bench.claim_one()
        new = await bench.enqueue_one(limit=replacing())
        assert await bench.statuses([old, new]) == [Status.CANCELLING, Status.PENDING]
        assert await bench.claimable() == []
        assert await bench.settle(job, Released())
        assert await bench.statuses([old, new]) == [Status.CANCELLED, Status.PENDING]
        assert await bench.claimable() == [new]

    async def test_a_running_job_that_cannot_be_cancelled_is_not_replaced(self, bench: Workbench) -> None:
        await bench.enqueue_one(limit=replacing(), cancelable=False)
        old = await bench.claim_one()
        with pytest.raises(ConcurrencyRejected) as refused:
            await bench.store.insert([new_job(limit=replacing())])
        assert refused.value.data["jobId"] == old.id
        assert await bench.status(old.id) is Status.PROCESSING
        assert await bench.settle(old, Completed())
        waiting = await bench.enqueue_one(limit=replacing(), cancelable=False)
        new = await bench.enqueue_one(limit=replacing(), cancelable=False)
        assert await bench.statuses([waiting, new]) == [Status.CANCELLED, Status.PENDING]

    async def test_a_job_that_comes_back_replaces_too(self, bench: Workbench) -> None:
        old = await bench.make("failed", limit=replacing())
        live = await bench.enqueue_one(limit=replacing())
        assert isinstance((await steering.requeue(bench.store, [old]))[0], Job)
        assert await bench.statuses([old, live]) == [Status.PENDING, Status.CANCELLED]

    async def test_of_several_that_come_back_together_the_last_stays(self, bench: Workbench) -> None:
        ids = [await bench.make("failed", limit=replacing()) for _ in range(3)]
        await steering.requeue(bench.store, ids)
        assert await bench.statuses(ids) == [Status.CANCELLED, Status.CANCELLED, Status.PENDING]

    async def test_the_heir_of_an_heir(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(limit=replacing())
        job = await bench.claim_one()
        second, third = [await bench.enqueue_one(limit=replacing()) for _ in range(2)]
        assert await bench.statuses([first, second, third]) == ["cancelling", "cancelled", "pending"]
        await bench.settle(job, Completed())
        assert await bench.claimable() == [third]

    @pytest.mark.parametrize("state", ["delayed", "retrying"])
    async def test_a_job_that_waits_for_its_time_is_replaced(self, bench: Workbench, state: str) -> None:
        old = await bench.make(state, limit=replacing())
        new = await bench.enqueue_one(limit=replacing())
        assert await bench.statuses([old, new]) == [Status.CANCELLED, Status.PENDING]

    async def test_of_a_batch_the_last_one_stays_and_each_names_its_successor(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(limit=replacing())
        jobs = [new_job(limit=replacing(), delay_ms=HOUR * (number % 2)) for number in range(20)]
        assert all(isinstance(answer, Inserted) for answer in await bench.store.insert(jobs))
        ids = [first, *(job.id for job in jobs)]
        assert await bench.statuses(ids) == [Status.CANCELLED] * 20 + [Status.PENDING]
        for old, new in pairwise(ids):
            assert (await bench.job(old)).cancel_reason == f"replaced by job {new}"
        assert await bench.claimable() == []

    async def test_running_jobs_are_each_replaced_by_their_own_successor(self, bench: Workbench) -> None:
        limits = [Limit(key, "replace_same_scope", 1) for key in ("g", "h")]
        old = [await bench.enqueue_one(limit=limit) for limit in limits]
        assert len(await bench.claim(2)) == 2
        jobs = [new_job(limit=limit) for limit in limits]
        await bench.store.insert(jobs)
        assert [(await bench.job(id)).cancel_reason for id in old] == [f"replaced by job {job.id}" for job in jobs]

    async def test_with_room_no_job_is_replaced(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(limit=replacing(3)) for _ in range(3)]
        assert await bench.statuses(ids) == [Status.PENDING] * 3
        fourth = await bench.enqueue_one(limit=replacing(3))
        assert await bench.statuses([*ids, fourth]) == ["cancelled", "pending", "pending", "pending"]
        assert await bench.claimable() == [*ids[1:], fourth]

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_exact_under_many_enqueuers(self, bench: Workbench, limit: int) -> None:
        stores = [bench.store, *await bench.others(3)]
        jobs = [new_job(limit=replacing(limit)) for _ in range(CLIENTS)]
        await asyncio.gather(*(stores[i % 4].insert([job]) for i, job in enumerate(jobs)))
        counts = Counter(await bench.statuses([job.id for job in jobs]))
        assert counts == {Status.PENDING: limit, Status.CANCELLED: CLIENTS - limit}
        assert len(await bench.claimable()) == limit

    async def test_exact_while_jobs_are_claimed_and_done(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(2)]
        jobs = [new_job(limit=replacing()) for _ in range(CLIENTS)]
        producing = True

        async def work(store: Store) -> None:
            lease = await bench.lease(store=store)
            while producing:
                for job in await bench.claim(1, lease=lease, store=store):
                    assert await bench.settle(job, Completed(), store=store)
                await asyncio.sleep(0)

        workers = [asyncio.create_task(work(store)) for store in stores]
        await asyncio.gather(*(stores[i % 3].insert([job]) for i, job in enumerate(jobs)))
        producing = False
        await asyncio.gather(*workers)
        counts = Counter(await bench.statuses([job.id for job in jobs]))
        assert counts[Status.PENDING] <= 1
        assert counts[Status.PENDING] + counts[Status.CANCELLED] + counts[Status.COMPLETED] == CLIENTS
