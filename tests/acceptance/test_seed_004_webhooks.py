"""Seed 004: webhooks. On each store, with a real receiver and a running worker."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.acceptance.conftest import Start, Travel
from tests.waiting import ended, for_ever, in_status, until
from tests.webhooks.receiver import Receiver, answer
from treadle import Fail, Job, Queue, Retry
from treadle.model.webhooks import DeliveryStatus

SECRET = "shared secret"


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        monkeypatch.setenv("TREADLE_WEBHOOK_ALLOW", "127.0.0.0/8")
        monkeypatch.setenv("TREADLE_WEBHOOK_SECRET", SECRET)
        monkeypatch.setenv("TREADLE_WEBHOOK_URL", receiver.url)
        yield receiver


@pytest.fixture
async def hooked(receiver: Receiver, url: str) -> AsyncIterator[Queue]:
    """A queue whose webhooks go to the receiver."""
    async with Queue(url) as queue:
        yield queue


def told(receiver: Receiver, job: Job) -> list[str]:
    return [one.json["type"] for one in receiver.received if one.json["data"]["job"]["id"] == job.id]


async def test_which_events_trigger_a_webhook(hooked: Queue, receiver: Receiver, start: Start) -> None:
    @hooked.job(retry=Retry(2, backoff="fixed", delay="1ms"))
    async def work(payload: dict[str, Any]) -> None:
        if payload["how"] == "fails":
            raise Fail("no use")
        if payload["how"] == "retries":
            raise ConnectionError("perhaps later")
        if payload["how"] == "hangs":
            await for_ever()

    jobs = {how: await work.enqueue({"how": how}) for how in ("completes", "fails", "retries", "hangs")}
    await start(hooked)
    await in_status(hooked, jobs["hangs"], "processing")
    await jobs["hangs"].cancel()
    expected = {
        "completes": ["job:completed"],
        "fails": ["job:failed"],
        "retries": ["job:retrying", "job:failed"],
        "hangs": ["job:cancelled"],
    }
    await until(lambda: {how: sorted(told(receiver, job), reverse=True) for how, job in jobs.items()} == expected)


async def test_json_is_posted_to_the_url_of_the_queue_or_of_the_job(
    hooked: Queue, receiver: Receiver, start: Start
) -> None:
    @hooked.job
    async def work(payload: dict[str, Any]) -> int:
        return 7

    of_the_queue, own = await work.enqueue({"n": 1}), await work.options(webhook_url=f"{receiver.url}/own").enqueue({})
    await start(hooked)
    await until(lambda: len(receiver.received) == 2)
    targets = {one.json["data"]["job"]["id"]: one.target for one in receiver.received}
    assert targets == {of_the_queue.id: "/hook", own.id: "/hook/own"}
    (first,) = [one for one in receiver.received if one.target == "/hook"]
    assert first.headers["content-type"] == "application/json"
    assert first.json.keys() == {"type", "timestamp", "data"}
    assert first.json["data"].keys() == {"event", "at", "job"}
    assert (first.json["data"]["job"]["payload"], first.json["data"]["job"]["result"]) == ({"n": 1}, 7)


async def test_the_signature_is_the_hmac_of_the_body(hooked: Queue, receiver: Receiver, start: Start) -> None:
    hooked.register("work", lambda: None)
    await hooked.enqueue("work")
    await start(hooked)
    await until(lambda: receiver.received)
    (request,) = receiver.received
    expected = hmac.new(SECRET.encode(), request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-jobqueue-signature"] == f"sha256={expected}"


async def test_what_fails_is_tried_again_and_success_sets_the_mark(
    hooked: Queue, receiver: Receiver, start: Start, travel: Travel
) -> None:
    hooked.register("work", lambda: None)
    receiver.answer = answer(500, b"out of order")
    job = await hooked.enqueue("work")
    assert job.webhook_sent is None
    await start(hooked)
    await ended(hooked, job)

    async def tries() -> int:
        found = await hooked.webhooks.deliveries(job_id=job.id)
        return len(found[0].tries) if found else 0

    await until(lambda: is_so(tries(), 1))
    assert (await hooked.get(job.id)).webhook_sent is False
    receiver.answer = answer(200)
    await travel(10)
    await until(lambda: is_so(tries(), 2))
    assert (await hooked.get(job.id)).webhook_sent is True
    assert len({one.id for one in receiver.received}) == 1
    assert [event.type for event in await hooked.events(job.id)][-1] == "job:webhook:delivered"


async def is_so(counted: Any, expected: int) -> bool:
    return bool(await counted == expected)


async def test_retention_and_a_webhook_that_is_on_its_way(
    hooked: Queue, receiver: Receiver, start: Start, travel: Travel
) -> None:
    """The job stays as long as its webhook is still to be sent; deleted by hand meanwhile, nothing crashes."""
    hooked.register("work", lambda: None)
    arrived, go = asyncio.Event(), asyncio.Event()

    async def slow(request: Any, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await go.wait()
        await answer(200)(request, writer)

    receiver.answer = slow
    kept, deleted = await hooked.enqueue("work"), await hooked.enqueue("work")
    await start(hooked)
    await arrived.wait()
    await until(lambda: len(receiver.received) == 2)
    assert await hooked.store.prune(0) == 0
    await hooked.delete(deleted.id, force=True)
    go.set()

    async def delivered() -> bool:
        (found,) = await hooked.webhooks.deliveries(job_id=kept.id)
        return found.status is DeliveryStatus.DELIVERED

    await until(delivered)
    assert await hooked.store.prune(0) == 1
    receiver.answer = answer(200)
    after = await hooked.enqueue("work")
    await until(lambda: told(receiver, after))
