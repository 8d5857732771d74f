"""Bulk changes in the background, and what the audit log says about changes over HTTP."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.http.api import Api, failure
from tests.queue.hands import eventually
from treadle import Queue
from treadle.insights.search import JobSearch
from treadle.maintenance import Maintenance
from treadle.maintenance import duties as maintenance_duties
from treadle.queue import bulk
from treadle.queue import operations as operations_module
from treadle.queue.audit import Actor, AuditEntry, AuditLog
from treadle.queue.operations import Operation, Operations


async def entries(api: Api) -> Sequence[AuditEntry]:
    """All entries except for settings that tests change, oldest first."""
    return list(reversed(await AuditLog(api.queue).newest(100)))


async def ended(api: Api, id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def done() -> bool:
        found.update((await api.get(f"/api/operations/{id}")).json())
        return bool(found["state"] != "running")

    await eventually(done)
    return found


# -- operations ------------------------------------------------------------------------------------


async def test_a_bulk_change_in_the_background_is_an_operation(api: Api) -> None:
    await api.queue.enqueue_many("mail", [{}] * 7)
    await api.queue.enqueue("other")
    body = {"action": "cancel", "filter": "topic = 'mail'", "background": True, "reason": "a bad batch"}
    asked = (await api.post("/api/jobs/bulk", body)).json()
    assert (asked["matched"], asked["dryRun"]) == (7, False)
    found = await ended(api, asked["operationId"])
    assert (found["state"], found["changed"], found["refused"], found["percent"]) == ("done", 7, 0, 100)
    assert (found["action"], found["filter"], found["createdBy"]) == ("cancel", "topic = 'mail'", "root@example.com")
    assert (await api.get("/api/operations")).json()["items"][0] == found
    assert await api.queue.count(status="cancelled") == 7
    (entry,) = await entries(api)
    assert (entry.who, entry.action, entry.filter, entry.reason, entry.changed) == (
        "root@example.com",
        "cancel",
        "topic = 'mail'",
        "a bad batch",
        7,
    )


@pytest.mark.every_store
async def test_a_dry_run_in_the_background_starts_nothing(api: Api) -> None:
    await api.queue.enqueue("mail")
    body = {"action": "cancel", "filter": "topic = 'mail'", "background": True, "dryRun": True}
    answer = (await api.post("/api/jobs/bulk", body)).json()
    assert (answer["matched"], answer["changed"], answer["operationId"]) == (1, 0, None)
    assert (await api.get("/api/operations")).json() == {"items": []}
    assert list(await entries(api)) == []


async def test_operations_are_for_callers_who_may_change_every_job(api: Api) -> None:
    await api.rules(manage_rule="createdBy = @request.auth.id")
    body = {"action": "cancel", "filter": "topic = 'mail'", "background": True}
    assert failure(await api.post("/api/jobs/bulk", body, as_="ann")) == (403, "forbidden")
    assert failure(await api.get("/api/operations", as_="ann")) == (403, "forbidden")
    assert failure(await api.get("/api/operations/x", as_="ann")) == (403, "forbidden")
    assert failure(await api.get("/api/operations/x")) == (404, "not_found")
    assert failure(await api.get("/api/operations", as_=None)) == (401, "unauthorized")


@pytest.mark.every_store
async def test_an_operation_is_stopped(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    jobs = await api.queue.enqueue_many("mail", [{}] * 9)
    going, go_on = asyncio.Event(), asyncio.Event()
    cancel = api.queue.cancel_many

    async def slowly(ids: Any, reason: str = "") -> Any:
        answers = await cancel(ids, reason)
        going.set()
        await go_on.wait()
        return answers

    monkeypatch.setattr(api.queue, "cancel_many", slowly)
    asked = await api.post("/api/jobs/bulk", {"action": "cancel", "filter": "topic = 'mail'", "background": True})
    id = asked.json()["operationId"]
    await going.wait()
    assert (await api.post(f"/api/operations/{id}/stop")).status_code == 200
    go_on.set()
    assert (await ended(api, id))["state"] == "stopped"
    assert await api.queue.count(status="pending") == len(jobs) - 2


async def test_an_operation_visits_each_job_once_while_others_move(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused jobs that move away between two batches must not shift the next batch."""
    monkeypatch.setattr(bulk, "BATCH", 10)
    jobs = await api.queue.enqueue_many("mail", [{}] * 40)
    reschedule = api.queue.reschedule_many

    async def with_others(ids: Any, **options: Any) -> Any:
        answers = await reschedule(ids, **options)
        await api.queue.delete_many(list(ids)[:5])
        return answers

    monkeypatch.setattr(api.queue, "reschedule_many", with_others)
    operations = Operations(api.queue)
    change, moment = bulk.BulkChange("patch", priority=7), datetime.now(UTC)
    started = await operations.start(change, JobSearch(topic="mail"), moment, Actor("root"), 40)
    await operations.wait(started.id, 30)
    assert (started.state, started.changed, started.refused) == ("done", 40, 0)
    left = [job for job in await api.queue.store.get([job.id for job in jobs]) if job]
    assert [job.priority for job in left] == [7] * 20


