"""The store's invariants under random concurrent actions by workers, operators and reapers.

Each walk is a seeded random sequence over several stores running concurrently. Invariants are checked on every answer,
on every history at the end, and by the database's consistency check after the test.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from treadle.model.errors import ConcurrencyRejected
from treadle.model.events import Event
from treadle.model.job import Job
from treadle.model.status import ENDED, Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import LEAVES_TO, Completed, Failed, Outcome, Released, Snoozed
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import Claimed, Graces, Inserted, NewJob, Reaped, Touch, Wants
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, LEASES_ONLY, MINUTE, SECOND, TOPIC, Workbench, new_job, settlement

SEEDS = range(3)
ACTORS = 6
STEPS = 25


class Play:
    """Actors that act at random on the jobs of one database, and what is known about those jobs."""

    def __init__(self, bench: Workbench, stores: list[Store], seed: int) -> None:
        self.bench = bench
        self.stores = stores
        self.dice = random.Random(seed)
        self.ids: list[str] = []
        self.tokens: set[tuple[str, int]] = set()
        self.hands: list[Claimed] = []

    async def run(self) -> None:
        for _ in range(STEPS):
            await asyncio.gather(*(self.step(self.dice.choice(self.stores)) for _ in range(ACTORS)))

    async def step(self, store: Store) -> None:
        moves: list[Callable[[Store], Awaitable[None]]] = [
            *([self.enqueue] * 3 + [self.claim] * 4 + [self.settle] * 4),
            *(self.lose, self.ask, self.maintain, self.touch),
        ]
        await self.dice.choice(moves)(store)

    async def enqueue(self, store: Store) -> None:
        jobs = [self._any_job() for _ in range(self.dice.randint(1, 4))]
        for job, answer in zip(jobs, await store.insert(jobs, atomic=False), strict=True):
            if isinstance(answer, Inserted):
                if answer.existing_id is None:
                    self.ids.append(job.id)
            else:
                assert isinstance(answer, ConcurrencyRejected), answer

    def _any_job(self) -> NewJob:
        dice = self.dice
        policy = dice.choice(["queue_same_scope", "reject_same_scope", "replace_same_scope"])
        return new_job(
            topic=dice.choice(["a", "b"]),
            priority=dice.choice([10, 50]),
            max_attempts=dice.randint(1, 3),
            delay_ms=dice.choice([0, 0, 0, 2]),
            expires_in_ms=dice.choice([None, None, None, 5, HOUR]),
            dedupe_key=dice.choice([None, None, "d1", "d2"]),
            idempotency_key=dice.choice([None, None, f"k{dice.randint(1, 5)}"]),
            limit=dice.choice([None, None, Limit(f"{policy}-{dice.randint(1, 2)}", policy, 2)]),
        )

    async def claim(self, store: Store) -> None:
        limit = self.dice.randint(1, 4)
        free = self.dice.randint(0, limit)
        lease = await store.open_lease("w", HOUR)
        jobs = (await store.claim(lease, Wants(["a", "b"], [], limit, free))).jobs
        assert len(jobs) <= limit
        for place, job in enumerate(jobs):
            assert 1 <= job.attempt <= job.max_attempts, "an attempt too many"
            assert job.attempt < job.max_attempts or place < free, "a last attempt beyond the free slots"
            assert (job.id, job.token) not in self.tokens, "a token that was used before"
            self.tokens.add((job.id, job.token))
        self.hands.extend(jobs)

    def _take(self) -> Claimed | None:
        return self.hands.pop(self.dice.randrange(len(self.hands))) if self.hands else None

    async def settle(self, store: Store) -> None:
        if job := self._take():
            outcomes: list[Outcome] = [
                Completed('"done"'),
                Failed("Boom", "Boom"),
                Failed("Boom", "Boom", retry_in_ms=self.dice.randint(1, 3)),
                Snoozed(1),
                Released(),
            ]
            await store.settle([settlement(job, self.dice.choice(outcomes))])

    async def touch(self, store: Store) -> None:
        if self.hands:
            job = self.dice.choice(self.hands)
            await store.touch(job.lease, [Touch(job.n, job.token, 1, self.dice.randint(0, 100), None)])

    async def lose(self, store: Store) -> None:
        """A worker dies; sometimes it comes back without noticing."""
        if job := self._take():
            await store.close_lease(job.lease)
            if self.dice.random() < 0.5:
                self.hands.append(job)

    async def ask(self, store: Store) -> None:
        if not self.ids:
            return
        ids = self.dice.sample(self.ids, min(3, len(self.ids)))
        asked: list[Coroutine[Any, Any, object]] = [
            steering.cancel(store, ids, "asked"),
            steering.requeue(store, ids, force=True),
            steering.release(store, ids),
            steering.reschedule(store, ids[:1], priority=50, max_attempts=self.dice.randint(1, 3)),
            steering.delete(store, ids[:1]),
        ]
        chosen = self.dice.randrange(len(asked))
        for i, one in enumerate(asked):
            if i == chosen:
                await one
            else:
                one.close()

    async def maintain(self, store: Store) -> None:
        await store.advance()
        await store.reap(Graces(2))
        await store.advance()
        await store.tidy()


def check_history(job: Job, events: list[Event]) -> None:
    endings = 0
    for event in events:
        assert event.from_status is not None
        assert event.to_status is not None
        assert Status(event.to_status) in LEAVES_TO[Status(event.from_status)], event
        endings += event.to_status in ENDED
    requeues = [event for event in events if event.type == "job:requeued"]
    # A plain completion shows only in the job itself and in the requeue that undid it.
    endings += sum(event.from_status == Status.COMPLETED for event in requeues) + (job.status is Status.COMPLETED)
    assert endings == len(requeues) + job.ended, f"{job.status}: {[event.type for event in events]}"


class WalkContract(ContractPart):
    @pytest.mark.parametrize("seed", SEEDS)
    async def test_any_walk_keeps_the_invariants(self, bench: Workbench, seed: int) -> None:
        play = Play(bench, [bench.store, *await bench.others(2)], seed)
        await play.run()
        for job in await bench.store.list(Listing(limit=10_000)):
            check_history(job, list(await bench.store.events(job.id) or ()))
            assert 0 <= job.attempt <= job.max_attempts
        await self.everything_ends(bench)

    async def everything_ends(self, bench: Workbench) -> None:
        """No job is stuck: once all leases have expired, a patient worker finishes every job."""
        await bench.pass_time(3 * HOUR)
        for _ in range(100):
            await bench.reap()
            await bench.store.advance()
            while (await bench.store.advance()).promoted:
                pass
            jobs = await bench.claim(100, topics=["a", "b"])
            assert await bench.store.settle([settlement(job, Completed()) for job in jobs]) == []
            counts = (await bench.store.stats()).counts
            if not jobs and not counts["pending"] and not counts["processing"] and not counts["cancelling"]:
                return
        raise AssertionError(f"jobs that never end: {counts}")


class InvariantContract(ContractPart):
    async def test_one_owner_regardless_of_who_claims(self, bench: Workbench) -> None:
        """Only the last owner of a job can end it."""
        (id,) = await bench.enqueue(1, max_attempts=10)
        owners = []
        for _ in range(6):
            owners.append(await bench.claim_one())
            await bench.store.close_lease(owners[-1].lease)
            await bench.reap()
        owners.append(await bench.claim_one())
        accepted = [await bench.settle(owner, Completed(f'"{i}"')) for i, owner in enumerate(owners)]
        assert accepted == [False] * 6 + [True]
        assert (await bench.job(id)).result_value == "6"

    async def test_ended_is_final(self, bench: Workbench) -> None:
        """Only a requeue changes the outcome of an ended job."""
        await bench.enqueue(1, expires_in_ms=HOUR)
        job = await bench.claim_one()
        await bench.settle(job, Completed('"first"'))
        before = await bench.job(job.id)
        await bench.settle(job, Failed("Boom", "Boom"))
        await bench.settle(job, Released())
        await bench.store.touch(job.lease, [Touch(job.n, job.token, 0, 7, "late")])
        await steering.cancel(bench.store, [job.id], "late")
        await steering.release(bench.store, [job.id])
        await steering.delete(bench.store, [job.id])
        await steering.reschedule(bench.store, [job.id], run_at=0, priority=1, max_attempts=1)
        await bench.store.release_unknown(job.lease, [])
        await bench.store.close_lease(job.lease)
        await bench.reap()
        await bench.store.advance()
        await bench.reap(0)
        await bench.store.advance()
        assert await bench.job(job.id) == before

    async def test_an_attempt_is_spent_at_the_claim(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1, max_attempts=3)
        spent = []
        for _ in range(3):
            job = await bench.claim_one()
            spent.append((await bench.job(id)).attempt)
            await bench.store.close_lease(job.lease)
            await bench.reap()
        assert spent == [1, 2, 3]
        assert await bench.status(id) is Status.EXPIRED
        assert await bench.claim(1) == []

    async def test_a_poison_job_ends_alone(self, bench: Workbench) -> None:
        """It kills every worker that claims it. Jobs that were only prefetched along with it keep their attempts."""
        poison = await bench.enqueue_one(max_attempts=2, priority=90)
        others = await bench.enqueue(4, max_attempts=2)
        for _ in range(10):
            jobs = await bench.claim(5, free=1, lease=await bench.lease(MINUTE))
            if not any(job.id == poison for job in jobs):
                break
            await bench.pass_time(HOUR)
            await bench.reap()
        assert await bench.status(poison) is Status.EXPIRED
        assert Status.EXPIRED not in await bench.statuses(others)

    async def test_a_workers_clock_an_hour_off_changes_nothing(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        true_time = time.time
        delayed = await bench.enqueue_one(delay_ms=30 * MINUTE)
        (id,) = await bench.enqueue(1, expires_in_ms=30 * MINUTE)
        for off in (3600, -3600):
            monkeypatch.setattr(time, "time", lambda off=off: true_time() + off)
            store = await bench.another()
            job = await bench.claim_one(store=store, lease=await bench.lease(30 * MINUTE, store=store))
            assert job.id == id
            assert await store.reap(LEASES_ONLY) == Reaped([])
            promoted, moved, wait = await store.advance()
            assert (promoted, moved) == (0, [])
            assert wait is not None
            assert 29 * MINUTE < wait <= 30 * MINUTE
            assert await store.renew(job.lease, 30 * MINUTE)
            assert await bench.settle(job, Released(), store=store)
        assert await bench.status(delayed) is Status.PENDING

    async def test_no_wait_is_negative(self, bench: Workbench) -> None:
        await bench.enqueue(3, delay_ms=SECOND)
        await bench.pass_time(HOUR)
        assert (await bench.store.advance(limit=1)) == (1, [], 0)

    async def test_all_of_an_ending_or_nothing(self, bench: Workbench) -> None:
        """Outcome, event, tally, key, deadline and room change together: a failed settle changes none of them."""
        gate = Limit("g", "queue_same_scope", 1)
        id = await bench.enqueue_one(limit=gate, dedupe_key="d", expires_in_ms=HOUR)
        waiting = await bench.enqueue_one(limit=gate)
        job = await bench.claim_one()
        before = await bench.store.stats()
        with pytest.raises(Exception):  # noqa: B017 - drivers name "this can't be stored" in many ways
            await bench.settle(job, Failed("\ud800", "Boom"))
        assert await bench.store.stats() == before
        assert await bench.history(id) == []
        answer = await bench.insert(new_job(dedupe_key="d"))
        assert answer.existing_id == id
        assert await bench.claim(1) == []
        assert await bench.settle(job, Failed("Boom", "Boom"))
        after = await bench.store.stats()
        assert (after.counts["failed"], await bench.history(id)) == (1, ["failed"])
        assert [one.id for one in await bench.claim(1, topics=[TOPIC])] == [waiting]
