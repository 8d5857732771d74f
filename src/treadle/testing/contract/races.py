"""Two callers want the same job at the same instant: each time one of them wins, and the other is told."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

import pytest

from treadle.model.errors import JobNotFound, NotRepeatable, WrongState
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed, Outcome, Released
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import Claimed, Inserted, Refusal, Wants
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import DAY, HOUR, LEASES_ONLY, MINUTE, TOPIC, Workbench, eventually, new_job, settlement

T = TypeVar("T")

FULL = os.environ.get("TREADLE_FAULT") == "full"
ROUNDS = 10_000 if FULL else 60
AT_ONCE = 20
ONE_BY_ONE = 10_000 if FULL else 40


async def together(*actors: Awaitable[Any]) -> Sequence[Any]:
    """Start all of them concurrently, in random order."""
    order = list(range(len(actors)))
    random.shuffle(order)

    async def start(i: int) -> Any:
        if random.random() < 0.3:
            await asyncio.sleep(random.random() / 1000)
        return await actors[i]

    answers = await asyncio.gather(*(start(i) for i in order))
    return [answers[order.index(i)] for i in range(len(actors))]


async def rounds() -> AsyncIterator[int]:
    """The sizes of the batches that add up to ROUNDS. The races of one batch overlap and disturb each other."""
    for start in range(0, ROUNDS, AT_ONCE):
        yield min(AT_ONCE, ROUNDS - start)


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
        from treadle.model.errors import LeaseLost

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


class KeyRaceContract(ContractPart):
    async def test_a_hundred_clients_one_key_one_job(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(4)]
        keys = 1000 if FULL else 4
        for key in range(keys):
            jobs = [new_job(idempotency_key=f"k{key}") for _ in range(100)]
            answers = await asyncio.gather(*(stores[i % 5].insert([job]) for i, job in enumerate(jobs)))
            made = [job.id for job, (answer,) in zip(jobs, answers, strict=True) if _made(answer)]
            assert len(made) == 1
            assert {answer.existing_id for (answer,) in answers if isinstance(answer, Inserted)} == {None, made[0]}
        assert await bench.store.count(Listing()) == keys

    async def test_batches_with_the_same_keys_in_any_order(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        for turn in range(ONE_BY_ONE // 4):
            names = [f"{turn}-{i}" for i in range(8)]
            batches = []
            for i in range(8):
                random.shuffle(names)
                keys = "idempotency_key" if i % 2 else "dedupe_key"
                batches.append([new_job(**{keys: name}) for name in names])
            answers = await asyncio.gather(*(stores[i % 4].insert(batch) for i, batch in enumerate(batches)))
            made = sum(_made(answer) for batch in answers for answer in batch)
            assert made == 16, "eight of each kind"

    async def test_dedupe_against_the_end_of_its_holder(self, bench: Workbench) -> None:
        """The call either creates a new job or returns the old one that was still alive; never both, never neither."""
        other = await bench.another()
        for turn in range(ONE_BY_ONE):
            first = await bench.enqueue_one(dedupe_key=f"d{turn}")
            job = await bench.claim_one()
            new = new_job(dedupe_key=f"d{turn}")
            accepted, (answer,) = await together(bench.settle(job, Completed()), other.insert([new]))
            assert accepted
            assert isinstance(answer, Inserted)
            assert answer.existing_id in (None, first)
            (seen,) = await bench.store.get([new.id])
            assert (seen is not None) is (answer.existing_id is None)
            if seen:
                await steering.delete(bench.store, [new.id])

    async def test_what_may_complete_once_is_not_made_while_it_completes(self, bench: Workbench) -> None:
        other = await bench.another()
        for turn in range(ONE_BY_ONE):
            options = {"dedupe_key": f"d{turn}", "repeatable": False}
            first = await bench.enqueue_one(**options)
            job = await bench.claim_one()
            accepted, (answer,) = await together(
                bench.settle(job, Completed()), other.insert([new_job(**options)], atomic=False)
            )
            assert accepted
            if isinstance(answer, Inserted):
                assert answer.existing_id == first, "a second job was made"
            else:
                assert isinstance(answer, NotRepeatable)

    async def test_what_may_complete_once_is_not_requeued_while_its_twin_completes(self, bench: Workbench) -> None:
        other = await bench.another()
        for turn in range(ONE_BY_ONE):
            options = {"dedupe_key": f"d{turn}", "repeatable": False}
            failed = await bench.make("failed", **options)
            await bench.enqueue_one(**options)
            job = await bench.claim_one()
            accepted, (answer,) = await together(bench.settle(job, Completed()), steering.requeue(other, [failed]))
            assert accepted
            assert isinstance(answer, Refusal), "it may complete a second time"

    async def test_delete_against_the_same_key(self, bench: Workbench) -> None:
        other = await bench.another()
        for turn in range(ONE_BY_ONE):
            first = await bench.enqueue_one(idempotency_key=f"k{turn}", dedupe_key=f"d{turn}")
            new = new_job(idempotency_key=f"k{turn}", dedupe_key=f"d{turn}")
            (deleted,), (answer,) = await together(steering.delete(bench.store, [first]), other.insert([new]))
            assert deleted is None
            assert isinstance(answer, Inserted)
            assert answer.existing_id in (None, first)
            assert await bench.store.count(Listing()) == (answer.existing_id is None)
            await steering.delete(bench.store, [new.id])


class GateRaceContract(ContractPart):
    """A job is never held while there is room; the database's consistency check after the test would report it."""

    async def test_enqueue_against_the_job_that_makes_room(self, bench: Workbench) -> None:
        other = await bench.another()
        for turn in range(ONE_BY_ONE):
            gate = Limit(f"g{turn}", "queue_same_scope", 1)
            await bench.enqueue_one(limit=gate)
            job = await bench.claim_one()
            new = new_job(limit=gate)
            accepted, _ = await together(bench.settle(job, Completed()), other.insert([new]))
            assert accepted
            (claimed,) = await bench.claim(2)
            assert claimed.id == new.id
            await bench.settle(claimed, Completed())

    @pytest.mark.parametrize("leaving", ["cancel", "delete", "reschedule"])
    async def test_room_for_one_who_stops_waiting_at_that_moment(self, bench: Workbench, leaving: str) -> None:
        """The next job in line leaves at the moment it is let in, so the job behind it gets its room."""
        other = await bench.another()
        far = await bench.store.now() + DAY
        for turn in range(ONE_BY_ONE):
            gate = Limit(f"g{turn}", "queue_same_scope", 1)
            await bench.enqueue_one(limit=gate)
            job = await bench.claim_one()
            first, second = [await bench.enqueue_one(limit=gate) for _ in range(2)]
            goes: Awaitable[Any]
            if leaving == "reschedule":
                goes = steering.reschedule(other, [first], run_at=far)
            else:
                goes = steering.cancel(other, [first], "") if leaving == "cancel" else steering.delete(other, [first])
            accepted, _ = await together(bench.settle(job, Completed()), goes)
            assert accepted
            (next_one,) = await bench.claim(5)
            assert next_one.id == second
            assert await bench.settle(next_one, Completed())
            await steering.delete(bench.store, [first])

    async def test_delayed_jobs_against_tidying(self, bench: Workbench) -> None:
        other = await bench.another()
        ids = []
        for turn in range(ONE_BY_ONE):
            job = new_job(limit=Limit(f"g{turn % 7}", "queue_same_scope", 2), delay_ms=1)
            ids.append(job.id)
            await together(bench.store.insert([job]), other.tidy(), bench.store.advance())
        done: list[str] = []

        async def all_done() -> bool:
            await bench.store.advance()
            while jobs := await bench.claim(100):
                assert await bench.store.settle([settlement(job, Completed()) for job in jobs]) == []
                done.extend(job.id for job in jobs)
            return len(done) >= len(ids)

        await eventually(all_done)
        assert sorted(done) == sorted(ids)

    async def test_requeue_against_tidying(self, bench: Workbench) -> None:
        other = await bench.another()
        for _ in range(ONE_BY_ONE):
            gate = Limit("g", "queue_same_scope", 1)
            id = await bench.enqueue_one(limit=gate)
            await steering.cancel(bench.store, [id], "")
            await together(steering.requeue(bench.store, [id]), other.tidy())
            (job,) = await bench.claim(2)
            assert job.id == id
            await bench.settle(job, Completed())

    async def test_all_calls_about_one_gate_concurrently(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(2)]
        gate = Limit("g", "queue_same_scope", 2)
        ids: list[str] = []

        async def anything(store: Store) -> None:
            id = (await bench.enqueue(1, store=store, limit=gate))[0]
            ids.append(id)
            dice = random.random()
            if dice < 0.3:
                await steering.cancel(store, [random.choice(ids)], "")
            elif dice < 0.5:
                await steering.delete(store, [random.choice(ids)])
            elif dice < 0.6:
                await steering.requeue(store, [random.choice(ids)], force=True)
            for job in await bench.claim(1, store=store, lease=await bench.lease(MINUTE, store=store)):
                outcomes: list[Outcome] = [Completed(), Released(), Failed("B", "B", 1)]
                await bench.settle(job, random.choice(outcomes), store=store)
            await store.advance()

        for _ in range(ONE_BY_ONE // 2):
            await asyncio.gather(*(anything(store) for store in stores * 2))

        async def none_left() -> bool:
            await bench.store.advance()
            while jobs := await bench.claim(10):
                assert len(jobs) <= 2
                await bench.store.settle([settlement(job, Completed()) for job in jobs])
            return (await bench.store.stats()).counts["pending"] == 0

        await eventually(none_left)


def _made(answer: object) -> bool:
    return isinstance(answer, Inserted) and answer.existing_id is None
