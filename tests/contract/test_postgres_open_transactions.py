"""A user's transaction that stays open holds up what needs its keys, for a limited time, and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from uuid_utils import uuid7

from tests.contract.relational import RelationalDatabase
from tests.waiting import stays
from treadle.model.errors import StoreBusy, StoreUnavailable
from treadle.model.status import Status
from treadle.model.webhooks import Delivered, DeliveryQuery, DeliveryStatus, Endpoint, SettledDelivery, Try
from treadle.policy.admission import QUEUE, REJECT, REPLACE, Limit
from treadle.policy.lifecycle import Completed
from treadle.policy.saved_endpoint import KIND as WEBHOOK
from treadle.policy.saved_endpoint import body_of
from treadle.queue import steering
from treadle.queue.enqueueing.intake import Intake
from treadle.store import waiting_room
from treadle.store.postgres.store import PostgresStore
from treadle.store.protocol import Store
from treadle.store.sql.scripts.steer import cancel_idle
from treadle.store.values import Answer, Effects, FollowUpsBusy, Inserted, RecordWrite, Wants
from treadle.testing.contract import ContractPart
from treadle.testing.contract.steps import waiting
from treadle.testing.workbench import HOUR, MINUTE, TOPIC, Workbench, eventually, new_job, settlement

URL = "https://example.com/hook"
KEY = Limit("g", REPLACE, 1)
REQUESTS: dict[str, Callable[[Store, str], Coroutine[Any, Any, Any]]] = {
    "cancel": lambda store, id: steering.cancel(store, [id]),
    "reschedule": lambda store, id: steering.reschedule(store, [id], priority=1),
    "delete": lambda store, id: steering.delete(store, [id]),
    "bulk": lambda store, id: steering.cancel(store, [id, str(uuid7())]),
    "requeue": lambda store, id: steering.requeue(store, [id]),
    "answer": lambda store, id: store.answer([Answer(id, "approve", result="1")]),
}


@pytest.fixture
def database(postgres_database: RelationalDatabase) -> RelationalDatabase:
    return postgres_database


@pytest.fixture
async def user(database: RelationalDatabase) -> AsyncIterator[Any]:
    """A user's connection with an open transaction; rolled back at the end."""
    connection = await asyncpg.connect(database.url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection
    finally:
        await connection.close()


class TestOpenTransactions(ContractPart):
    async def test_many_first_enqueues_of_a_topic_add_it_once(
        self, bench: Workbench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They would wait for each other's locks, and the last of them for too long."""
        store = bench.store
        assert isinstance(store, PostgresStore)
        added: list[object] = []
        real = store.transact_or_busy

        async def transact(make: Any, *more: Any) -> Any:
            added.append(make)
            return await real(make, *more)

        monkeypatch.setattr(store, "transact_or_busy", transact)
        await asyncio.gather(*(store.insert([new_job()]) for _ in range(50)))
        assert len(added) == 1

    async def test_an_idempotency_key_that_is_taken_there_holds_up_its_own_enqueue_only(
        self, bench: Workbench, user: Any
    ) -> None:
        first, second = (new_job(idempotency_key="k") for _ in range(2))
        await bench.store.insert([first], connection=user)
        intake = Intake(bench.store)
        waiting = asyncio.create_task(intake.add(second))
        others = await asyncio.gather(*(intake.add(new_job(idempotency_key=f"o{n}")) for n in range(50)))
        assert all(answer.existing_id is None for answer in others)
        assert not waiting.done()
        await user.execute("COMMIT")
        assert (await waiting).existing_id == first.id

    async def test_it_gets_the_key_when_the_other_is_rolled_back(self, bench: Workbench, user: Any) -> None:
        await bench.store.insert([new_job(idempotency_key="k")], connection=user)
        waiting = asyncio.create_task(Intake(bench.store).add(mine := new_job(idempotency_key="k")))
        await stays(lambda: not waiting.done(), 0.1)
        await user.execute("ROLLBACK")
        assert (await waiting).existing_id is None
        assert await bench.claimable() == [mine.id]

    async def test_after_its_time_it_is_told_that_the_store_is_busy(
        self, bench: Workbench, user: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 0.3)
        await bench.store.insert([new_job(dedupe_key="d")], connection=user)
        with pytest.raises(StoreUnavailable, match="locked"):
            await Intake(bench.store).add(new_job(dedupe_key="d"))
        with pytest.raises(StoreUnavailable, match="locked"):
            await bench.store.insert([new_job(), new_job(dedupe_key="d")])
        with pytest.raises(StoreBusy):
            await bench.store.insert([new_job(dedupe_key="d")], patient=False)
        assert await bench.claimable() == []

    @pytest.mark.parametrize("policy", [QUEUE, REJECT, REPLACE])
    async def test_a_concurrency_key_that_is_used_there_stops_no_claim_and_no_ending(
        self, bench: Workbench, user: Any, policy: str
    ) -> None:
        limit = Limit("g", policy, 3)
        delayed = await bench.enqueue_one(limit=limit, delay_ms=MINUTE)
        running = await bench.enqueue_one(limit=limit)
        job = await bench.claim_one()
        assert job.id == running
        plain = await bench.enqueue(100)
        await bench.store.insert([new_job(limit=limit)], connection=user)
        await bench.pass_time(HOUR)
        async with asyncio.timeout(30):
            assert (await bench.store.advance()).promoted == 1
            assert {one.id for one in await bench.claim(200)} == {delayed, *plain}
            assert await bench.settle(job, Completed())

    @pytest.mark.parametrize("policy", [QUEUE, REJECT, REPLACE])
    async def test_no_worker_asks_again_and_again_for_a_key_that_is_used_there(
        self, bench: Workbench, user: Any, policy: str
    ) -> None:
        """Jobs of the key wait in every place: ready, later, held and running."""
        limit = Limit("g", policy, 4)
        await bench.enqueue(2, limit=limit)
        held = Limit("g", QUEUE, 1)
        assert len(await bench.claim(1)) == 1
        await bench.enqueue_one(limit=held)
        assert len(await bench.claim(10)) == 1
        await bench.enqueue(2, limit=limit._replace(most=9), delay_ms=MINUTE)
        await bench.enqueue_one(limit=limit._replace(most=9), expires_in_ms=MINUTE, delay_ms=HOUR)
        await bench.store.insert([new_job(limit=limit._replace(most=9))], connection=user)
        await bench.pass_time(2 * MINUTE)
        await user.execute("SELECT 1 FROM treadle.limits FOR UPDATE")
        await user.execute("SELECT 1 FROM treadle.later FOR UPDATE")
        for _ in range(4):
            async with asyncio.timeout(30):
                advanced = await bench.store.advance()
                claim = await bench.store.claim(await bench.lease(), Wants([TOPIC], [], 10, 10))
            for pause in (advanced.next_in_ms, claim.again_in_ms):
                assert pause is None or pause >= 20 or claim.jobs, (advanced, claim)

    @pytest.mark.parametrize("state", ["pending", "delayed", "held"])
    async def test_a_job_that_is_replaced_there_is_passed_by(self, bench: Workbench, user: Any, state: str) -> None:
        await self._old(bench, state)
        await bench.pass_time(2 * HOUR)
        await bench.store.insert([new_job(limit=KEY)], connection=user)
        plain = await bench.enqueue(3)
        async with asyncio.timeout(30):
            await bench.store.advance()
            claimed = [one.id for one in await bench.claim(10)]
        assert claimed == plain
        await user.execute("COMMIT")
        await bench.store.advance()

    async def test_a_completion_that_loses_a_deadlock_is_stored_all_the_same(self, bench: Workbench, user: Any) -> None:
        await bench.enqueue(40)
        for job in await bench.claim(40):
            await user.execute("SELECT 1 FROM treadle.tally FOR UPDATE")
            settling = asyncio.create_task(bench.settle(job, Completed()))
            lost = await self._deadlocks(user, settling)
            await user.execute("ROLLBACK")
            assert await settling
            assert await bench.status(job.id) is Status.COMPLETED
            if lost:
                return
            await user.execute("BEGIN")
        pytest.fail("no completion ever lost")

    async def _deadlocks(self, user: Any, settling: asyncio.Task[bool]) -> bool:
        """Whether the completion loses: the first one that has waited for a second while the other waits too. It does
        not wait for the row of the tally in the first try, nor in a new minute."""

        async def waits() -> bool:
            return bool(settling.done() or await user.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"))

        await eventually(waits)
        if settling.done():
            return False
        try:
            await user.execute("SELECT 1 FROM treadle.running FOR UPDATE")  # which the completion has deleted
        except asyncpg.DeadlockDetectedError:
            return False
        return True

    async def test_a_running_job_that_is_replaced_there_can_end_and_is_asked_to_stop_after_the_commit(
        self, bench: Workbench, user: Any
    ) -> None:
        first, second = [await bench.enqueue_one(limit=Limit(key, REPLACE, 1)) for key in ("g", "h")]
        jobs = {job.id: job for job in await bench.claim(10)}
        await bench.store.insert([new_job(limit=Limit(key, REPLACE, 1)) for key in ("g", "h")], connection=user)
        async with asyncio.timeout(30):
            assert await bench.settle(jobs[first], Completed())
            assert (await bench.store.advance()).promoted == 0
        assert await bench.status(second) is Status.PROCESSING
        await user.execute("COMMIT")
        await bench.store.advance()
        assert await bench.statuses([first, second]) == [Status.COMPLETED, Status.CANCELLING]
        assert len(await bench.claim(10)) == 1, "the other waits until the replaced one has ended"

    async def _old(self, bench: Workbench, state: str) -> None:
        if state == "held":
            await bench.enqueue_one(limit=KEY._replace(policy=QUEUE), topic="in.front")
            front = await bench.claim_one(topics=["in.front"])
            await bench.enqueue_one(limit=KEY._replace(policy=QUEUE, most=1))
            assert await bench.claim(10) == []
            assert await bench.settle(front, Completed())
            assert await bench.claimable() != []
        else:
            await bench.make(state, limit=KEY)

    async def test_a_held_job_that_is_locked_does_not_hold_up_an_ending(self, bench: Workbench, user: Any) -> None:
        limit = KEY._replace(policy=QUEUE)
        await bench.enqueue_one(limit=limit)
        job = await bench.claim_one()
        held = await bench.enqueue_one(limit=limit)
        assert await bench.claim(10) == []
        await user.execute("SELECT 1 FROM treadle.held FOR UPDATE")
        async with asyncio.timeout(30):
            assert await bench.settle(job, Completed())
        assert await bench.claimable() == []
        await user.execute("ROLLBACK")
        await bench.store.advance()
        assert await bench.claimable() == [held]

    async def test_a_due_job_that_is_locked_is_asked_for_again_after_a_while(self, bench: Workbench, user: Any) -> None:
        await bench.enqueue_one(delay_ms=MINUTE)
        await bench.pass_time(HOUR)
        await user.execute("SELECT 1 FROM treadle.later FOR UPDATE")
        for _ in range(3):
            promoted, moved, next_in_ms = await bench.store.advance()
            assert (promoted, moved) == (0, [])
            assert next_in_ms is not None
            assert next_in_ms >= 20

    async def test_a_deadline_of_a_locked_job_is_not_waited_for(self, bench: Workbench, user: Any) -> None:
        locked, free = await bench.enqueue(2, expires_in_ms=MINUTE)
        await bench.pass_time(HOUR)
        await user.execute("SELECT 1 FROM treadle.ready r JOIN treadle.jobs USING (n) WHERE id = $1 FOR UPDATE", locked)
        async with asyncio.timeout(30):
            assert [one.id for one in (await bench.store.advance()).moved] == [free]

    async def test_enqueues_claims_and_endings_go_on_while_many_wait_for_keys(
        self, bench: Workbench, user: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The store has few connections, so waiting calls must not hold all of them."""
        monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 120.0)
        await bench.store.insert([new_job(idempotency_key=f"k{n}") for n in range(30)], connection=user)
        intake = Intake(bench.store)
        waiting = [asyncio.create_task(intake.add(new_job(idempotency_key=f"k{n}"))) for n in range(30)]
        lease = await bench.lease()
        async with asyncio.timeout(60):
            for _ in range(20):
                await intake.add(new_job())
                assert await bench.settle(await bench.claim_one(lease=lease), Completed())
        assert not any(task.done() for task in waiting)
        await user.execute("ROLLBACK")
        assert all(answer.existing_id is None for answer in await asyncio.gather(*waiting))

    async def _in_the_way(self, bench: Workbench, user: Any, verb: str) -> str:
        """A job that the request can't change before the user's transaction has ended."""
        if verb == "requeue":
            id = await bench.make("cancelled", limit=KEY._replace(policy=REJECT))
            await bench.store.insert([new_job(limit=KEY._replace(policy=REJECT))], connection=user)
            return id
        id = await (waiting(bench, limit=KEY) if verb == "answer" else bench.enqueue_one(limit=KEY, delay_ms=HOUR))
        await bench.store.insert([new_job(limit=KEY)], connection=user)
        return id

    @pytest.mark.parametrize("verb", REQUESTS)
    async def test_requests_that_wait_for_it_hold_up_nothing_else(
        self, bench: Workbench, user: Any, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 120.0)
        id = await self._in_the_way(bench, user, verb)
        requests = [asyncio.create_task(REQUESTS[verb](bench.store, id)) for _ in range(8)]
        lease = await bench.lease()
        async with asyncio.timeout(30):
            for _ in range(10):
                other = await bench.enqueue_one(idempotency_key=str(uuid7()))
                await bench.job(other)
                assert await bench.settle(await bench.claim_one(lease=lease), Completed())
                await steering.cancel(bench.store, [await bench.enqueue_one(delay_ms=HOUR)])
        assert not any(task.done() for task in requests)
        await user.execute("ROLLBACK")
        async with asyncio.timeout(30):
            await asyncio.gather(*requests)

    @pytest.mark.parametrize("verb", REQUESTS)
    async def test_a_request_that_has_waited_long_enough_is_told_to_try_again(
        self, bench: Workbench, user: Any, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 0.3)
        id = await self._in_the_way(bench, user, verb)
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="locked"):
                await REQUESTS[verb](bench.store, id)
            with pytest.raises(StoreUnavailable, match="locked"):
                await asyncio.gather(*(REQUESTS[verb](bench.store, id) for _ in range(3)))
        await user.execute("ROLLBACK")
        await REQUESTS[verb](bench.store, id)

    async def test_the_reaper_waits_for_no_job_that_is_replaced_there(self, bench: Workbench, user: Any) -> None:
        """Both count a cancelled job of the same topic in the same minute."""
        stopping = await bench.make("cancelling")
        old = await bench.enqueue_one(limit=KEY)
        await bench.store.insert([new_job(limit=KEY)], connection=user)
        async with asyncio.timeout(30):
            assert [one.id for one in await bench.reap(0)] == [stopping]
        await user.execute("COMMIT")
        assert await bench.statuses([stopping, old]) == [Status.CANCELLED, Status.CANCELLED]
        assert (await bench.store.stats()).counts[Status.CANCELLED] == 2

    async def test_a_follow_up_that_needs_a_key_from_there_holds_up_no_other_ending(
        self, bench: Workbench, user: Any
    ) -> None:
        blocked, plain, free = await bench.enqueue(3)
        jobs = {job.id: job for job in await bench.claim(3)}
        await bench.store.insert([new_job(idempotency_key="k")], connection=user)
        follow = {blocked: Effects((new_job(idempotency_key="k"),)), free: Effects((new_job(idempotency_key="f"),))}
        batch = [settlement(jobs[id], Completed())._replace(effects=follow.get(id)) for id in (blocked, plain, free)]
        async with asyncio.timeout(30):
            with pytest.raises(FollowUpsBusy) as busy:
                await bench.store.settle(batch)
        assert (busy.value.left, busy.value.lost) == ([batch[0]], [])
        assert await bench.statuses([blocked, plain, free]) == [
            Status.PROCESSING,
            Status.COMPLETED,
            Status.COMPLETED,
        ]
        await user.execute("ROLLBACK")
        assert await bench.store.settle(busy.value.left) == []
        assert await bench.status(blocked) is Status.COMPLETED

    async def test_a_replaced_job_that_a_worker_claims_just_then_is_not_locked(
        self, bench: Workbench, user: Any
    ) -> None:
        running, waits = await bench.make("processing"), await bench.make("delayed")
        ended = await bench.make("cancelled")
        script = cancel_idle({running: "a", waits: "b", ended: "c"}, -1)
        assert isinstance(bench.store, PostgresStore)
        left = await bench.store._run(user, script)
        assert left == [running, ended]
        async with asyncio.timeout(30):
            await steering.release(bench.store, [running])
            await steering.delete(bench.store, [ended])
        await user.execute("COMMIT")
        assert await bench.statuses([running, waits, ended]) == [Status.PENDING, Status.CANCELLED, None]

    async def test_a_replaced_job_that_is_locked_again_is_stopped_later(self, bench: Workbench, user: Any) -> None:
        old = await bench.make("processing", limit=KEY)
        await user.execute("COMMIT")
        await user.execute("BEGIN")
        await bench.store.insert([new_job(limit=KEY)], connection=user)
        await user.execute("COMMIT")
        await user.execute("BEGIN")
        await user.execute("SELECT 1 FROM treadle.running FOR UPDATE")
        async with asyncio.timeout(30):
            assert (await bench.store.advance()).next_in_ms is not None
        assert await bench.status(old) is Status.PROCESSING
        await user.execute("ROLLBACK")
        await bench.store.advance()
        assert await bench.status(old) is Status.CANCELLING

    async def test_a_sender_does_not_wait_for_it(self, bench: Workbench, user: Any) -> None:
        """It has cancelled a job of which an earlier delivery is under way."""
        await bench.store.write_records([RecordWrite(WEBHOOK, "ops", "ops", body_of(Endpoint("ops", URL)))])
        await bench.pass_time(6_000)
        id = await bench.make("retrying", limit=KEY)
        (one,) = (await bench.store.claim_deliveries("s", MINUTE)).deliveries
        await bench.store.insert([new_job(limit=KEY)], connection=user)
        async with asyncio.timeout(10):
            assert not await bench.store.settle_deliveries([SettledDelivery(one, Try(200), Delivered())])
        await user.execute("COMMIT")
        assert await bench.status(id) is Status.CANCELLED
        cancelled, retrying = await bench.store.deliveries(DeliveryQuery(job_id=id))
        assert (cancelled.status, retrying.status) == (DeliveryStatus.PENDING, DeliveryStatus.DELIVERED)
        assert (await bench.job(id)).webhook_sent is False


class TestLongKeys(ContractPart):
    async def test_keys_of_the_longest_names_fit_the_index(self, bench: Workbench) -> None:
        wide = "".join(chr(0x20000 + n) for n in range(255))  # four bytes each, and nothing to compress
        options = {
            "scope": wide,
            "scope_id": wide[::-1],
            "idempotency_key": wide[100:] + wide[:100],
            "created_by": wide,
        }
        first = await bench.enqueue_one(**options)
        (answer,) = await bench.store.insert([new_job(**options)])
        assert isinstance(answer, Inserted)
        assert answer.existing_id == first
        (other,) = await bench.store.insert([new_job(**{**options, "idempotency_key": wide})])
        assert isinstance(other, Inserted)
        assert other.existing_id is None
