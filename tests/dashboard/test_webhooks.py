"""The webhooks page, and a job's own deliveries."""

import re
from typing import Any

from tests.dashboard.visitor import Visitor
from tests.http.test_webhooks import OK, URL, age
from treadle.model.webhooks import Delivered, DisableEndpoint, GaveUp, SettledDelivery, Try, TryAgain, Verdict

BROKEN = Try(503, None, 212, '{"error":"<b>maintenance</b>"}')


async def ended(visitor: Visitor, **options: Any) -> str:
    job = await visitor.queue.enqueue("mail", {}, **options)
    await visitor.hands.complete(await visitor.hands.claim_one("mail"))
    return job.id


async def sent(visitor: Visitor, verdict: Verdict, answer: Try = OK) -> None:
    store = visitor.queue.store
    claim = await store.claim_deliveries("test", 60_000)
    await store.settle_deliveries([SettledDelivery(one, answer, verdict) for one in claim.deliveries])


async def test_without_endpoints_the_page_teaches(visitor: Visitor) -> None:
    assert "No webhooks yet" in await visitor.text("/_/webhooks")


async def test_an_endpoint_is_made_edited_and_deleted(visitor: Visitor) -> None:
    made = await visitor.post("/_/new-webhook", url=URL, id="ops", topics="mail, news", events="job:failed")
    assert made.status_code == 200
    secret = re.search(r"whsec_[A-Za-z0-9+/=]+", made.text)
    assert secret
    text = await visitor.text("/_/webhooks")
    assert secret[0] not in text
    assert "failed" in text
    assert "mail, news" in text
    one = (await visitor.queue.webhooks.get("ops")).endpoint
    assert (one.events, one.topics, one.version) == (("job:failed",), ("mail", "news"), 1)
    fields = {"url": URL, "topics": "", "description": "On call", "events": "job:expired"}
    assert (await visitor.post("/_/webhooks/ops/edit", version="1", **fields)).status_code == 303
    assert "On call" in await visitor.text("/_/webhooks")
    stale = await visitor.post("/_/webhooks/ops/edit", version="1", **fields)
    assert stale.status_code == 409
    assert "is at version 2" in stale.text
    assert (await visitor.post("/_/webhooks/ops/disable")).status_code == 303
    assert "switched off" in await visitor.text("/_/webhooks")
    await visitor.post("/_/webhooks/ops/enable")
    assert (await visitor.queue.webhooks.get("ops")).endpoint.enabled
    assert "Delete ops?" in await visitor.text("/_/webhooks/ops/delete")
    await visitor.post("/_/webhooks/ops/delete")
    assert await visitor.queue.webhooks.list() == []


async def test_bad_input_keeps_what_was_typed(sqlite_visitor: Visitor) -> None:
    for fields, problem in (
        ({"url": "https://10.0.0.7/"}, "not a public address"),
        ({"url": URL, "topics": "../x"}, "is not a topic"),
        ({"url": URL, "id": "No"}, "lower-case"),
    ):
        answer = await sqlite_visitor.post("/_/new-webhook", events="job:failed", **fields)
        assert answer.status_code == 400
        assert problem in answer.text
        assert fields["url"] in answer.text
    none = await sqlite_visitor.post("/_/new-webhook", url=URL)
    assert none.status_code == 400
    assert "at least one" in none.text
    assert await sqlite_visitor.queue.webhooks.list() == []


async def test_deliveries_with_their_attempts(visitor: Visitor) -> None:
    await visitor.queue.webhooks.create(URL, id="ops")
    await age(visitor.queue)
    id = await ended(visitor)
    text = await visitor.text("/_/webhooks")
    assert "job:completed" in text
    assert "sent now" in text
    await sent(visitor, TryAgain(await visitor.queue.store.now() + 600_000), BROKEN)
    (delivery,) = await visitor.queue.webhooks.deliveries("ops")
    page = await visitor.get(f"/_/webhooks?open=ops&delivery={delivery.id}")
    assert "<b>maintenance" not in page.text
    assert "&lt;b&gt;maintenance" in page.text
    assert "503" in page.text
    assert "try 1 of 8" in page.text
    assert delivery.webhook_id in page.text
    assert "It has failed since" in page.text
    sent_body = await visitor.get(f"/_/webhooks/ops/deliveries/{delivery.id}/body")
    assert sent_body.json()["data"]["job"]["id"] == id
    assert "503" in await visitor.text(f"/_/jobs/{id}")
    assert "No deliveries" in await visitor.text("/_/webhooks?open=ops&status=delivered")


async def test_sending_again(visitor: Visitor) -> None:
    await visitor.queue.webhooks.create(URL, id="ops")
    await age(visitor.queue)
    await ended(visitor)
    await sent(visitor, GaveUp(), BROKEN)
    (delivery,) = await visitor.queue.webhooks.deliveries("ops")
    assert "given up" in await visitor.text("/_/webhooks")
    await visitor.post(f"/_/webhooks/ops/deliveries/{delivery.id}/redeliver")
    await sent(visitor, Delivered())
    assert "healthy" in await visitor.text("/_/webhooks")
    assert "Send everything again?" in await visitor.text("/_/webhooks/ops/since")
    answer = await visitor.post("/_/webhooks/ops/since", since="2h", which="undelivered")
    assert answer.status_code == 303
    assert (await visitor.queue.webhooks.deliveries("ops"))[0].status.value == "delivered"
    await visitor.post("/_/webhooks/ops/since", since="2h", which="all")
    assert (await visitor.queue.webhooks.deliveries("ops"))[0].status.value == "pending"
    bad = await visitor.post("/_/webhooks/ops/since", since="yesterday")
    assert bad.status_code == 400


async def test_it_says_why_an_endpoint_is_off(visitor: Visitor) -> None:
    await visitor.queue.webhooks.create(URL, id="ops")
    await age(visitor.queue)
    await ended(visitor)
    await sent(visitor, DisableEndpoint("it answered 410 Gone"), Try(410))
    text = await visitor.text("/_/webhooks")
    assert "It was switched off: it answered 410 Gone." in text
    assert "1 switched off" in text
    assert "Webhook ops was switched off" in await visitor.text("/_/")


async def test_a_rotated_secret_is_shown_once(visitor: Visitor) -> None:
    await visitor.queue.webhooks.create(URL, id="ops")
    assert "both sign" in await visitor.text("/_/webhooks/ops/rotate")
    rotated = await visitor.post("/_/webhooks/ops/rotate", keep="24h")
    one = (await visitor.queue.webhooks.get("ops")).endpoint
    assert one.secret
    assert one.secret in rotated.text
    text = await visitor.text("/_/webhooks")
    assert one.secret not in text
    assert "and the old one until" in text


async def test_a_job_with_its_own_url(sqlite_visitor: Visitor) -> None:
    id = await ended(sqlite_visitor, webhook_url=URL)
    assert "the job's own URL" in await sqlite_visitor.text(f"/_/jobs/{id}")
    plain = await ended(sqlite_visitor)
    assert "the job's own URL" not in await sqlite_visitor.text(f"/_/jobs/{plain}")
