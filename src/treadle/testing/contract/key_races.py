"""Several callers need the same key at the same instant: a unique key, or the limit of a concurrency key."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from treadle.model.errors import NotRepeatable
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed, Outcome, Released
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import Inserted, Refusal
from treadle.store.views import Listing
from treadle.testing.contract.racing import FULL, ONE_BY_ONE, together
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import DAY, MINUTE, Workbench, eventually, new_job, settlement


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