async def test_the_leader_goes_on_with_an_abandoned_operation(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = api.queue
    monkeypatch.setattr(bulk, "BATCH", 5)
    monkeypatch.setattr(operations_module, "ABANDONED_MS", 0)
    monkeypatch.setattr(maintenance_duties, "TAKE_OVER_EVERY_S", 0.05)
    jobs = await queue.enqueue_many("mail", [{}] * 23)
    abandoned = await _abandoned(queue)
    assert (await Operations(queue).get(abandoned.id)).place.below is not None
    maintenance = Maintenance(queue, "leader", 100)
    tasks = [asyncio.create_task(_forever(step)) for _, step in maintenance.duties()]

    async def done() -> bool:
        return (await Operations(queue).get(abandoned.id)).state == "done"

    await eventually(done)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await maintenance.resign()
    found = await Operations(queue).get(abandoned.id)
    assert (found.changed, found.refused) == (23, 0)
    assert {job.status for job in await queue.store.get([job.id for job in jobs]) if job} == {"cancelled"}
    assert [entry.changed for entry in await AuditLog(queue).newest()] == [23]


async def _abandoned(queue: Queue) -> Operation:
    """An operation of a process that ended after the first batch."""
    now = datetime.fromtimestamp(await queue.store.now() / 1000, UTC)
    operations = Operations(queue)
    operation = Operation(
        "019a0000-0000-7000-8000-000000000000",
        bulk.BulkChange("cancel"),
        JobSearch(topic="mail"),
        now,
        Actor("root"),
        23,
    )
    await operations._batch(operation)
    assert await operations._save(operation)
    assert operation.changed == 5
    return operation


async def _forever(step: Any) -> None:
    while True:
        await step()


async def test_operations_and_audit_entries_are_forgotten_in_the_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = api.queue
    monkeypatch.setattr(operations_module, "KEPT_MS", -1)
    monkeypatch.setattr("treadle.queue.audit.KEPT_MS", -1)
    operations, audit = Operations(queue), AuditLog(queue)
    moment = datetime.fromtimestamp(await queue.store.now() / 1000, UTC)
    started = await operations.start(bulk.BulkChange("cancel"), JobSearch(), moment, Actor("root"), 0)
    await operations.wait(started.id, 30)
    assert len(await audit.newest()) == 1
    await operations.take_over()
    await audit.forget_old()
    assert await operations.newest() == []
    assert list(await audit.newest()) == []


# -- the audit log ---------------------------------------------------------------------------------


@pytest.mark.every_store
async def test_every_action_over_http_is_in_the_audit_log(api: Api) -> None:
    job = (await api.enqueue())["id"]
    await api.patch(f"/api/jobs/{job}", {"priority": 9})
    await api.post(f"/api/jobs/{job}/cancel", {"reason": "wrong address"})
    await api.post(f"/api/jobs/{job}/requeue")
    await api.hands.claim("mail", limit=1)
    await api.post(f"/api/jobs/{job}/release")
    await api.delete(f"/api/jobs/{job}")
    await api.post("/api/jobs/bulk", {"action": "cancel", "filter": "topic = 'mail'", "reason": "all of them"})
    await api.post("/api/topics/mail/pause", {})
    await api.post("/api/topics/mail/resume")
    await api.patch("/api/settings", {"jobs": {"manage_rule": "true"}})
    told = [(entry.action, entry.target, entry.filter, entry.reason, entry.changed) for entry in await entries(api)]
    assert told == [
        ("edit", job, "", "", None),
        ("cancel", job, "", "wrong address", None),
        ("requeue", job, "", "", None),
        ("release", job, "", "", None),
        ("delete", job, "", "", None),
        ("cancel", "", "topic = 'mail'", "all of them", 0),
        ("pause", "mail", "until resumed", "", None),
        ("resume", "mail", "", "", None),
        ("settings", "", "manage_rule: true", "", None),
    ]
    assert {(entry.who, entry.kind) for entry in await entries(api)} == {("root@example.com", "superuser")}


async def test_the_audit_log_names_users_api_keys_and_strangers(api: Api) -> None:
    await api.rules(manage_rule="true", enqueue_rule="true")
    key = await api.key("manage")
    for as_ in ("ann", key, None):
        job = (await api.enqueue(as_="root"))["id"]
        answer = await api.post(f"/api/jobs/{job}/cancel", as_=as_)
        assert answer.status_code == 200, answer.text
    told = [(entry.who, entry.kind) for entry in await entries(api) if entry.action == "cancel"]
    assert told == [("ann@example.com", "user"), (key, "api_key"), ("anonymous", "anonymous")]


async def test_what_was_refused_is_not_in_the_audit_log(api: Api) -> None:
    job = (await api.enqueue())["id"]
    assert (await api.post(f"/api/jobs/{job}/requeue")).status_code == 409
    assert (await api.post(f"/api/jobs/{job}/release")).status_code == 409
    assert (await api.post(f"/api/jobs/{job}/cancel", as_="ann")).status_code == 403
    assert (await api.post("/api/jobs/bulk", {"action": "cancel", "filter": "topic ="})).status_code == 400
    assert list(await entries(api)) == []


async def test_the_audit_log_is_searched(api: Api) -> None:
    first, second = (await api.enqueue())["id"], (await api.enqueue())["id"]
    await api.post(f"/api/jobs/{first}/cancel", {"reason": "Wrong address"})
    await api.delete(f"/api/jobs/{second}")
    audit = AuditLog(api.queue)
    for text, wanted in (("wrong ROOT", [first]), (second, [second]), ("delete", [second]), ("nothing", [])):
        assert [entry.target for entry in await audit.search(text)] == wanted, text
