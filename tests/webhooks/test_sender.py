"""The leader's sender: what is stored arrives, once, and slow receivers hold up nobody else."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.faulty import FaultyQueue
from tests.waiting import for_ever, stays, until
from tests.webhooks.conftest import LOOPBACK
from tests.webhooks.receiver import SECRET, Received, Receiver, answer
from treadle import Queue
from treadle.maintenance import sender as sending
from treadle.maintenance.dispatcher import WebhookDispatcher
from treadle.maintenance.sender import Sender
from treadle.model.webhooks import (
    Delivery,
    DeliveryQuery,
    DeliveryStatus,
    Endpoint,
)
from treadle.policy import delivery_tries
from treadle.policy.saved_endpoint import KIND, body_of, endpoint_from
from treadle.queue.background import end, forever
from treadle.store.values import RecordWrite
from treadle.testing.workbench import new_job

pytestmark = pytest.mark.every_store

DELIVERED, FAILED = DeliveryStatus.DELIVERED, DeliveryStatus.FAILED
Start = Callable[..., Awaitable["Running"]]


class Running(Sender):
    """A sender that is being run."""

    task: asyncio.Task[None]


@pytest.fixture
async def queue(url: str) -> AsyncIterator[FaultyQueue]:
    async with FaultyQueue(url) as queue:
        yield queue


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start a sender; it runs until the end of the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(queue: Queue, name: str = "leader") -> Running:
            sender = Running(queue.store, name, lambda: WebhookDispatcher(allow=LOOPBACK, secret=SECRET, timeout="5s"))
            sender.task = asyncio.create_task(forever("sending", lambda: sender.step(leads=True), queue.store.outage))
            stack.push_async_callback(stop, sender)
            return sender

        yield start


async def stop(sender: Running) -> None:
    await end([sender.task])
    await sender.close()


async def jobs_with(queue: Queue, urls: Sequence[str]) -> list[str]:
    """Jobs that were cancelled, each with a webhook of its own."""
    jobs = [new_job(webhook_url=url) for url in urls]
    await queue.store.insert(jobs)
    for job in jobs:
        await queue.cancel(job.id)
    return [job.id for job in jobs]


async def job_with(queue: Queue, url: str) -> str:
    return (await jobs_with(queue, [url]))[0]


async def delivery_of(queue: Queue, id: str) -> Delivery:
    (one,) = await queue.store.deliveries(DeliveryQuery(job_id=id))
    return one


async def delivered(queue: Queue, id: str) -> Delivery:
    """Once it has arrived, and is written down."""

    async def look() -> Delivery | None:
        found = await queue.store.deliveries(DeliveryQuery(job_id=id))
        return next((one for one in found if one.status is DELIVERED), None)

    found: Delivery = await until(look)
    return found


async def tried(queue: Queue, id: str, times: int = 1) -> Delivery:
    async def look() -> Delivery | None:
        one = await delivery_of(queue, id)
        return one if len(one.tries) >= times else None

    found: Delivery = await until(look)
    return found


async def stall(request: Received, writer: asyncio.StreamWriter) -> None:
    await for_ever()


async def make_endpoint(queue: Queue, url: str, id: str = "queue") -> None:
    """The queue's own, which counts immediately."""
    await queue.store.write_records([RecordWrite(KIND, id, id, body_of(Endpoint(id, url)))])


async def endpoint_of(queue: Queue, id: str = "queue") -> Endpoint:
    (one,) = await queue.store.get_records([(KIND, id)])
    assert one
    return endpoint_from(id, one.body, one.version, one.created_at, one.updated_at)


async def test_what_is_stored_arrives_and_is_written_down(queue: Queue, start: Start, receiver: Receiver) -> None:
    await start(queue)
    id = await job_with(queue, receiver.url)
    one = await delivered(queue, id)
    (received,) = receiver.received
    assert received.id == one.webhook_id
    assert received.json["type"] == "job:cancelled"
    assert received.json["data"]["job"]["id"] == id
    assert [(answer.status, answer.error) for answer in one.tries] == [(204, None)]
    assert (await queue.get(id)).webhook_sent is True
    assert [event.type for event in await queue.events(id)][-1] == "job:webhook:delivered"


