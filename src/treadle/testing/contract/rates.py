"""Rate limits: at most so many starts of a topic in any window."""

from __future__ import annotations

import asyncio

import pytest

from treadle.model.errors import LeaseLost
from treadle.policy.lifecycle import Released
from treadle.store.values import Claimed, TopicOptions, Wants
from treadle.store.views import RateReached
from treadle.testing.contract.gates import CLIENTS
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, TOPIC, Workbench


class RateContract(ContractPart):
    """Never more than n starts in any window of `per`."""

    async def limit(self, bench: Workbench, n: int, per_ms: int, topic: str = TOPIC) -> None:
        await bench.store.write_records([], topics=[TopicOptions(topic, n, per_ms)])

    async def test_no_more_than_n_in_a_window(self, bench: Workbench) -> None:
        await self.limit(bench, 3, HOUR)
        ids = await bench.enqueue(8)
        assert [job.id for job in await bench.claim(10)] == ids[:3]
        claim = await bench.store.claim(await bench.lease(), Wants([TOPIC], [], 10, 10))
        assert claim.jobs == []
        assert claim.again_in_ms is not None
        assert HOUR < claim.again_in_ms <= HOUR + 200  # a handler may start this much later than its claim
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

    async def test_a_clock_that_goes_back_far_does_not_close_the_window(self, bench: Workbench) -> None:
        await self.limit(bench, 2, MINUTE)
        ids = await bench.enqueue(4)
        assert [job.id for job in await bench.claim(5)] == ids[:2]
        await bench.pass_time(-HOUR)
        assert [job.id for job in await bench.claim(5)] == ids[2:4]

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
        claim = await bench.store.claim(await bench.lease(), Wants([TOPIC], [], 10, 10))
        assert [job.id for job in [*claim.jobs, *await bench.claim(1)]] == [id]

    async def test_the_limit_can_be_changed_and_lifted(self, bench: Workbench) -> None:
        await self.limit(bench, 1, HOUR)
        ids = await bench.enqueue(5)
        await bench.claim(5)
        await self.limit(bench, 3, HOUR)
        assert [job.id for job in await bench.claim(5)] == ids[1:3]
        await bench.store.write_records([], topics=[TopicOptions(TOPIC, None, None)])
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
        assert await bench.store.obstacles(second) == [RateReached(1, HOUR)]

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
        """Measured by the database's clock, from the claim times."""
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
        starts = sorted([at for id in ids if (at := (await bench.job(id)).claimed_at)])
        assert len(starts) == len(ids)
        for earlier, later in zip(starts, starts[n:], strict=False):
            assert (later - earlier).total_seconds() * 1000 >= per_ms

    async def test_the_wait_that_is_told_is_long_enough(self, bench: Workbench) -> None:
        await self.limit(bench, 1, 30)
        await bench.enqueue(3)
        lease = await bench.lease()
        for _ in range(3):
            claim = await bench.store.claim(lease, Wants([TOPIC], [], 1, 1))
            if claim.again_in_ms:
                await asyncio.sleep((claim.again_in_ms + 1) / 1000)  # that wait, and one for rounding
                claim = await bench.store.claim(lease, Wants([TOPIC], [], 1, 1))
            assert len(claim.jobs) == 1
