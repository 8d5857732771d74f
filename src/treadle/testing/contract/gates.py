"""Concurrency by key and rate limits: exact, whoever comes at the same time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from treadle.errors import ConcurrencyRejected, LeaseLost
from treadle.lifecycle import Completed, Failed, Released, Snoozed, Status
from treadle.store.base import Claimed, Gate, Inserted, Listing, Store
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, TOPIC, Workbench, new_job, settlement

CLIENTS = 24


def queued(limit: int = 1, key: str = "g") -> Gate:
    return Gate(key, "queue_same_scope", limit)


def rejecting(limit: int = 1) -> Gate:
    return Gate("g", "reject_same_scope", limit)


def replacing(limit: int = 1) -> Gate:
    return Gate("g", "replace_same_scope", limit)


class QueuePolicyContract(ContractPart):
    """`queue_same_scope`: one more waits until there is room."""

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_no_more_than_the_limit_at_once(self, bench: Workbench, limit: int) -> None:
        ids = [await bench.enqueue_one(gate=queued(limit)) for _ in range(5)]
        jobs = await bench.claim(10)
        assert [job.id for job in jobs] == ids[:limit]
        assert await bench.claim(10) == []
        assert await bench.settle(jobs[0], Completed())
        assert [job.id for job in await bench.claim(10)] == [ids[limit]]

    async def test_in_one_batch_too(self, bench: Workbench) -> None:
        jobs = [new_job(gate=queued(2)) for _ in range(5)]
        await bench.store.insert(jobs)
        assert await bench.claimable() == [job.id for job in jobs[:2]]
        assert await bench.statuses([job.id for job in jobs]) == [Status.PENDING] * 5

    async def test_keys_do_not_know_each_other(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(gate=queued(key=key)) for key in "aabbc"]
        assert await bench.claimable() == [ids[0], ids[2], ids[4]]

    async def test_topics_may_share_a_key(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(gate=queued(), topic="a")
        await bench.enqueue_one(gate=queued(), topic="b")
        assert await bench.claimable(["a", "b"]) == [first]

    async def test_the_most_urgent_of_those_who_wait_goes_first(self, bench: Workbench) -> None:
        running = await bench.enqueue_one(gate=queued())
        normal, urgent, second = [await bench.enqueue_one(gate=queued(), priority=p) for p in (50, 90, 90)]
        for expected in (running, urgent, second, normal):
            job = await bench.claim_one()
            assert job.id == expected
            assert await bench.settle(job, Completed())

    @pytest.mark.parametrize(
        "outcome",
        [Completed(), Failed("Boom", "Boom"), Failed("Boom", "Boom", retry_in_ms=HOUR), Snoozed(HOUR)],
        ids=["completed", "failed", "retrying", "snoozed"],
    )
    async def test_whoever_leaves_makes_room(self, bench: Workbench, outcome: Any) -> None:
        first, second = [await bench.enqueue_one(gate=queued()) for _ in range(2)]
        job = await bench.claim_one()
        assert job.id == first
        assert await bench.settle(job, outcome)
        assert await bench.claimable() == [second]

    async def test_a_released_job_keeps_its_room(self, bench: Workbench) -> None:
        first, second = [await bench.enqueue_one(gate=queued()) for _ in range(2)]
        assert await bench.settle(await bench.claim_one(), Released())
        assert await bench.claimable() == [first]
        await bench.store.cancel([first], "")
        assert await bench.claimable() == [second]

    async def test_cancelling_is_still_running(self, bench: Workbench) -> None:
        first, second = [await bench.enqueue_one(gate=queued()) for _ in range(2)]
        job = await bench.claim_one()
        await bench.store.cancel([first], "")
        assert await bench.claimable() == []
        await bench.settle(job, Released())  # it stops
        assert await bench.status(first) is Status.CANCELLED
        assert await bench.claimable() == [second]

    async def test_a_delayed_job_takes_its_room_when_its_time_has_come(self, bench: Workbench) -> None:
        later = await bench.enqueue_one(gate=queued(), delay_ms=MINUTE)
        now = await bench.enqueue_one(gate=queued())
        assert await bench.claimable() == [now]
        await bench.pass_time(HOUR)
        assert (await bench.store.promote())[0] == 1
        assert await bench.claimable() == [now]
        assert await bench.status(later) is Status.PENDING
        await bench.store.cancel([now], "")
        assert await bench.claimable() == [later]

    async def test_many_that_wait_are_let_in_one_by_one(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(gate=queued(2)) for _ in range(9)]
        done = []
        while jobs := await bench.claim(10):
            assert len(jobs) <= 2
            for job in jobs:
                assert await bench.settle(job, Completed())
                done.append(job.id)
        assert done == ids

    async def test_keys_that_are_left_together_let_in_as_many_as_each_has_room_for(self, bench: Workbench) -> None:
        narrow, wide = await bench.enqueue(4, gate=queued(1, "a")), await bench.enqueue(6, gate=queued(3, "b"))
        jobs = await bench.claim(10)
        assert [job.id for job in jobs] == [narrow[0], *wide[:3]]
        assert await bench.store.settle([settlement(job, Completed()) for job in jobs]) == []
        assert await bench.claimable() == [narrow[1], *wide[3:]]

    async def test_a_higher_limit_lets_more_in(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(gate=queued(1)) for _ in range(4)]
        assert await bench.claimable() == ids[:1]
        last = await bench.enqueue_one(gate=queued(3))
        assert await bench.claimable() == ids[:3]
        assert await bench.status(last) is Status.PENDING

    async def test_what_keeps_it_waiting_is_told(self, bench: Workbench) -> None:
        first, _, third = [await bench.enqueue_one(gate=queued()) for _ in range(3)]
        assert await bench.store.obstacles(first) == []
        (reason,) = await bench.store.obstacles(third)
        assert first in reason
        assert "1 wait before it" in reason

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_exact_under_many_claimers_and_enqueuers(self, bench: Workbench, limit: int) -> None:
        stores = [bench.store, *await bench.others(3)]
        running: Counter[str] = Counter()
        done: list[str] = []
        keys = ["a", "b"]

        async def produce(i: int) -> None:
            store = stores[i % len(stores)]
            for key in keys:
                await store.insert([new_job(gate=queued(limit, key), payload=json.dumps({"key": key}))])

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
        assert running[key] <= limit, "more at once than the limit allows"
        await asyncio.sleep(0)
        running[key] -= 1
        assert await bench.settle(job, Completed(), store=store)

    async def test_what_no_longer_waits_is_tidied_away(self, bench: Workbench) -> None:
        job_id = await bench.enqueue_one(gate=queued())
        await bench.store.tidy()
        assert await bench.claimable() == [job_id]
        await bench.settle(await bench.claim_one(), Completed())
        await bench.store.tidy()
        ids = [await bench.enqueue_one(gate=queued(2)) for _ in range(3)]
        assert await bench.claimable() == ids[:2]

    async def test_a_delayed_job_keeps_its_gate_from_being_tidied_away(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(gate=queued(2), delay_ms=MINUTE)
        await bench.store.tidy()
        await bench.pass_time(HOUR)
        await bench.store.promote()
        assert await bench.claimable() == [id]


class RejectPolicyContract(ContractPart):
    """`reject_same_scope`: one more is refused while the limit is used up."""

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_one_too_many_is_refused(self, bench: Workbench, limit: int) -> None:
        ids = [await bench.enqueue_one(gate=rejecting(limit)) for _ in range(limit)]
        with pytest.raises(ConcurrencyRejected) as refusal:
            await bench.store.insert([new_job(gate=rejecting(limit))])
        assert refusal.value.data["jobId"] == ids[0]
        assert await bench.store.count(Listing()) == limit

    @pytest.mark.parametrize("state", ["pending", "delayed", "retrying", "processing", "cancelling"])
    async def test_while_the_first_lives(self, bench: Workbench, state: str) -> None:
        await bench.make(state, gate=rejecting())
        with pytest.raises(ConcurrencyRejected):
            await bench.store.insert([new_job(gate=rejecting())])

    @pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "expired"])
    async def test_not_after_it_has_ended(self, bench: Workbench, state: str) -> None:
        await bench.make(state, gate=rejecting())
        await bench.enqueue(1, gate=rejecting())

    async def test_a_refused_job_keeps_no_keys(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(gate=rejecting())
        job = new_job(gate=rejecting(), idempotency_key="k", dedupe_key="d")
        (answer,) = await bench.store.insert([job], atomic=False)
        assert isinstance(answer, ConcurrencyRejected)
        await bench.store.delete([first])
        await bench.enqueue(1, gate=rejecting(), idempotency_key="k", dedupe_key="d")

    async def test_in_one_batch_the_limit_counts_too(self, bench: Workbench) -> None:
        jobs = [new_job(gate=rejecting(2)) for _ in range(4)]
        answers = await bench.store.insert(jobs, atomic=False)
        assert [isinstance(answer, Inserted) for answer in answers] == [True, True, False, False]
        with pytest.raises(ConcurrencyRejected):
            await bench.store.insert([new_job(), new_job(gate=rejecting(2))])
        assert await bench.store.count(Listing()) == 2

    async def test_a_key_that_is_known_is_answered_before_the_limit(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(gate=rejecting(), idempotency_key="k")
        (answer,) = await bench.store.insert([new_job(gate=rejecting(), idempotency_key="k")])
        assert isinstance(answer, Inserted)
        assert answer.existing_id == first

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_exact_under_many_enqueuers(self, bench: Workbench, limit: int) -> None:
        stores = [bench.store, *await bench.others(3)]
        for _ in range(3):
            answers = await asyncio.gather(
                *(stores[i % 4].insert([new_job(gate=rejecting(limit))], atomic=False) for i in range(CLIENTS))
            )
            made = [answer for (answer,) in answers if isinstance(answer, Inserted)]
            assert len(made) == limit
            for job in await bench.claim(10):
                assert await bench.settle(job, Completed())


class ReplacePolicyContract(ContractPart):
    """`replace_same_scope`: one more takes the place of the oldest."""

    async def test_a_waiting_job_is_replaced(self, bench: Workbench) -> None:
        old = await bench.enqueue_one(gate=replacing())
        new = await bench.enqueue_one(gate=replacing())
        assert await bench.statuses([old, new]) == [Status.CANCELLED, Status.PENDING]
        assert new in ((await bench.job(old)).cancel_reason or "")
        assert await bench.claimable() == [new]

    async def test_a_running_job_is_asked_to_stop_and_its_heir_waits(self, bench: Workbench) -> None:
        old = await bench.enqueue_one(gate=replacing())
        job = await bench.claim_one()
        new = await bench.enqueue_one(gate=replacing())
        assert await bench.statuses([old, new]) == [Status.CANCELLING, Status.PENDING]
        assert await bench.claimable() == []
        assert await bench.settle(job, Released())
        assert await bench.statuses([old, new]) == [Status.CANCELLED, Status.PENDING]
        assert await bench.claimable() == [new]

    async def test_the_heir_of_an_heir(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(gate=replacing())
        job = await bench.claim_one()
        second, third = [await bench.enqueue_one(gate=replacing()) for _ in range(2)]
        assert await bench.statuses([first, second, third]) == ["cancelling", "cancelled", "pending"]
        await bench.settle(job, Completed())
        assert await bench.claimable() == [third]

    @pytest.mark.parametrize("state", ["delayed", "retrying"])
    async def test_a_job_that_waits_for_its_time_is_replaced(self, bench: Workbench, state: str) -> None:
        old = await bench.make(state, gate=replacing())
        new = await bench.enqueue_one(gate=replacing())
        assert await bench.statuses([old, new]) == [Status.CANCELLED, Status.PENDING]

    async def test_with_room_nobody_is_replaced(self, bench: Workbench) -> None:
        ids = [await bench.enqueue_one(gate=replacing(3)) for _ in range(3)]
        assert await bench.statuses(ids) == [Status.PENDING] * 3
        fourth = await bench.enqueue_one(gate=replacing(3))
        assert await bench.statuses([*ids, fourth]) == ["cancelled", "pending", "pending", "pending"]
        assert await bench.claimable() == [*ids[1:], fourth]

    @pytest.mark.parametrize("limit", [1, 3])
    async def test_exact_under_many_enqueuers(self, bench: Workbench, limit: int) -> None:
        stores = [bench.store, *await bench.others(3)]
        jobs = [new_job(gate=replacing(limit)) for _ in range(CLIENTS)]
        await asyncio.gather(*(stores[i % 4].insert([job]) for i, job in enumerate(jobs)))
        counts = Counter(await bench.statuses([job.id for job in jobs]))
        assert counts == {Status.PENDING: limit, Status.CANCELLED: CLIENTS - limit}
        assert len(await bench.claimable()) == limit

    async def test_exact_while_jobs_are_claimed_and_done(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(2)]
        jobs = [new_job(gate=replacing()) for _ in range(CLIENTS)]
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


class RateContract(ContractPart):
    """Never more than n starts in any window of `per`."""

    async def limit(self, bench: Workbench, n: int, per_ms: int, topic: str = TOPIC) -> None:
        definition = json.dumps({"topic": topic, "rate": {"n": n, "perSeconds": per_ms / 1000}})
        await bench.store.save_templates({topic: (definition, None)})

    async def test_no_more_than_n_in_a_window(self, bench: Workbench) -> None:
        await self.limit(bench, 3, HOUR)
        ids = await bench.enqueue(8)
        assert [job.id for job in await bench.claim(10)] == ids[:3]
        claim = await bench.store.claim(await bench.lease(), [TOPIC], [], 10, 10)
        assert claim.jobs == []
        assert claim.next_at_ms is not None
        assert 0 < claim.next_at_ms <= HOUR
        await bench.pass_time(HOUR + MINUTE)
        assert [job.id for job in await bench.claim(2)] == ids[3:5]
        assert [job.id for job in await bench.claim(10)] == ids[5:6]

    async def test_without_a_live_lease_nothing_is_claimed(self, bench: Workbench) -> None:
        await self.limit(bench, 3, HOUR)
        (id,) = await bench.enqueue(1)
        lease = await bench.lease()
        await bench.store.close_lease(lease)
        with pytest.raises(LeaseLost):
            await bench.claim(1, lease=lease)
        assert await bench.claimable() == [id]

    async def test_the_window_slides(self, bench: Workbench) -> None:
        await self.limit(bench, 2, HOUR)
        ids = await bench.enqueue(6)
        assert [job.id for job in await bench.claim(1)] == ids[:1]
        await bench.pass_time(40 * MINUTE)
        assert [job.id for job in await bench.claim(5)] == ids[1:2]
        await bench.pass_time(30 * MINUTE)
        assert [job.id for job in await bench.claim(5)] == ids[2:3]

    async def test_other_topics_are_free(self, bench: Workbench) -> None:
        await self.limit(bench, 1, HOUR)
        ids = await bench.enqueue(2)
        others = await bench.enqueue(3, topic="free")
        claimed = [job.id for job in await bench.claim(10, topics=[TOPIC, "free"])]
        assert sorted(claimed) == sorted([ids[0], *others])

    async def test_a_release_does_not_give_the_start_back(self, bench: Workbench) -> None:
        await self.limit(bench, 1, HOUR)
        await bench.enqueue(1)
        await bench.settle(await bench.claim_one(), Released())
        assert await bench.claim(1) == []

    async def test_nothing_is_prefetched(self, bench: Workbench) -> None:
        await self.limit(bench, 10, HOUR)
        ids = await bench.enqueue(5)
        assert [job.id for job in await bench.claim(5, free=2)] == ids[:2]
        assert await bench.claim(5, free=0) == []

    async def test_an_overdue_job_uses_up_nothing(self, bench: Workbench) -> None:
        await self.limit(bench, 1, HOUR)
        await bench.enqueue(1, expires_in_ms=MINUTE)
        await bench.pass_time(HOUR)
        id = await bench.enqueue_one()
        claim = await bench.store.claim(await bench.lease(), [TOPIC], [], 10, 10)
        assert claim.overdue
        await bench.store.expire_overdue()
        assert [job.id for job in [*claim.jobs, *await bench.claim(1)]] == [id]

    async def test_the_limit_can_be_changed_and_lifted(self, bench: Workbench) -> None:
        await self.limit(bench, 1, HOUR)
        ids = await bench.enqueue(5)
        await bench.claim(5)
        await self.limit(bench, 3, HOUR)
        assert [job.id for job in await bench.claim(5)] == ids[1:3]
        await bench.store.save_templates({TOPIC: (json.dumps({"topic": TOPIC}), None)})
        assert [job.id for job in await bench.claim(5)] == ids[3:]

    async def test_a_new_limit_is_kept_by_all_stores_soon(self, bench: Workbench) -> None:
        other = await bench.another()
        await bench.enqueue(6)
        await bench.claim(1, store=other)
        await self.limit(bench, 1, HOUR)
        assert len(await bench.claim(5)) <= 1

        async def claimed() -> int:
            return len(await bench.claim(5, store=other))

        counts = [await claimed() for _ in range(5)]
        assert sum(counts) <= 1

    async def test_what_keeps_a_job_waiting_is_told(self, bench: Workbench) -> None:
        await self.limit(bench, 1, HOUR)
        first, second = await bench.enqueue(2)
        assert await bench.store.obstacles(first) == []
        await bench.claim(1)
        (reason,) = await bench.store.obstacles(second)
        assert "1 per 1h" in reason

    async def test_old_starts_are_tidied_away(self, bench: Workbench) -> None:
        await self.limit(bench, 1, HOUR)
        ids = await bench.enqueue(3)
        await bench.claim(1)
        await bench.store.tidy()
        assert await bench.claim(1) == []
        await bench.pass_time(2 * HOUR)
        await bench.store.tidy()
        assert [job.id for job in await bench.claim(1)] == ids[1:2]

    @pytest.mark.parametrize(("n", "per_ms"), [(1, 20), (5, 50)])
    async def test_exact_under_many_claimers(self, bench: Workbench, n: int, per_ms: int) -> None:
        """By the database's clock: the times at which the jobs were claimed."""
        stores = [bench.store, *await bench.others(3)]
        await self.limit(bench, n, per_ms)
        ids = await bench.enqueue(n * 12)
        claimed: list[Claimed] = []

        async def work(i: int) -> None:
            store = stores[i % len(stores)]
            lease = await bench.lease(store=store)
            while len(claimed) < len(ids):
                claimed.extend(await bench.claim(n, lease=lease, store=store))

        await asyncio.gather(*(work(i) for i in range(CLIENTS)))
        starts = sorted([(await bench.job(id)).claimed_at for id in ids])  # type: ignore[type-var]
        for earlier, later in zip(starts, starts[n:], strict=False):
            assert earlier is not None
            assert later is not None
            assert (later - earlier).total_seconds() * 1000 >= per_ms

    async def test_the_wait_that_is_told_is_long_enough(self, bench: Workbench) -> None:
        await self.limit(bench, 1, 30)
        await bench.enqueue(3)
        lease = await bench.lease()
        for _ in range(3):
            claim = await bench.store.claim(lease, [TOPIC], [], 1, 1)
            if claim.next_at_ms:
                await asyncio.sleep((claim.next_at_ms + 1) / 1000)
                claim = await bench.store.claim(lease, [TOPIC], [], 1, 1)
            assert len(claim.jobs) == 1
