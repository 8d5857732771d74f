"""Lists of large jobs: the database sends 8 MiB of payloads and results for a page, and no more."""

import asyncio
import json
from typing import Any

import pytest

from tests.http.api import Api
from treadle.store.sql.rows import job_from_row

KIB = 1024
MOST = 8 * KIB * KIB
BIG = {"x": "ab" * (500 * KIB)}


async def filled(api: Api, count: int = 12) -> list[str]:
    """Jobs of a megabyte, the newest first."""
    await api.rules(enqueue_rule="@request.auth.id != ''", manage_rule="createdBy = @request.auth.id")
    return [(await api.enqueue("mail", BIG, as_="ann"))["id"] for _ in range(count)][::-1]


async def test_a_list_has_all_rows_and_8_mib_of_payloads(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await filled(api)
    loaded: list[int] = []

    def noted(row: Any, *rest: Any) -> Any:
        loaded.append(len(row.payload or "") + len(row.result or ""))
        return job_from_row(row, *rest)

    monkeypatch.setattr("treadle.store.sql.store.job_from_row", noted)
    for query, order in (("", ids), ("&sort=createdAt", ids[::-1]), ("&sort=priority,-createdAt", ids)):
        loaded.clear()
        answer = await api.get(f"/api/jobs?limit=1000{query}", as_="ann")
        items = answer.json()["items"]
        assert [job["id"] for job in items] == order
        assert [job["payload"] == BIG for job in items] == [True] * 9 + [False] * 3
        assert [job.get("truncated", False) for job in items] == [False] * 9 + [True] * 3
        assert [(job["payload"], job["result"]) for job in items[9:]] == [(None, None)] * 3
        assert len(answer.content) < MOST + 1.2 * KIB * KIB
        assert sum(loaded) < MOST + 1.1 * KIB * KIB
    assert (await api.get(f"/api/jobs/{ids[-1]}", as_="ann")).json()["payload"] == BIG


async def test_results_count_too(api: Api) -> None:
    ids = []
    for _ in range(10):
        ids.append((await api.enqueue("mail", {"x": 1}))["id"])
        await api.hands.complete(await api.hands.claim_one("mail"), BIG)
    items = (await api.get("/api/jobs")).json()["items"]
    assert [job["result"] == BIG for job in items] == [True] * 9 + [False]
    assert (items[-1]["payload"], items[-1]["truncated"], items[-1]["status"]) == (None, True, "completed")


async def test_jobs_listed_in_python_say_so(api: Api) -> None:
    ids = await filled(api)
    jobs = await api.queue.list(limit=1000)
    assert [job.id for job in jobs if job.truncated] == ids[9:]
    assert (jobs[-1].payload, jobs[-1].result_value) == ({}, None)
    assert not (await api.queue.get(ids[-1])).truncated


async def test_a_snapshot_of_large_jobs_begins_with_the_newest(api: Api) -> None:
    ids = await filled(api, 10)
    feed = api.queue.stream(snapshot=True)
    first = await asyncio.wait_for(anext(feed), 30)
    await feed.aclose()
    assert first["event"] == "snapshot"
    assert [job["id"] for job in first["jobs"]] == ids[: len(first["jobs"])]


async def test_events_are_paged(api: Api) -> None:
    id = (await api.enqueue("mail"))["id"]
    for i in range(5):
        await api.post(f"/api/jobs/{id}/cancel")
        await api.post(f"/api/jobs/{id}/requeue", {"payload": {"i": i}})
    told = (await api.get(f"/api/jobs/{id}/events")).json()
    assert (len(told["items"]), told["totalItems"], told["limit"], told["offset"]) == (11, 11, 1000, 0)
    page = (await api.get(f"/api/jobs/{id}/events?limit=3&offset=4")).json()
    assert (page["items"], page["totalItems"]) == (told["items"][4:7], 11)
    assert (await api.get(f"/api/jobs/{id}/events?offset=11")).json()["items"] == []


async def test_old_payloads_in_events_are_cut_at_16_kib(api: Api) -> None:
    id = (await api.enqueue("mail", BIG))["id"]
    job = await api.hands.claim_one("mail")
    await api.hands.complete(job, BIG)
    await api.post(f"/api/jobs/{id}/requeue?force=true", {"payload": {"i": 1}})
    await api.post(f"/api/jobs/{id}/cancel")
    await api.post(f"/api/jobs/{id}/requeue", {"payload": {"i": 2}})
    answer = await api.get(f"/api/jobs/{id}/events")
    large, small = [one["metadata"] for one in answer.json()["items"] if one["type"] == "job:requeued"]
    assert (large["payload"], large["outcome"]["result"], large["truncated"]) == (None, None, True)
    assert large["outcome"]["status"] == "completed"
    assert (small["payload"], "truncated" in small) == ({"i": 1}, False)
    assert len(answer.content) < 16 * KIB
    assert len(json.dumps([event.metadata for event in await api.queue.store.events(id) or ()])) < 16 * KIB