async def test_a_hint_is_enough(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks by the clock here: each delivery wakes the sender."""
    monkeypatch.setattr(sending, "LOOK_EVERY_S", 3_600.0)
    await start(queue)
    for _ in range(3):
        await delivered(queue, await job_with(queue, receiver.url))


async def test_a_flood_of_hints_costs_few_claims(queue: FaultyQueue, start: Start) -> None:
    """Jobs without webhooks end all the time."""
    running = await start(queue)
    await until(lambda: queue.faults.calls["claim_deliveries"])
    before, began = queue.faults.calls["claim_deliveries"], time.monotonic()
    for _ in range(300):
        running._hear("ended")
        await asyncio.sleep(0.001)  # hints come one by one
    passed = time.monotonic() - began
    assert queue.faults.calls["claim_deliveries"] - before <= passed / sending.LEAST_PAUSE_S + 2


async def test_without_hints_it_looks_now_and_then(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(sending, "HINTS", ())
    await start(queue)
    await delivered(queue, await job_with(queue, receiver.url))


async def test_a_failure_is_tried_again_with_the_same_id_and_a_new_time(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_tries, "DELAYS_MS", (50, 1_100, 50))
    receiver.answer = answer(500, b"not now")
    await start(queue)
    id = await job_with(queue, receiver.url)
    await tried(queue, id, 2)
    receiver.answer = answer(200)
    one = await delivered(queue, id)
    assert [(answer.status, answer.answer) for answer in one.tries] == [(500, "not now"), (500, "not now"), (200, "")]
    assert {request.id for request in receiver.received} == {one.webhook_id}
    times = [int(request.headers["webhook-timestamp"]) for request in receiver.received]
    assert times[0] < times[-1]


async def test_after_the_last_try_it_is_given_up(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_tries, "DELAYS_MS", (20, 20))
    monkeypatch.setattr(delivery_tries, "TRIES", 3)
    receiver.answer = answer(404)
    await start(queue)
    id = await job_with(queue, receiver.url)
    one = await tried(queue, id, 3)
    assert (one.status, len(receiver.received)) == (FAILED, 3)
    assert (await queue.get(id)).webhook_sent is False
    assert [event.type for event in await queue.events(id)][-1] == "job:webhook:failed"


async def test_410_disables_the_endpoint(
    queue: Queue, start: Start, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    await make_endpoint(queue, receiver.url)
    receiver.answer = answer(410)
    await start(queue)
    job = new_job()
    await queue.store.insert([job])
    await queue.cancel(job.id)
    await tried(queue, job.id)
    endpoint = await endpoint_of(queue)
    assert not endpoint.enabled
    assert "410 Gone" in (endpoint.disabled_reason or "")
    await until(lambda: "webhook endpoint queue is disabled: it answered 410 Gone" in caplog.text)


async def test_one_host_gets_four_at_once(queue: Queue, start: Start, receiver: Receiver) -> None:
    """Also when more were claimed for it, as for a quick one."""
    gate = asyncio.Event()

    async def wait(request: Received, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await answer(204)(request, writer)

    receiver.answer = wait
    ids = await jobs_with(queue, [receiver.url] * 30)
    await start(queue)
    await until(lambda: receiver.under_way == 4)
    await stays(lambda: receiver.under_way == 4, 0.3)
    gate.set()
    for id in ids:
        await delivered(queue, id)
    assert receiver.most_under_way == 4
    assert Counter(request.id for request in receiver.received).most_common(1)[0][1] == 1


async def test_slow_receivers_hold_up_no_quick_one(queue: Queue, start: Start, receiver: Receiver) -> None:
    """80 deliveries for 20 receivers that never answer, and 64 places."""
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(Receiver(stall)) for _ in range(20)]
        await jobs_with(queue, [one.url for one in slow for _ in range(4)])
        await start(queue)
        await until(lambda: all(one.received for one in slow))
        ids = await jobs_with(queue, [receiver.url] * 8)
        for id in ids:
            await delivered(queue, id)
        assert all(one.most_under_way <= 4 for one in slow)
        assert sum(one.most_under_way for one in slow) <= 64


async def test_several_senders_never_send_one_twice(url: str, queue: Queue, start: Start, receiver: Receiver) -> None:
    ids = await jobs_with(queue, [receiver.url] * 100)
    async with Queue(url) as second, Queue(url) as third:
        for place, one in enumerate((queue, second, third)):
            await start(one, f"sender {place}")
        for id in ids:
            await delivered(queue, id)
    assert Counter(request.id for request in receiver.received).most_common(1)[0][1] == 1


async def test_what_a_dead_sender_had_is_sent_when_its_lease_ends(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LOOK_EVERY_S", 0.1)
    id = await job_with(queue, receiver.url)
    (lost,) = (await queue.store.claim_deliveries("dead", 700)).deliveries
    await start(queue)
    await stays(lambda: not receiver.received, 0.3)
    assert (await delivered(queue, id)).webhook_id == lost.webhook_id == receiver.received[0].id


async def test_an_answer_that_cannot_be_written_is_written_later(
    queue: FaultyQueue, start: Start, receiver: Receiver
) -> None:
    """The database is away when the answer comes: nothing is sent a second time."""
    queue.faults.fail("settle_deliveries", 2)
    await start(queue)
    await delivered(queue, await job_with(queue, receiver.url))
    assert (len(receiver.received), queue.faults.calls["settle_deliveries"]) == (1, 3)


async def test_an_answer_whose_receipt_is_lost_is_written_once(
    queue: FaultyQueue, start: Start, receiver: Receiver
) -> None:
    queue.faults.fail("settle_deliveries", 1, lose_answer=True)
    await start(queue)
    one = await delivered(queue, await job_with(queue, receiver.url))
    await delivered(queue, await job_with(queue, receiver.url))
    assert (len(one.tries), len(receiver.received)) == (1, 2)


async def test_a_job_may_be_deleted_while_its_webhook_is_sent(queue: Queue, start: Start, receiver: Receiver) -> None:
    gate = asyncio.Event()

    async def wait(request: Received, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await answer(204)(request, writer)

    receiver.answer = wait
    await start(queue)
    id = await job_with(queue, receiver.url)
    await until(lambda: receiver.under_way)
    await queue.delete(id)
    gate.set()
    await delivered(queue, await job_with(queue, receiver.url))
    assert receiver.received[0].json["data"]["job"]["id"] == id


async def test_what_has_waited_too_long_is_left_to_the_next_claim(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BEGIN_WITHIN_S", -1.0)
    id = await job_with(queue, receiver.url)
    running = await start(queue)

    async def claimed() -> bool:
        return not (await queue.store.claim_deliveries("other", 1)).deliveries and not running.busy

    await until(claimed)
    assert (receiver.received, (await delivery_of(queue, id)).tries) == ([], [])


async def test_a_sender_that_does_not_lead_claims_nothing(queue: Queue, receiver: Receiver) -> None:
    id = await job_with(queue, receiver.url)
    sender = Sender(queue.store, "follower", lambda: WebhookDispatcher(allow=LOOPBACK))
    stepping = asyncio.create_task(sender.step(leads=False))
    await asyncio.sleep(0.2)  # time in which it would claim
    await end([stepping])
    await sender.close()
    assert (receiver.received, (await delivery_of(queue, id)).tries) == ([], [])


async def test_a_sender_that_stops_writes_the_answers_that_still_come(
    queue: Queue, start: Start, receiver: Receiver
) -> None:
    gate = asyncio.Event()

    async def wait(request: Received, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await answer(204)(request, writer)

    receiver.answer = wait
    sender = await start(queue)
    id = await job_with(queue, receiver.url)
    await until(lambda: receiver.under_way)
    closing = asyncio.create_task(stop(sender))
    await asyncio.sleep(0.05)  # it closes while a try is under way
    gate.set()
    await closing
    assert (await delivery_of(queue, id)).status is DELIVERED


async def test_a_sender_that_stops_does_not_wait_for_a_receiver_that_stalls(
    queue: Queue, start: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again by the next one, with the same id."""
    monkeypatch.setattr(sending, "FINISH_S", 0.1)
    monkeypatch.setattr(sending, "LEASE_MS", 500)
    monkeypatch.setattr(sending, "LOOK_EVERY_S", 0.1)
    receiver.answer = stall
    sender = await start(queue)
    id = await job_with(queue, receiver.url)
    await until(lambda: receiver.under_way)
    async with asyncio.timeout(2):
        await stop(sender)
    assert (await delivery_of(queue, id)).tries == []
    receiver.answer = answer(204)
    await start(queue)
    assert (await delivered(queue, id)).webhook_id == receiver.received[0].id == receiver.received[1].id


async def test_a_dispatcher_that_raises_is_a_failed_try(queue: Queue, receiver: Receiver) -> None:
    class Broken:
        async def send(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no luck")

        async def close(self) -> None: ...

    id = await job_with(queue, receiver.url)
    sender = Sender(queue.store, "leader", Broken)
    stepping = asyncio.create_task(forever("sending", lambda: sender.step(leads=True), queue.store.outage))
    one = await tried(queue, id)
    await end([stepping])
    await sender.close()
    assert one.tries[0].error == "RuntimeError: no luck"


async def test_a_url_that_is_no_longer_allowed_is_a_failed_try(queue: Queue, start: Start) -> None:
    await start(queue)
    for url, problem in {"http://10.1.2.3/hook": "not a public address", "http://8.8.8.8/": "use https"}.items():
        one = await tried(queue, await job_with(queue, url))
        assert problem in (one.tries[0].error or "")


async def test_hundreds_of_deliveries_arrive_once_each(queue: Queue, start: Start, receiver: Receiver) -> None:
    ids = await jobs_with(queue, [receiver.url] * 300)
    await start(queue)
    await until(lambda: len(receiver.received) >= len(ids))
    for id in ids:
        await delivered(queue, id)
    assert len(receiver.received) == len({request.id for request in receiver.received}) == len(ids)
    assert receiver.most_under_way <= 4
