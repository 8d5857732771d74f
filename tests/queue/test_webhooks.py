"""Webhooks in Python: who is told, and what the environment says."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.test_webhooks import OK, URL, age
from tests.queue.hands import Hands
from tests.queue.test_stream import listening
from treadle import InvalidInput, Queue
from treadle.model.errors import DeliveryNotFound, EndpointNotFound, VersionConflict
from treadle.model.webhooks import (
    QUEUE_ENDPOINT,
    WEBHOOK_EVENTS,
    Delivered,
    DeliveryStatus,
    GaveUp,
    SettledDelivery,
    Try,
    TryAgain,
    Verdict,
)
from treadle.queue import webhooks

OTHER = "https://example.org/other"


async def sent(queue: Queue, verdict: Verdict, answer: Try = OK) -> list[str | None]:
    """Settle what is to be sent; to where."""
    claim = await queue.store.claim_deliveries("test", 60_000)
    await queue.store.settle_deliveries([SettledDelivery(one, answer, verdict) for one in claim.deliveries])
    return [one.url for one in claim.deliveries]


async def test_an_endpoint_is_made_changed_and_deleted(queue: Queue) -> None:
    made = await queue.webhooks.create(URL, id="ops", description="On call")
    assert (made.endpoint.url, made.endpoint.events) == (URL, tuple(WEBHOOK_EVENTS))
    assert made.secret
    assert made.secret not in repr(made.endpoint)
    changed = await queue.webhooks.update("ops", version=1, events=["job:expired", "job:failed"])
    assert changed.endpoint.events == ("job:failed", "job:expired")
    with pytest.raises(VersionConflict):
        await queue.webhooks.update("ops", version=1, enabled=False)
    assert (await queue.webhooks.update("ops", description=changed.endpoint.description)).endpoint.version == 2
    with pytest.raises(VersionConflict):
        await queue.webhooks.create(URL, id="ops")
    await queue.webhooks.delete("ops")
    for call in (queue.webhooks.get("ops"), queue.webhooks.delete("ops"), queue.webhooks.test("ops")):
        with pytest.raises(EndpointNotFound):
            await call
    with pytest.raises(DeliveryNotFound):
        await queue.webhooks.delivery("ops", 1)


async def test_both_secrets_sign_during_a_rotation(queue: Queue) -> None:
    made = await queue.webhooks.create(URL, id="ops")
    rotated = await queue.webhooks.rotate("ops", keep="1h")
    endpoint, now = rotated.endpoint, await queue.store.now()
    assert endpoint.secrets(now) == (rotated.secret, made.secret)
    assert endpoint.secrets(now + 3_600_001) == (rotated.secret,)
    at_once = await queue.webhooks.rotate("ops", keep=0)
    assert at_once.endpoint.secrets(now) == (at_once.secret,)


async def test_changes_at_the_same_time_are_all_kept(queue: Queue) -> None:
    await queue.webhooks.create(URL, id="ops")
    changes: list[Any] = [{"description": "a"}, {"enabled": False}, {"topics": ["mail"]}, {"events": ["job:failed"]}]
    await asyncio.gather(*(queue.webhooks.update("ops", **one) for one in changes))
    one = (await queue.webhooks.get("ops")).endpoint
    assert (one.description, one.enabled, one.topics, one.events) == ("a", False, ("mail",), ("job:failed",))
    assert one.version == 5


async def test_what_it_failed_before_does_not_count_after_a_switch(queue: Queue, hands: Hands) -> None:
    await queue.webhooks.create(URL, id="ops")
    await age(queue)
    await hands.do(await queue.enqueue("mail"))
    await sent(queue, TryAgain(0), Try(500))
    assert (await queue.webhooks.get("ops")).state.failing_since_ms is not None
    await queue.webhooks.update("ops", enabled=False)
    assert (await queue.webhooks.update("ops", enabled=True)).state.failing_since_ms is None
    assert (await queue.webhooks.get("ops")).state.failing_since_ms is None


async def test_a_job_names_its_url_in_python(queue: Queue, hands: Hands) -> None:
    job = await queue.enqueue("mail", {}, webhook_url=URL)
    assert (job.webhook_url, job.webhook_sent) == (URL, None)
    await hands.do(job)
    assert (await queue.get(job.id)).webhook_sent is False
    assert await sent(queue, Delivered()) == [URL]
    assert (await queue.get(job.id)).webhook_sent is True
    (delivery,) = await queue.webhooks.deliveries(job_id=job.id)
    assert (delivery.endpoint, delivery.status) == (None, DeliveryStatus.DELIVERED)
    found = await queue.list(filter="webhookSent = true && webhookUrl ~ 'example.com'")
    assert [one.id for one in found] == [job.id]


@pytest.mark.parametrize("url", ["", "nonsense", "http://example.com", "https://127.0.0.1", 7])
async def test_a_bad_url_is_refused(sqlite_url: str, url: Any) -> None:
    async with Queue(sqlite_url) as queue:
        with pytest.raises(InvalidInput) as refused:
            await queue.enqueue("mail", {}, webhook_url=url)
        assert refused.value.data["field"] == "webhook_url"


async def test_the_queues_url_comes_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_WEBHOOK_URL", URL)
    async with Queue(url) as queue:
        hands = Hands(queue)
        await hands.do(await queue.enqueue("mail"))
        assert await sent(queue, Delivered()) == [URL]
        await hands.do(await queue.enqueue("mail", {}, webhook_url=OTHER))
        assert await sent(queue, Delivered()) == [OTHER]
    monkeypatch.delenv("TREADLE_WEBHOOK_URL")
    async with Queue(url) as elsewhere:
        hands = Hands(elsewhere)
        await hands.do(await elsewhere.enqueue("mail"))
        assert await sent(elsewhere, Delivered()) == [URL], "every process follows it"
    monkeypatch.setenv("TREADLE_WEBHOOK_URL", OTHER)
    async with Queue(url) as later:
        await later.webhooks.list()
        await later.enqueue("mail")
        assert (await later.webhooks.get(QUEUE_ENDPOINT)).endpoint.url == OTHER
        await later.webhooks.update(QUEUE_ENDPOINT, enabled=False)
    async with Queue(url) as last:
        await last.enqueue("mail")
        assert not (await last.webhooks.get(QUEUE_ENDPOINT)).endpoint.enabled, "an operator's switch stays"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEBHOOK_URL", "http://example.com"),
        ("WEBHOOK_ALLOW", "10.0.0.0/99"),
        ("WEBHOOK_HTTP", "perhaps"),
        ("WEBHOOK_SECRET", "whsec_x"),
    ],
)
async def test_a_bad_setting_names_itself(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"TREADLE_{name}", value)
    with pytest.raises(InvalidInput) as refused:
        Queue("sqlite:///nowhere.db")
    assert refused.value.data["field"] == name.lower()
    assert value not in str(refused.value) or not name.endswith("SECRET")


async def test_exempt_hosts_and_http(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    monkeypatch.setenv("TREADLE_WEBHOOK_ALLOW", "127.0.0.0/8, hooks.internal")
    async with Queue(sqlite_url) as queue:
        for url in ("http://127.0.0.1:9000/x", "http://hooks.internal/", "https://example.com"):
            await queue.webhooks.create(url)
        with pytest.raises(InvalidInput):
            await queue.webhooks.create("http://example.com/")


async def test_streams_tell_of_deliveries(queue: Queue, hands: Hands) -> None:
    collected = await listening(queue)
    job = await queue.enqueue("mail", {}, webhook_url=URL)
    await hands.do(job)
    await sent(queue, Delivered())
    await collected.told("enqueued", "started", "completed", "webhook:delivered")
    last = collected.events[-1]
    assert last.keys() == {"event", "at", "job"}
    assert (last["job"]["status"], last["job"]["webhookSent"]) == ("completed", True)
    (event,) = [one for one in await queue.events(job.id) if one.type == "job:webhook:delivered"]
    assert event.message == "job:completed to example.com:443: answered 200"


async def test_all_since_a_time_are_sent_again_the_oldest_first(
    queue: Queue, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MOST_AT_ONCE", 2)
    await queue.webhooks.create(URL, id="ops")
    await age(queue)
    jobs = [await queue.enqueue("mail") for _ in range(6)]
    for job in jobs[:2]:
        await hands.do(job)
    await sent(queue, Delivered())
    for job in jobs[2:]:
        await hands.do(job)
    await sent(queue, GaveUp(), Try(500))
    await queue.webhooks.test("ops", wait=0)
    await sent(queue, GaveUp(), Try(500))
    start = datetime.now(UTC) - timedelta(hours=1)
    assert await queue.webhooks.redeliver_since("ops", start, only_undelivered=True) == 4
    claim = await queue.store.claim_deliveries("test", 60_000, per_host=100)
    assert [one.job_id for one in claim.deliveries] == [job.id for job in jobs[2:]]
    assert await queue.webhooks.redeliver_since("ops", start) == 6
    assert await queue.webhooks.redeliver_since("ops", start + timedelta(hours=2)) == 0


def test_the_blocking_api_has_it_all(sqlite_url: str) -> None:
    with Queue(sqlite_url).sync as queue:
        queue.webhooks.create(URL, id="ops")
        assert [one.id for one in queue.webhooks.list()] == ["ops"]
        delivery = queue.webhooks.test("ops", wait="0s")
        assert queue.webhooks.deliveries("ops") == [delivery._replace(body=None)]
        assert queue.webhooks.redeliver("ops", delivery.id).webhook_id == delivery.webhook_id
