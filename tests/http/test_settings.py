"""`/api/settings`: what operators change at run time, and which processes follow."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.faulty import Around, faulty
from tests.http.api import Api, failure, opened
from tests.waiting import until
from treadle import Queue, Worker
from treadle.maintenance import Retention
from treadle.model.settings import DAY_MS
from treadle.queue.runtime_settings import RuntimeSettings
from treadle.store.values import RecordWrite
from treadle.worker import assembly

DEFAULTS: dict[str, dict[str, Any]] = {
    "jobs": {"enqueue_rule": "", "manage_rule": "", "http_enabled": True, "allowed_topics": []},
    "retention": {"stale_after": "7d", "delete_after": "7d", "output_after": "1d", "by_status": {}, "by_topic": {}},
    "webhooks": {"job_urls": False},
}


async def settings(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get("/api/settings")).json()
    assert isinstance(found.pop("version"), int)
    return found


async def change(api: Api, **groups: Any) -> dict[str, Any]:
    answer = await api.patch("/api/settings", groups)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert isinstance(found.pop("version"), int)
    return found


# -- all of them -----------------------------------------------------------------------------------


async def test_what_was_got_can_be_sent_back_and_changes_nothing(api: Api) -> None:
    assert await settings(api) == await change(api, **DEFAULTS) == DEFAULTS
    changed = {
        "jobs": {"enqueue_rule": "true", "manage_rule": "true", "http_enabled": False, "allowed_topics": ["mail"]},
        "retention": _retention("1d", "0ms"),
        "webhooks": {"job_urls": True},
    }
    assert await change(api, **changed) == changed
    assert await change(api, **await settings(api)) == await settings(api) == changed


async def test_a_change_of_an_older_version_is_refused(api: Api) -> None:
    first = (await api.get("/api/settings")).json()
    changed = (await api.patch("/api/settings", {"jobs": {"manage_rule": "true"}, "version": first["version"]})).json()
    assert changed["version"] > first["version"]
    for body in ({**first}, {"version": first["version"]}, {"jobs": {"manage_rule": ""}, "version": 99}):
        assert failure(await api.patch("/api/settings", body)) == (409, "version_conflict")
    assert (await api.get("/api/settings")).json() == changed
    assert (await api.patch("/api/settings", changed)).status_code == 200
    latest = (await api.get("/api/settings")).json()["version"]
    again = (await api.patch("/api/settings", {"jobs": {"manage_rule": "true"}, "version": latest})).json()
    assert again["version"] == latest, "a change that changes nothing is no new version"


async def test_what_is_not_given_stays(api: Api) -> None:
    await change(api, jobs={"manage_rule": "true"}, retention={"stale_after": "1d"})
    found = await change(api, jobs={"enqueue_rule": "true"}, retention={"delete_after": "2h"})
    assert (found["jobs"]["manage_rule"], found["jobs"]["enqueue_rule"]) == ("true", "true")
    assert found["retention"] == _retention("1d", "2h")
    assert await change(api) == found
    assert await change(api, jobs={}, retention={}) == found
    assert await change(api, jobs=None, retention=None, webhooks=None) == found


async def test_two_concurrent_changes_are_both_saved(api: Api, url: str) -> None:
    async with opened(url) as other:
        await asyncio.gather(
            change(api, jobs={"manage_rule": "true"}),
            change(other, jobs={"enqueue_rule": "true"}),
            change(api, retention={"stale_after": "1d"}),
            change(other, retention={"delete_after": "2h"}),
        )
    jobs = DEFAULTS["jobs"] | {"manage_rule": "true", "enqueue_rule": "true"}

    async def all_four() -> bool:
        return await settings(api) == DEFAULTS | {"jobs": jobs, "retention": _retention("1d", "2h")}

    await until(all_four, 30)


@pytest.mark.parametrize(
    "field", ["nope", "jobs.nope", "jobs.enqueueRule", "retention.nope", "retention.staleAfter", "webhooks.url"]
)
async def test_an_unknown_setting_is_refused_by_name(sqlite_api: Api, field: str) -> None:
    group, _, name = field.partition(".")
    body = {"jobs": {"manage_rule": "true"}}
    body[group] = body.get(group, {}) | {name: "1d"} if name else {}
    answer = await sqlite_api.patch("/api/settings", body)
    assert failure(answer) == (400, "unknown_parameter")
    assert answer.json()["data"][field]["code"] == "unknown_parameter"
    assert await settings(sqlite_api) == DEFAULTS


async def test_one_rule_for_both(api: Api) -> None:
    answer = await api.patch("/api/settings", {"jobs": {"access_rule": "@request.auth.id != ''"}})
    found = answer.json()["jobs"]
    assert (found["enqueue_rule"], found["manage_rule"]) == ("@request.auth.id != ''",) * 2
    assert "access_rule" not in found
    for bad in ({"access_rule": "true", "manage_rule": ""}, {"access_rule": "topic ="}):
        assert (await api.patch("/api/settings", {"jobs": bad})).status_code == 400
    assert (await api.get("/api/settings")).json()["jobs"] == found


# -- null ------------------------------------------------------------------------------------------


async def test_null_closes_a_rule(api: Api) -> None:
    await api.rules(enqueue_rule="true", manage_rule="true")
    assert (await api.get("/api/jobs", as_=None)).status_code == 200
    await change(api, jobs={"manage_rule": None, "enqueue_rule": None})
    assert (await api.get("/api/jobs", as_=None)).status_code == 401
    assert (await api.get("/api/jobs", as_="ann")).status_code == 403
    assert (await api.post("/api/jobs/enqueue", {"topic": "mail"}, as_=None)).status_code == 401
    assert await settings(api) == DEFAULTS


async def test_null_goes_back_to_the_default(api: Api) -> None:
    await change(api, jobs={"http_enabled": False, "allowed_topics": ["mail"]}, retention={"stale_after": "1d"})
    cleared = {"http_enabled": None, "allowed_topics": None}
    assert await change(api, jobs=cleared, retention={"stale_after": None}) == DEFAULTS


# -- retention -------------------------------------------------------------------------------------


async def test_retention_wins_over_what_each_server_has_by_itself(api: Api, url: str) -> None:
    async with opened(url, stale_after="3d", delete_after="4d") as other:
        await change(api, retention={"stale_after": "1d", "delete_after": 7200})
        await until(lambda: _shows(other, "1d", "2h"), 30)
        await change(api, retention={"stale_after": None})
        await until(lambda: _shows(other, "3d", "2h"), 30)
        assert await _shows(api, "7d", "2h")


async def _shows(api: Api, stale_after: str, delete_after: str) -> bool:
    return (await settings(api))["retention"] == _retention(stale_after, delete_after)


def _retention(stale_after: str, delete_after: str) -> dict[str, Any]:
    return DEFAULTS["retention"] | {"stale_after": stale_after, "delete_after": delete_after}


async def test_exceptions_are_made_changed_and_removed_one_by_one(api: Api) -> None:
    found = await change(
        api,
        retention={
            "by_status": {"failed": {"stale_after": "30d"}, "cancelled": {"stale_after": "1d", "delete_after": "0s"}},
            "by_topic": {"mail_digest": {"delete_after": "2h"}},
        },
    )
    assert found["retention"] == DEFAULTS["retention"] | {
        "by_status": {
            "failed": {"stale_after": "30d", "delete_after": None},
            "cancelled": {"stale_after": "1d", "delete_after": "0ms"},
        },
        "by_topic": {"mail_digest": {"stale_after": None, "delete_after": "2h"}},
    }
    assert await change(api, **found) == found, "what was got can be sent back"
    found = await change(
        api,
        retention={
            "by_status": {"failed": None, "cancelled": {"delete_after": None}, "expired": {}},
            "by_topic": {"other": {"stale_after": "1d"}},
        },
    )
    assert found["retention"]["by_status"] == {"cancelled": {"stale_after": "1d", "delete_after": None}}
    assert list(found["retention"]["by_topic"]) == ["mail_digest", "other"]
    found = await change(api, retention={"by_status": {"cancelled": {"stale_after": None}}, "by_topic": None})
    assert found["retention"] == DEFAULTS["retention"]


@pytest.mark.parametrize(
    ("retention", "field"),
    [
        ({"by_status": {"failed": {"stale_after": "-1d"}}}, "retention.by_status.failed.stale_after"),
        ({"by_topic": {"mail": {"delete_after": "soon"}}}, "retention.by_topic.mail.delete_after"),
        ({"by_topic": {"mail": {"delete_after": True}}}, "retention.by_topic.mail.delete_after"),
        ({"by_topic": {"mail": {"kept": "1d"}}}, "retention.by_topic.mail.kept"),
        ({"by_topic": {"mail": "1d"}}, "retention.by_topic.mail"),
        ({"by_topic": ["mail"]}, "retention.by_topic"),
        ({"by_topic": {"No topic": {"stale_after": "1d"}}}, "retention.by_topic.No topic"),
        ({"by_status": {"pending": {"stale_after": "1d"}}}, "retention.by_status.pending"),
        ({"by_status": {"dead_letter": {"stale_after": "1d"}}}, "retention.by_status.dead_letter"),
        ({"by_status": {"stale": None}}, "retention.by_status.stale"),
        ({"by_topic": {f"t{i}": {"stale_after": "1d"} for i in range(201)}}, "retention.by_topic"),
    ],
)
async def test_nonsense_for_retention_is_400_and_the_old_one_stays(
    sqlite_api: Api, retention: dict[str, Any], field: str
) -> None:
    before = await change(sqlite_api, retention={"by_status": {"failed": {"stale_after": "1d"}}})
    answer = await sqlite_api.patch("/api/settings", {"retention": {"stale_after": "3d", **retention}})
    assert answer.status_code == 400, answer.text
    assert any(name.startswith(field) for name in answer.json()["data"]), answer.text
    assert await settings(sqlite_api) == before


async def test_a_mark_stays_when_the_setting_is_raised(api: Api) -> None:
    job = await _done(api)
    await change(api, retention={"stale_after": "0s"})
    marked = (await api.get(f"/api/jobs/{job['id']}")).json()["staleAt"]
    assert marked == job["completedAt"]
    await change(api, retention={"stale_after": "30d"})
    later = await _done(api)
    assert (await api.get(f"/api/jobs/{job['id']}")).json()["staleAt"] == marked
    found = (await api.get("/api/jobs?status=stale")).json()
    assert ([one["id"] for one in found["items"]], found["totalItems"]) == ([job["id"]], 1)
    assert later["staleAt"] is None
    await change(api, retention={"by_topic": {job["topic"]: {"stale_after": "60d"}}})
    assert (await api.get(f"/api/jobs/{job['id']}")).json()["staleAt"] == marked


@pytest.mark.parametrize("value", ["", "x", "7", "-1d", -1, 1e300, "1000000d", True, [], {}, {"days": 1}])
@pytest.mark.parametrize("name", ["stale_after", "delete_after", "output_after"])
async def test_a_bad_duration_is_refused_by_name_and_nothing_is_saved(sqlite_api: Api, name: str, value: Any) -> None:
    good = _retention("1d", "1d")
    answer = await sqlite_api.patch(
        "/api/settings", {"jobs": {"manage_rule": "true"}, "retention": good | {name: value}}
    )
    assert failure(answer) == (400, "invalid_input")
    assert list(answer.json()["data"]) == [f"retention.{name}"]
    assert await settings(sqlite_api) == DEFAULTS


async def test_a_bad_rule_keeps_retention_as_it_was(api: Api) -> None:
    answer = await api.patch("/api/settings", {"jobs": {"manage_rule": "topic ="}, "retention": {"stale_after": "1d"}})
    assert failure(answer) == (400, "invalid_rule")
    assert await settings(api) == DEFAULTS


async def test_the_server_that_saves_applies_the_retention_immediately(api: Api) -> None:
    job = await _done(api)
    assert job["staleAt"] is None
    assert await _stale(api) == []
    await change(api, retention={"stale_after": "0s"})
    assert (await api.get(f"/api/jobs/{job['id']}")).json()["staleAt"] is not None
    assert await _stale(api) == [job["id"]]
    assert (await api.post(f"/api/jobs/{job['id']}/requeue")).status_code == 200


async def _stale(api: Api) -> list[str]:
    return [job["id"] for job in (await api.get("/api/jobs?status=stale")).json()["items"]]


async def _done(api: Api) -> dict[str, Any]:
    """A completed job."""
    job = await api.enqueue()
    await api.hands.complete(await api.hands.claim_one("mail"))
    found: dict[str, Any] = (await api.get(f"/api/jobs/{job['id']}")).json()
    return found


@contextlib.asynccontextmanager
async def working(queue: Queue, **options: Any) -> AsyncIterator[None]:
    worker = Worker(queue, drain="5s", **options)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


async def test_another_server_sees_soon_what_is_stale(api: Api, url: str) -> None:
    job = await _done(api)
    async with opened(url) as other:
        assert await _stale(other) == []
        await change(api, retention={"stale_after": "0s"})

        async def follows() -> bool:
            return await _stale(other) == [job["id"]]

        await until(follows, 30)


async def test_a_queue_that_is_opened_later_obeys(api: Api, url: str) -> None:
    job = await _done(api)
    await change(api, retention={"stale_after": "0s"})
    async with Queue(url, stale_after="30d") as other:
        assert (await other.get(job["id"])).stale_at is not None


async def test_a_worker_without_a_server_follows(
    api: Api,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assembly, "FOLLOW_SETTINGS_S", 0.05)
    job = await _done(api)
    async with Queue(url) as other:

        async def follows() -> bool:
            return (await other.get(job["id"])).stale_at is not None

        async with working(other, maintenance=False):
            assert not await follows()
            await change(api, retention={"stale_after": "0s"})
            await until(follows)


async def test_a_worker_on_the_same_database_deletes_by_the_new_value(
    api: Api,
    url: str,
) -> None:
    done, live = await _done(api), await api.enqueue()
    async with Queue(url, retention_interval="50ms") as other:

        async def gone() -> bool:
            return (await api.get(f"/api/jobs/{done['id']}")).status_code == 404

        async with working(other):
            await change(api, retention={"stale_after": "1ms", "delete_after": "0s"})
            await until(gone)
    assert (await api.get(f"/api/jobs/{live['id']}")).status_code == 200


async def test_a_pass_of_retention_keeps_what_the_settings_keep(api: Api, url: str) -> None:
    job = await _done(api)
    await change(api, retention=_retention("1d", "1d"))
    async with Queue(url, stale_after="0s", delete_after="0s") as hasty:
        site = RuntimeSettings(hasty.store, hasty.settings)
        await Retention(hasty.store, site).prune()
        assert (await site.settings()).stale_after_ms == hasty.store.retention.stale_after_ms == DAY_MS
    assert (await api.get(f"/api/jobs/{job['id']}")).status_code == 200


async def test_a_pass_of_retention_stops_when_its_setting_is_raised(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.maintenance.ended_walk.BATCH", 1)
    monkeypatch.setattr("treadle.maintenance.retention.PAUSE_S", 0)
    monkeypatch.setattr("treadle.queue.runtime_settings.READ_EVERY_S", -1)
    for _ in range(3):
        await _done(api)
    await change(api, retention={"stale_after": "0s", "delete_after": "0s"})

    async def raise_it(prune: Around, *arguments: Any) -> Any:
        deleted = await prune(*arguments)
        await change(api, retention={"stale_after": "1d"})
        return deleted

    faulty(api.queue).around("prune", raise_it)
    await Retention(api.queue.store, api.queue.site).prune()
    assert await api.queue.count() == 2


async def test_what_a_newer_server_has_saved_is_kept_and_passed_over(api: Api) -> None:
    body = '{"manage_rule": "true", "colour": "red"}'
    await api.queue.store.write_records([RecordWrite("settings", "jobs", "jobs", body)])
    assert (await change(api, jobs={"enqueue_rule": "true"}))["jobs"]["manage_rule"] == "true"
    (record,) = await api.queue.store.get_records([("settings", "jobs")])
    assert record is not None
    assert '"colour":"red"' in record.body
