"""Claims: which jobs come first and which have to wait."""

from __future__ import annotations

import asyncio
import json
import random
import string
from collections.abc import Sequence
from typing import Any

import pytest

from treadle.model.errors import LeaseLost
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed, Released
from treadle.queue import steering
from treadle.store.values import MAX_CLAIM_BYTES, NewJob, Wants
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    ENDED,
    HOUR,
    MINUTE,
    SECOND,
    TOPIC,
    Workbench,
    eventually,
    new_job,
    settlement,
)


class ClaimContract(ContractPart):
    async def test_a_claim_says_all_that_a_worker_needs(self, bench: Workbench) -> None:
        lease = await bench.lease()
        id = await bench.enqueue_one(
            payload='{"a":1}', max_attempts=4, scope="user", scope_id="u1", created_by="ann", expires_in_ms=HOUR
        )
        (job,) = await bench.claim(lease=lease)
        assert (job.id, job.topic, job.payload, job.lease) == (id, TOPIC, '{"a":1}', lease)
        assert (job.attempt, job.max_attempts) == (1, 4)
        assert (job.created_by, job.scope, job.scope_id) == ("ann", "user", "u1")
        assert job.status is Status.PROCESSING

    async def test_a_claim_says_since_when_its_jobs_are_due(self, bench: Workbench) -> None:
        await bench.enqueue_one(run_at=1_000)  # long ago: it has been waiting since it was created
        await bench.enqueue_one(delay_ms=MINUTE)
        await bench.pass_time(HOUR)
        assert await bench.promoted()
        await bench.enqueue_one()
        claim = await bench.store.claim(await bench.lease(), Wants([TOPIC], [], 3, 3))
        assert claim.at is not None
        waited = sorted((claim.at - job.due) // SECOND for job in claim.jobs)
        assert waited == [pytest.approx(one, abs=20) for one in (0, 3540, 3600)]

    @pytest.mark.parametrize(
        "way", [{}, {"expires_in_ms": HOUR}, {"idempotency_key": "k"}, {"max_attempts": 1}], ids=str
    )
    async def test_the_trace_of_an_enqueue_comes_with_its_job(self, bench: Workbench, way: dict[str, Any]) -> None:
        await bench.enqueue_one(trace="00-aa-bb-01", **way)
        assert (await bench.claim_one()).trace == "00-aa-bb-01"

    async def test_jobs_alike_have_traces_of_their_own(self, bench: Workbench) -> None:
        jobs = [new_job(trace=trace) for trace in ("00-aa-bb-01", None, "00-cc-dd-01")]
        await bench.store.insert(jobs)
        traces = {job.id: job.trace for job in await bench.claim(3)}
        assert traces == {job.id: job.trace for job in jobs}

    async def test_a_claimed_job_is_processing_and_locked(self, bench: Workbench) -> None:
        id = await bench.make("processing")
        seen = await bench.job(id)
        assert (seen.status, seen.attempt, seen.locked_by) == (Status.PROCESSING, 1, "w1")
        assert seen.claimed_at is not None
        assert seen.locked_until is not None
        assert seen.last_heartbeat_at is not None
        assert seen.started_at is None

    async def test_an_empty_queue(self, bench: Workbench) -> None:
        claim = await bench.store.claim(await bench.lease(), Wants([TOPIC], [], 10, 10))
        assert (claim.jobs, claim.again_in_ms) == ([], None)

    async def test_a_claimed_job_is_not_claimed_again(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        first = await bench.claim(2)
        second = await bench.claim(2)
        assert len(first) == 2
        assert len(second) == 1
        assert await bench.claim(2) == []

    @pytest.mark.parametrize("limit", [0, 1, 2, 5, 6, 100])
    async def test_no_more_than_the_limit(self, bench: Workbench, limit: int) -> None:
        ids = await bench.enqueue(5)
        assert [job.id for job in await bench.claim(limit)] == ids[:limit]
        assert await bench.claimable() == ids[limit:]

    async def test_a_claim_without_topics_brings_nothing(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        assert await bench.claim(5, topics=[]) == []

    @pytest.mark.parametrize("state", ["delayed", "retrying", "held", "processing", "cancelling", *ENDED])
    async def test_only_what_is_ready_is_claimed(self, bench: Workbench, state: str) -> None:
        await bench.make(state)
        assert await bench.claim(5) == []

    async def test_without_a_live_lease_nothing_is_claimed(self, bench: Workbench) -> None:
        ids = await bench.enqueue(2)
        lease = await bench.lease(MINUTE)
        await bench.pass_time(HOUR)
        for _ in range(2):
            with pytest.raises(LeaseLost):
                await bench.claim(5, lease=lease)
        assert await bench.claimable() == ids

    async def test_a_lost_lease_is_told_even_when_there_is_nothing_to_claim(self, bench: Workbench) -> None:
        lease = await bench.lease()
        await bench.store.close_lease(lease)
        with pytest.raises(LeaseLost):
            await bench.claim(5, lease=lease)

    async def test_two_stores_share_one_queue(self, bench: Workbench) -> None:
        other = await bench.another()
        (here,) = await bench.enqueue(1)
        (there,) = await bench.enqueue(1, store=other)
        assert [job.id for job in await bench.claim(5, store=other)] == [here, there]
        assert await bench.claim(5) == []


class ClaimOrderContract(ContractPart):
    async def test_highest_priority_first(self, bench: Workbench) -> None:
        ids = {p: await bench.enqueue_one(priority=p) for p in (50, 0, 100, -7, 75, 51)}
        assert [job.id for job in await bench.claim(10)] == [ids[p] for p in (100, 75, 51, 50, 0, -7)]

    async def test_priority_counts_across_topics(self, bench: Workbench) -> None:
        low = await bench.enqueue_one(topic="a", priority=10)
        high = await bench.enqueue_one(topic="b", priority=20)
        assert [job.id for job in await bench.claim(10, topics=["a", "b"])] == [high, low]

    async def test_then_the_oldest_by_its_time(self, bench: Workbench) -> None:
        now = await bench.store.now()
        minutes = [3, 1, 2, 5, 4]
        ids = {m: await bench.enqueue_one(run_at=now - m * MINUTE) for m in minutes}
        assert [job.id for job in await bench.claim(10)] == [ids[m] for m in sorted(minutes, reverse=True)]

    async def test_then_the_first_to_come(self, bench: Workbench) -> None:
        at = await bench.store.now() - MINUTE
        ids = [await bench.enqueue_one(run_at=at) for _ in range(5)]
        assert [job.id for job in await bench.claim(10)] == ids

    async def test_one_at_a_time_the_oldest_of_all_topics_comes_first(self, bench: Workbench) -> None:
        now = await bench.store.now()
        times = random.Random(7).sample(range(60), 30)
        ids = {m: await bench.enqueue_one(topic=f"t{m % 3}", run_at=now - m * MINUTE) for m in times}
        claimed = [await bench.claim_one(topics=["t0", "t1", "t2"]) for _ in times]
        assert [job.id for job in claimed] == [ids[m] for m in sorted(times, reverse=True)]

    async def test_of_equal_topics_the_one_with_the_oldest_job_comes_first(self, bench: Workbench) -> None:
        now = await bench.store.now()
        young = await bench.enqueue(2, topic="a", run_at=now - 2 * MINUTE)
        old = await bench.enqueue(2, topic="b", run_at=now - 3 * MINUTE)
        assert [job.id for job in await bench.claim(3, topics=["a", "b"])] == [*old, young[0]]

    async def test_only_the_topics_asked_for(self, bench: Workbench) -> None:
        mine = await bench.enqueue(2, topic="mine")
        await bench.enqueue(2, topic="other", priority=100)
        await bench.enqueue(2, topic="mine.too")
        assert [job.id for job in await bench.claim(10, topics=["mine", "nobodys"])] == mine

    async def test_only_the_capabilities_that_a_worker_has(self, bench: Workbench) -> None:
        anybodys = await bench.enqueue_one()
        media = await bench.enqueue_one(capability="media", priority=60)
        gpu = await bench.enqueue_one(capability="gpu", priority=70)
        assert [job.id for job in await bench.claim(10, capabilities=["print"])] == [anybodys]
        assert [job.id for job in await bench.claim(10, capabilities=["print", "media"])] == [media]
        assert [job.id for job in await bench.claim(10, capabilities=["gpu", "media"])] == [gpu]

    async def test_a_released_job_keeps_its_place(self, bench: Workbench) -> None:
        ids = await bench.enqueue(4)
        first, second = await bench.claim(2)
        assert await bench.settle(second, Released("shutdown"))
        assert await bench.settle(first, Released("shutdown"))
        assert [job.id for job in await bench.claim(4)] == ids

    async def test_a_released_urgent_job_still_comes_first(self, bench: Workbench) -> None:
        urgent = await bench.enqueue_one(priority=100)
        await bench.enqueue(3)
        job = await bench.claim_one()
        assert job.id == urgent
        assert await bench.settle(job, Released())
        assert (await bench.claim_one()).id == urgent

    async def test_a_job_released_by_hand_still_comes_first(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3)
        job = await bench.claim_one()
        await steering.release(bench.store, [job.id])
        assert (await bench.claim_one()).id == ids[0]

    async def test_a_late_job_with_an_older_time_comes_first(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        await bench.claim_one()
        older = await bench.enqueue_one(run_at=await bench.store.now() - HOUR)
        assert (await bench.claim_one()).id == older

    async def test_a_late_urgent_job_comes_first(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        await bench.claim_one()
        urgent = await bench.enqueue_one(priority=100)
        assert (await bench.claim_one()).id == urgent

    async def test_a_retried_job_queues_by_its_new_time(self, bench: Workbench) -> None:
        first, *others = await bench.enqueue(3)
        job = await bench.claim_one()
        assert await bench.settle(job, Failed("Boom", "Boom", retry_in_ms=1))
        await eventually(bench.promoted)
        late = await bench.enqueue_one()
        assert [job.id for job in await bench.claim(10)] == [*others, first, late]

    async def test_a_job_with_a_new_priority_takes_its_new_place(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3)
        await steering.reschedule(bench.store, [ids[2]], priority=90)
        assert [job.id for job in await bench.claim(10)] == [ids[2], ids[0], ids[1]]

    async def test_jobs_dated_in_the_future_do_not_stand_in_the_way(self, bench: Workbench) -> None:
        await bench.enqueue(20, delay_ms=HOUR, priority=100)
        ids = await bench.enqueue(2)
        assert [job.id for job in await bench.claim(10)] == ids

    async def test_any_mix_comes_in_its_order(self, bench: Workbench) -> None:
        """Jobs come by priority, then by due time and arrival, across all topics."""
        dice = random.Random(11)
        now = await bench.store.now()
        jobs = [
            new_job(topic=dice.choice("abc"), priority=dice.choice([10, 20, 30]), run_at=now - seconds * SECOND)
            for seconds in dice.sample(range(1000), 120)
        ]
        await bench.store.insert(jobs)
        left = jobs
        while left:
            limit = dice.choice([1, 7, 25, 60])
            expected = _in_order(left)[:limit]
            assert [job.id for job in await bench.claim(limit, topics=["a", "b", "c"])] == expected
            left = [job for job in left if job.id not in expected]

    async def test_many_topics_are_merged_by_time_however_unequal_they_are(self, bench: Workbench) -> None:
        """A claim may return fewer jobs than asked, but never out of order, and reports that more are left."""
        dice = random.Random(5)
        now = await bench.store.now()
        topics = [f"t{n}" for n in range(30)]
        names = [*topics, *["t7"] * 120]
        jobs = [new_job(topic=topic, run_at=now - dice.randrange(1, 10**6)) for topic in names]
        await bench.store.insert(jobs)
        lease = await bench.lease()
        order: list[str] = []
        claim = await bench.store.claim(lease, Wants(topics, [], 50, 50))
        while claim.jobs:
            assert len(claim.jobs) == 50 or claim.again_in_ms == 0 or len(order) + len(claim.jobs) == len(jobs)
            order += [job.id for job in claim.jobs]
            claim = await bench.store.claim(lease, Wants(topics, [], 50, 50))
        assert order == _in_order(jobs)

    @pytest.mark.parametrize("alike", [False, True], ids=["random", "compressible"])
    async def test_a_claim_brings_no_more_payload_than_it_may(self, bench: Workbench, alike: bool) -> None:
        payload = json.dumps({"x": "x" * 100_000}) if alike else _random_payload(100_000)
        ids = await bench.enqueue(12, payload=payload)
        lease = await bench.lease()
        order: list[str] = []
        while (claim := await bench.store.claim(lease, Wants([TOPIC], [], 50, 50, max_bytes=350_000))).jobs:
            assert len(claim.jobs) <= 3
            order += [job.id for job in claim.jobs]
            assert claim.again_in_ms == (0 if len(order) < 12 else None)
        assert order == ids

    async def test_a_worker_with_many_slots_gets_large_payloads_in_portions(self, bench: Workbench) -> None:
        ids = await bench.enqueue(40, payload=_random_payload(1_000_000))
        lease = await bench.lease()
        order: list[str] = []
        while (claim := await bench.store.claim(lease, Wants([TOPIC], [], 700, 700))).jobs:
            assert sum(len(job.payload) for job in claim.jobs) <= MAX_CLAIM_BYTES
            order += [job.id for job in claim.jobs]
        assert order == ids

    @pytest.mark.parametrize("options", [{}, {"limit": Limit("g", "queue_same_scope", 9)}], ids=["plain", "limited"])
    async def test_one_job_comes_however_large_it_is(self, bench: Workbench, options: dict[str, Any]) -> None:
        ids = await bench.enqueue(2, payload=_random_payload(100_000), **options)
        lease = await bench.lease()
        for id in ids:
            (job,) = (await bench.store.claim(lease, Wants([TOPIC], [], 50, 50, max_bytes=10))).jobs
            assert job.id == id


def _random_payload(size: int) -> str:
    """Random, so that no database can compress it."""
    return json.dumps({"x": "".join(random.Random(1).choices(string.ascii_letters, k=size))})


def _in_order(jobs: Sequence[NewJob]) -> list[str]:
    return [job.id for job in sorted(jobs, key=lambda job: (-job.priority, _due(job)))]


def _due(job: NewJob) -> int:
    return job.run_at or 0


class ManyClaimersContract(ContractPart):
    async def test_a_hundred_claimers_share_the_jobs_without_a_double(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(4)]
        ids = await bench.enqueue(300)
        claims = await asyncio.gather(*(bench.claim(3, store=stores[i % 5]) for i in range(100)))
        claimed = [job.id for jobs in claims for job in jobs]
        assert len(set(claimed)) == len(claimed), "a job was claimed twice"
        left = [job.id for job in await bench.claim(1000)]
        assert sorted(claimed + left) == sorted(ids)

    async def test_a_queue_is_drained_once_by_many(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        ids = await bench.enqueue(400)
        done: list[str] = []

        async def drain(i: int) -> None:
            store = stores[i % len(stores)]
            lease = await bench.lease(store=store)
            while jobs := await bench.claim(7, lease=lease, store=store):
                assert await store.settle([settlement(job, Completed()) for job in jobs]) == []
                done.extend(job.id for job in jobs)

        await asyncio.gather(*(drain(i) for i in range(12)))
        # A claim may come back empty while another one still holds the last rows, so claim what is left.
        await drain(0)
        assert sorted(done) == sorted(ids)
        assert (await bench.store.stats()).counts["completed"] == 400

    async def test_tokens_rise_with_every_claim(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        await bench.enqueue(50)
        seen: dict[str, list[int]] = {}

        async def pass_around(i: int) -> None:
            lease = await bench.lease(store=stores[i])
            for _ in range(15):
                jobs = await bench.claim(3, lease=lease, store=stores[i])
                for job in jobs:
                    seen.setdefault(job.id, []).append(job.token)
                await stores[i].settle([settlement(job, Released()) for job in jobs])

        await asyncio.gather(*(pass_around(i) for i in range(4)))
        assert all(tokens == sorted(set(tokens)) for tokens in seen.values())
        assert max(map(len, seen.values())) > 1
