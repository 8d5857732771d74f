"""Idempotency keys, dedupe keys, jobs that complete only once."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from tests.faulty import Around, faulty
from tests.queue.hands import Hands
from treadle import InvalidInput, JobNotFound, JobRequest, KeyReused, NotRepeatable, Queue, Status, WrongState
from treadle.queue import steering


class Payment(BaseModel):
    payment_id: str | int
    cents: int = 0


# -- idempotency -----------------------------------------------------------------------------------------------


async def test_the_same_key_and_payload_return_the_first_job(queue: Queue) -> None:
    first = await queue.enqueue("mail", {"n": 1}, idempotency_key="a")
    second = await queue.enqueue("mail", {"n": 1}, idempotency_key="a", priority="high", delay="1h")
    assert (second.id, second.deduplicated, first.deduplicated) == (first.id, True, False)
    assert second.priority == 50
    assert await queue.count() == 1


async def test_the_same_key_with_another_payload_is_an_error_that_names_the_job(queue: Queue) -> None:
    first = await queue.enqueue("mail", {"n": 1}, idempotency_key="a")
    with pytest.raises(KeyReused, match="with another payload") as refused:
        await queue.enqueue("mail", {"n": 2}, idempotency_key="a")
    assert refused.value.data["jobId"] == first.id
    assert await queue.count() == 1


async def test_a_key_belongs_to_its_topic_and_scope(queue: Queue) -> None:
    ids = {
        (await queue.enqueue(topic, idempotency_key="a", scope=scope, scope_id=scope_id)).id
        for topic in ("mail", "report")
        for scope, scope_id in ((None, None), ("user", None), ("user", "1"), ("user", "2"), (None, "1"))
    }
    assert len(ids) == 10


async def test_a_key_stays_taken_after_its_job_has_ended(queue: Queue, hands: Hands) -> None:
    first = await queue.enqueue("mail", idempotency_key="a")
    await hands.do(first, {"sent": 1})
    again = await queue.enqueue("mail", idempotency_key="a")
    assert (again.id, again.status, again.result_value) == (first.id, Status.COMPLETED, {"sent": 1})


async def test_the_key_is_taken_from_the_payload(queue: Queue) -> None:
    @queue.job(idempotency_key="input.payment_id")
    async def process_payment(payload: Payment) -> None: ...

    first = await process_payment.enqueue(Payment(payment_id="p1"))
    assert first.idempotency_key == "p1"
    assert (await process_payment.enqueue(Payment(payment_id="p1"))).id == first.id
    assert (await process_payment.enqueue(Payment(payment_id="p2"))).id != first.id
    with pytest.raises(KeyReused):
        await process_payment.enqueue(Payment(payment_id="p1", cents=5))
    # A key that is given counts.
    assert (await process_payment.enqueue(Payment(payment_id="p1", cents=5), idempotency_key="mine")).id != first.id


@pytest.mark.parametrize("value", [0, 17, "", "x" * 5000, "line\nbreak", None, ["a", 1], {"a": {"b": 2}}, True])
async def test_any_json_value_can_be_a_key(queue: Queue, value: Any) -> None:
    queue.register("mail", lambda: None, idempotency_key="payload.key")
    first = await queue.enqueue("mail", {"key": value})
    assert (await queue.enqueue("mail", {"key": value})).id == first.id
    assert first.idempotency_key is not None
    assert 1 <= len(first.idempotency_key) <= 255
    assert (await queue.enqueue("mail", {"key": "another"})).id != first.id


@pytest.mark.parametrize("expression", ["input.order.id", "payload.order.id", "order.id"])
async def test_a_key_may_lie_deeper(queue: Queue, expression: str) -> None:
    queue.register("mail", lambda: None, idempotency_key=expression)
    assert (await queue.enqueue("mail", {"order": {"id": "o1"}})).idempotency_key == "o1"


async def test_a_key_made_only_to_repeat_a_request_gives_way_to_the_templates(queue: Queue) -> None:
    @queue.job(idempotency_key="input.payment_id")
    async def process_payment(payload: Payment) -> None: ...

    first = await queue.enqueue("process_payment", {"payment_id": "p1"}, idempotency_key="once:1")
    again = await queue.enqueue("process_payment", {"payment_id": "p1"}, idempotency_key="once:2")
    assert (first.idempotency_key, again.id, again.deduplicated) == ("p1", first.id, True)
    plain = await queue.enqueue("mail", idempotency_key="once:3")
    assert (plain.idempotency_key, (await queue.enqueue("mail", idempotency_key="once:3")).id) == ("once:3", plain.id)


async def test_a_payload_without_the_key_is_refused(queue: Queue) -> None:
    queue.register("mail", lambda: None, idempotency_key="input.payment_id")
    for payload in ({}, {"payment": 1}, {"payment_id.x": 1}):
        with pytest.raises(InvalidInput, match="the payload has no payment_id, which its key needs"):
            await queue.enqueue("mail", payload)
    queue.register("deep", lambda: None, idempotency_key="a.b.c")
    with pytest.raises(InvalidInput, match=r"no a\.b\.c"):
        await queue.enqueue("deep", {"a": {"b": 5}})


async def test_a_job_that_is_deleted_while_it_is_found_is_not_made_up(queue: Queue) -> None:
    job = await queue.enqueue("mail", idempotency_key="a")
    faults = faulty(queue)

    async def delete_first(get: Around, ids: list[str], **options: Any) -> Any:
        faults.heal()
        await steering.delete(queue.store, ids)
        return await get(ids, **options)

    faults.around("get", delete_first)
    with pytest.raises(JobNotFound, match="deleted just now; enqueue again"):
        await queue.enqueue("mail", idempotency_key="a")
    assert (await queue.enqueue("mail", idempotency_key="a")).id != job.id


async def test_a_hundred_clients_with_one_key_make_one_job(url: str) -> None:
    queues = [Queue(url) for _ in range(5)]
    for queue in queues:
        await queue.open()
    try:
        jobs = await asyncio.gather(
            *(queues[n % 5].enqueue("mail", {"n": 1}, idempotency_key="one") for n in range(100))
        )
        assert len({job.id for job in jobs}) == 1
        assert sum(not job.deduplicated for job in jobs) == 1
        assert await queues[0].count() == 1
    finally:
        for queue in queues:
            await queue.close()


# -- dedupe ----------------------------------------------------------------------------------------------------


async def test_equal_dedupe_keys_of_a_live_job_return_that_job(queue: Queue, hands: Hands) -> None:
    queue.register("mail", lambda: None, dedupe_keys=["scope_id", "target"])
    first = await queue.enqueue("mail", {"target": "a", "n": 1}, scope_id="u1")
    same = await queue.enqueue("mail", {"target": "a", "n": 2}, scope_id="u1")
    assert (same.id, same.deduplicated, same.payload["n"]) == (first.id, True, 1)
    assert (await queue.enqueue("mail", {"target": "b"}, scope_id="u1")).id != first.id
    assert (await queue.enqueue("mail", {"target": "a"}, scope_id="u2")).id != first.id
    claimed = await hands.claim_one("mail")
    assert (await queue.enqueue("mail", {"target": "a"}, scope_id="u1")).id == first.id
    await hands.complete(claimed)
    assert (await queue.enqueue("mail", {"target": "a"}, scope_id="u1")).id != first.id


async def test_dedupe_keys_of_two_topics_are_apart(queue: Queue) -> None:
    for topic in ("mail", "report"):
        queue.register(topic, lambda: None, dedupe_keys=["target"])
    jobs = await queue.enqueue_many([JobRequest(topic, {"target": 1}) for topic in ("mail", "report", "mail")])
    assert len({job.id for job in jobs}) == 2


@pytest.mark.parametrize("end", ["failed", "cancelled", "deleted"])
async def test_a_dedupe_key_is_free_when_its_job_has_ended(queue: Queue, hands: Hands, end: str) -> None:
    queue.register("mail", lambda: None, dedupe_keys=["target"])
    job = await queue.enqueue("mail", {"target": 1})
    if end == "failed":
        await hands.fail(await hands.claim_one("mail"))
    elif end == "cancelled":
        await queue.cancel(job.id)
    else:
        await queue.delete(job.id)
    assert not (await queue.enqueue("mail", {"target": 1})).deduplicated


async def test_a_job_that_waits_for_its_retry_keeps_its_dedupe_key(queue: Queue, hands: Hands) -> None:
    queue.register("mail", lambda: None, dedupe_keys=["target"])
    job = await queue.enqueue("mail", {"target": 1})
    await hands.fail(await hands.claim_one("mail"), retry_in_ms=60_000)
    assert (await queue.enqueue("mail", {"target": 1})).id == job.id


async def test_a_requeued_job_takes_its_dedupe_key_back_or_is_refused(queue: Queue, hands: Hands) -> None:
    queue.register("mail", lambda: None, dedupe_keys=["target"])
    job = await queue.enqueue("mail", {"target": 1})
    await queue.cancel(job.id)
    await queue.requeue(job.id)
    assert (await queue.enqueue("mail", {"target": 1})).id == job.id
    await queue.cancel(job.id)
    other = await queue.enqueue("mail", {"target": 1})
    with pytest.raises(WrongState, match="same dedupe keys"):
        await queue.requeue(job.id)
    assert await hands.claimable("mail") == [other.id]


# -- not repeatable ----------------------------------------------------------------------------------------------


async def test_what_is_not_repeatable_completes_once_for_its_keys(queue: Queue, hands: Hands) -> None:
    queue.register("welcome", lambda: None, dedupe_keys=["user"], repeatable=False)
    job = await queue.enqueue("welcome", {"user": 1})
    assert (await queue.enqueue("welcome", {"user": 1})).id == job.id
    await hands.do(job)
    with pytest.raises(NotRepeatable, match="welcome is not repeatable") as refused:
        await queue.enqueue("welcome", {"user": 1})
    assert refused.value.data["jobId"] == job.id
    assert not (await queue.enqueue("welcome", {"user": 2})).deduplicated


async def test_what_is_not_repeatable_may_be_tried_again_until_it_completed(queue: Queue, hands: Hands) -> None:
    queue.register("welcome", lambda: None, dedupe_keys=["user"], repeatable=False)
    await queue.enqueue("welcome", {"user": 1})
    await hands.fail(await hands.claim_one("welcome"))
    second = await queue.enqueue("welcome", {"user": 1})
    assert not second.deduplicated
    await hands.do(second)
    with pytest.raises(NotRepeatable):
        await queue.enqueue_many("welcome", [{"user": 3}, {"user": 1}])
    assert await queue.count(status="pending") == 0


async def test_a_deleted_job_may_be_repeated(queue: Queue, hands: Hands) -> None:
    queue.register("welcome", lambda: None, dedupe_keys=["user"], repeatable=False)
    job = await queue.enqueue("welcome", {"user": 1})
    await hands.do(job)
    await queue.delete(job.id, force=True)
    assert not (await queue.enqueue("welcome", {"user": 1})).deduplicated


async def test_a_null_is_a_key_like_any_other(queue: Queue) -> None:
    queue.register("mail", lambda: None, idempotency_key="input.to", dedupe_keys=["input.to"])
    null, text = await queue.enqueue("mail", {"to": None}), await queue.enqueue("mail", {"to": "null"})
    assert null.id != text.id
    assert (await queue.enqueue("mail", {"to": None})).id == null.id
