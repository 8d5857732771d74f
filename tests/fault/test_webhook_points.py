"""kill -9 around a webhook: when it is stored with its event, taken, sent, and written down.

A delivery is never lost and never under way twice at once; if it arrives again, then with the same id.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fault.crash import Crash
from tests.fault.crew import Crew
from tests.fault.handlers import make_queue
from tests.fault.journal import Pen
from tests.fault.scale import scaled
from tests.fault.test_named_points import crashes
from tests.waiting import for_ever, until
from tests.webhooks.receiver import RECEIVED, Received, Receiver
from treadle import Queue
from treadle.model.webhooks import Delivery, DeliveryQuery, DeliveryStatus

TRIALS = scaled(1, 100)
LEASE = "700ms"


@pytest.fixture
async def queue(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    monkeypatch.setenv("TREADLE_WEBHOOK_ALLOW", "127.0.0.1")
    async with make_queue(crew.url, Pen(crew.journal.path, "client")) as queue:
        yield queue


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


class OneAtATime:
    """How a receiver answers, and whether a delivery was ever under way twice at once."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.twice_at_once: set[str] = set()

    async def __call__(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self.open[request.id] += 1
        if self.open[request.id] > 1:
            self.twice_at_once.add(request.id)
        await asyncio.sleep(0.02)  # a receiver that has something to do
        self.open[request.id] -= 1
        await RECEIVED(request, writer)


async def deliveries(queue: Queue, id: str) -> list[Delivery]:
    return list(await queue.store.deliveries(DeliveryQuery(job_id=id)))


async def hooked(queue: Queue, url: str) -> str:
    return (await queue.enqueue("quick", {}, webhook_url=url)).id


async def all_delivered(queue: Queue, ids: list[str]) -> bool:
    for id in ids:
        (one,) = await deliveries(queue, id)
        if one.status is not DeliveryStatus.DELIVERED:
            return False
    return True


@pytest.mark.parametrize("point", ["take", "sent"])
async def test_a_sender_that_dies_loses_nothing(crew: Crew, queue: Queue, receiver: Receiver, point: str) -> None:
    """Fault 10."""
    receiver.answer = one_at_a_time = OneAtATime()
    ids: list[str] = []
    for crash in crashes(point, TRIALS):
        ids.append(await hooked(queue, receiver.url))
        await queue.cancel(ids[-1])
        hand = crew.hire("send", crash=crash, lease=LEASE)
        assert await hand.gone() == -9, hand.tail()
        # Or the next to die would have two in its hands.
        await _recovered(crew, queue, ids)
    assert not one_at_a_time.twice_at_once
    await _same_ids(queue, receiver, ids)


async def _recovered(crew: Crew, queue: Queue, ids: list[str]) -> None:
    healthy = crew.hire("send", lease=LEASE)
    await until(lambda: all_delivered(queue, ids), 60, healthy.tail)
    healthy.kill()
    await healthy.gone()


async def _same_ids(queue: Queue, receiver: Receiver, ids: list[str]) -> None:
    """Each job had one delivery, which arrived once or twice under the id that it was stored with."""
    stored = {(await deliveries(queue, id))[0].webhook_id: id for id in ids}
    arrived = Counter(request.id for request in receiver.received)
    assert arrived.keys() == stored.keys()
    assert set(arrived.values()) <= {1, 2}
    for request in receiver.received:
        assert request.json["data"]["job"]["id"] == stored[request.id]


async def test_a_sender_that_dies_while_it_sends_loses_nothing(crew: Crew, queue: Queue, receiver: Receiver) -> None:
    async def stall(request: Received, writer: asyncio.StreamWriter) -> None:
        await for_ever()

    ids: list[str] = []
    for _ in range(TRIALS):
        receiver.answer = stall
        ids.append(await hooked(queue, receiver.url))
        await queue.cancel(ids[-1])
        hand = crew.hire("send", lease="5s")
        await until(lambda: ids[-1] in {request.json["data"]["job"]["id"] for request in receiver.received})
        hand.kill()
        await hand.gone()
        receiver.answer = RECEIVED
        await _recovered(crew, queue, ids)
    await _same_ids(queue, receiver, ids)


async def test_a_delivery_is_stored_with_its_event_or_not_at_all(crew: Crew, queue: Queue, receiver: Receiver) -> None:
    for crash in crashes("offer", TRIALS):
        id = await hooked(queue, receiver.url)
        hand = crew.hire("cancel", crash=crash, job=id)
        assert await hand.gone() == -9, hand.tail()
        status = (await queue.get(id)).status
        found = await deliveries(queue, id)
        assert status in _expected(crash)
        assert [one.event for one in found] == (["job:cancelled"] if status == "cancelled" else [])
        assert (await queue.get(id)).webhook_sent is (False if found else None)


def _expected(crash: Crash) -> Any:
    return {"before": ["pending"], "during": ["pending", "cancelled"], "after": ["cancelled"]}[crash.moment]
