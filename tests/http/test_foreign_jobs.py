"""Keys and limits join the jobs of many users: nobody learns of, or cancels, a job that is not theirs."""

from typing import Any

import pytest

from tests.http.api import Api, failure
from treadle import Concurrency, Queue

SIGNED_IN = "@request.auth.id != ''"
OWN = "createdBy = @request.auth.id"
BODY = {"payload": {"order": 7}}


def register(queue: Queue, topic: str, **options: Any) -> None:
    queue.register(topic, lambda payload: None, **options)


@pytest.fixture
async def shared(api: Api) -> Api:
    """Under rules that are not public; the keys of these topics are the same for everybody."""
    register(api.queue, "replaced", concurrency=Concurrency("replace_same_scope", keys=["payload.order"]))
    register(api.queue, "rejected", concurrency=Concurrency("reject_same_scope", keys=["payload.order"]))
    register(api.queue, "queued", concurrency=Concurrency("queue_same_scope", keys=["payload.order"]))
    register(api.queue, "deduped", dedupe_keys=["payload.order"])
    register(api.queue, "once", dedupe_keys=["payload.order"], repeatable=False)
    await api.queue.save_templates()
    await api.rules(enqueue_rule=SIGNED_IN, manage_rule=OWN)
    return api


async def enqueue(api: Api, topic: str, who: str, **body: Any) -> Any:
    return await api.post("/api/jobs/enqueue", {"topic": topic, **BODY, **body}, as_=who)


async def test_a_new_job_replaces_no_job_of_another_user(shared: Api) -> None:
    hers = (await enqueue(shared, "replaced", "ann")).json()
    refused = await enqueue(shared, "replaced", "bob")
    assert failure(refused) == (409, "concurrency_rejected")
    assert hers["id"] not in refused.text
    many = await shared.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "replaced", **BODY}] * 2}, as_="bob")
    assert failure(many) == (409, "concurrency_rejected")
    assert (await shared.queue.get(hers["id"])).status == "pending"
    again = (await enqueue(shared, "replaced", "ann")).json()
    assert (await shared.queue.get(hers["id"])).status == "cancelled"
    by_root = (await enqueue(shared, "replaced", "root")).json()
    assert (await shared.queue.get(again["id"])).status == "cancelled"
    assert (await shared.queue.get(by_root["id"])).status == "pending"


async def test_a_batch_replaces_its_own_jobs(shared: Api) -> None:
    many = await shared.post("/api/jobs/enqueue-many", {"jobs": [{"topic": "replaced", **BODY}] * 3}, as_="ann")
    assert many.status_code == 200, many.text
    ids = [job["id"] for job in many.json()["items"]]
    assert [(await shared.queue.get(id)).status for id in ids] == ["cancelled", "cancelled", "pending"]


async def test_a_requeue_replaces_no_job_of_another_user(shared: Api) -> None:
    his = (await enqueue(shared, "replaced", "bob")).json()
    await shared.post(f"/api/jobs/{his['id']}/cancel", as_="bob")
    hers = (await enqueue(shared, "replaced", "ann")).json()
    for query in ("", "?dryRun=true"):
        refused = await shared.post(f"/api/jobs/{his['id']}/requeue{query}", as_="bob")
        assert failure(refused) == (409, "concurrency_rejected")
        assert hers["id"] not in refused.text
    bulk = await shared.post("/api/jobs/bulk", {"action": "requeue", "filter": "topic = 'replaced'"}, as_="bob")
    assert (bulk.json()["changed"], bulk.json()["refused"]) == (0, 1)
    assert (await shared.queue.get(hers["id"])).status == "pending"
    assert (await shared.post(f"/api/jobs/{his['id']}/requeue")).status_code == 200  # as the superuser
    assert (await shared.queue.get(hers["id"])).status == "cancelled"


@pytest.mark.parametrize("topic", ["rejected", "once"])
async def test_a_refusal_names_no_job_of_another_user(shared: Api, topic: str) -> None:
    hers = (await enqueue(shared, topic, "ann")).json()
    if topic == "once":
        await shared.hands.do(await shared.queue.get(hers["id"]))
    code = {"rejected": "concurrency_rejected", "once": "not_repeatable"}[topic]
    for who, told in (("bob", False), ("ann", True), ("root", True)):
        refused = await enqueue(shared, topic, who)
        assert failure(refused) == (409, code)
        assert ("jobId" in refused.json()["data"], hers["id"] in refused.text) == (told, told)


async def test_a_reused_key_names_no_job_of_another_caller(shared: Api) -> None:
    made = await shared.queue.enqueue("mail", {"a": 1}, idempotency_key="k")
    key = await shared.key("enqueue")
    for who, told in ((key, False), ("root", True)):
        refused = await shared.post(
            "/api/jobs/enqueue", {"topic": "mail", "payload": {"a": 2}, "idempotencyKey": "k"}, as_=who
        )
        assert failure(refused) == (422, "idempotency_key_reused")
        assert (made.id in refused.text) is told


async def test_of_a_foreign_job_that_stands_for_the_new_one_only_that_it_is_there(shared: Api) -> None:
    hers = (await enqueue(shared, "deduped", "ann")).json()
    answer = await enqueue(shared, "deduped", "bob")
    assert answer.status_code == 200
    known = {name: value for name, value in answer.json().items() if value is not None}
    assert (known, answer.json().keys()) == ({"deduplicated": True}, hers.keys())
    assert (await enqueue(shared, "deduped", "ann")).json()["id"] == hers["id"]


async def test_why_names_no_job_of_another_user(shared: Api) -> None:
    hers = (await enqueue(shared, "queued", "ann")).json()
    his = (await enqueue(shared, "queued", "bob")).json()
    await shared.hands.claim_one("queued")
    path = f"/api/jobs/{his['id']}/why"
    reasons = " ".join((await shared.get(path, as_="bob")).json()["reasons"])
    assert "it waits for another job" in reasons
    assert hers["id"] not in reasons
    assert hers["id"] in " ".join((await shared.get(path)).json()["reasons"])


async def test_under_a_public_rule_everybody_sees_and_replaces_every_job(shared: Api) -> None:
    await shared.rules(manage_rule="true")
    hers = (await enqueue(shared, "replaced", "ann")).json()
    assert (await enqueue(shared, "replaced", "bob")).status_code == 200
    assert (await shared.queue.get(hers["id"])).status == "cancelled"
