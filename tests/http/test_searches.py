"""Expensive searches: stopped in time, without delaying other callers."""

import asyncio
from typing import Any

import pytest

from tests.http.api import Api, failure
from treadle.insights import lists
from treadle.queue import JobRequest
from treadle.testing.contract.looking import SLOW

LONG = {"x": "a" * 200_000}


async def fill(api: Api, count: int = 60) -> None:
    await api.queue.enqueue_many([JobRequest("mail", LONG, {}) for _ in range(count)])


async def test_a_slow_filter_is_refused_and_says_what_to_narrow(api: Api) -> None:
    await fill(api)
    answer = await api.get("/api/jobs", params={"filter": SLOW})
    assert failure(answer) == (400, "query_too_slow")
    assert "narrow it by topic" in answer.json()["message"]
    bulk = {"action": "cancel", "filter": SLOW, "dryRun": True}
    assert failure(await api.post("/api/jobs/bulk", bulk)) == (400, "query_too_slow")
    await api.rules(manage_rule=SLOW)
    assert failure(await api.get("/api/jobs/stats", as_="ann")) == (400, "query_too_slow")


async def test_no_caller_waits_for_anothers_slow_filters(api: Api) -> None:
    await fill(api)
    await api.rules(enqueue_rule="@request.auth.id != ''", manage_rule="@request.auth.id != ''")
    slow = [asyncio.create_task(api.get("/api/jobs", params={"filter": SLOW}, as_="ann")) for _ in range(4)]
    body = {"identity": "bob@example.com", "password": "correct horse"}
    rounds = 0  # of everything that others ask for, while the slow ones are still running
    while True:
        for call in (
            api.get("/api/health"),
            api.post("/api/collections/users/auth-with-password", body, as_=None),
            api.post("/api/jobs/enqueue", {"topic": "other"}, as_="bob"),
            api.post("/api/workers/claim", {"workerId": "w", "topics": ["other"]}),
            api.get("/api/jobs?topic=other", as_="bob"),
            api.get("/api/jobs/stats", as_="bob"),
        ):
            answer = await call
            assert answer.status_code == 200, answer.text
        if all(task.done() for task in slow):
            break
        rounds += 1
    assert rounds
    assert {failure(task.result()) for task in slow} == {(400, "query_too_slow")}


@pytest.mark.parametrize(
    "filter",
    [
        " || ".join(f"payload.p{i} = {i}" for i in range(31)),
        f"lastError ~ '{'x' * 201}'",
        " || ".join(f"payload.x ~ '{i}{'x' * 180}'" for i in range(3)),
    ],
)
async def test_what_would_cost_too_much_is_refused_before_it_is_asked(sqlite_api: Api, filter: str) -> None:
    answer = await sqlite_api.get("/api/jobs", params={"filter": filter})
    assert failure(answer) == (400, "invalid_filter")


async def test_a_filter_over_payloads_says_how_far_it_looked(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(lists, "NEWEST", 3)
    ids = [(await api.enqueue(payload={"i": i % 2}))["id"] for i in range(6)]
    for query, wanted, searched in (
        ({"filter": "payload.i = 1"}, [5, 3], 3),
        ({"q": "payload.i:1"}, [5, 3], 3),
        ({"filter": "payload.i = 1", "skipTotal": "true"}, [5, 3], 3),
        ({"filter": "topic = 'mail'"}, [5, 4, 3, 2, 1, 0], None),
        ({"filter": f"payload.i = 1 && id = '{ids[1]}'"}, [1], None),
    ):
        page = (await api.get("/api/jobs", params=query)).json()
        assert [job["id"] for job in page["items"]] == [ids[i] for i in wanted], query
        assert page["searched"] == searched, query
    # What is to be changed is looked for everywhere.
    answer = await api.post("/api/jobs/bulk", {"action": "cancel", "filter": "payload.i = 1"})
    assert answer.json()["changed"] == 3


async def test_jobs_that_fail_again_immediately_do_not_end_a_bulk_change(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr("treadle.queue.bulk.BATCH", 10)
    jobs = await api.queue.enqueue_many("a", [{}] * 55)
    for claimed in await api.hands.claim("a"):
        await api.hands.fail(claimed)
    again = api.queue.requeue_many

    async def fail_again(ids: Any, **options: Any) -> Any:
        answers = await again(ids, **options)
        for claimed in await api.hands.claim("a"):
            await api.hands.fail(claimed)
        return answers

    monkeypatch.setattr(api.queue, "requeue_many", fail_again)
    body = {"action": "requeue", "filter": "topic = 'a'"}
    assert (await api.post("/api/jobs/bulk", {**body, "dryRun": True})).json()["matched"] == 55
    done = (await api.post("/api/jobs/bulk", body)).json()
    assert (done["matched"], done["changed"], done["refused"]) == (55, 55, 0)
    events = await api.queue.events(jobs[0].id)
    assert [event.type for event in events].count("job:requeued") == 1


async def test_a_bulk_change_as_of_a_moment(api: Api) -> None:
    old = new = await api.enqueue()
    while new["createdAt"] == old["createdAt"]:
        new = await api.enqueue("later")
    body = {"action": "cancel", "filter": "priority = 50", "asOf": old["createdAt"]}
    assert (await api.post("/api/jobs/bulk", body)).json()["changed"] == 1
    assert (await api.get(f"/api/jobs/{new['id']}")).json()["status"] == "pending"
