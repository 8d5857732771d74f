"""What operators do to schedules and templates over HTTP is in the audit log: who, what, which."""

from typing import Any

from tests.http.api import Api
from treadle.queue.audit import AuditLog

DAILY = {"id": "daily", "topic": "report", "cron": "0 9 * * *"}


async def logged(api: Api) -> list[tuple[str, str, str]]:
    """Who did what to which, oldest first."""
    return [(one.who, one.action, one.target) for one in reversed(await AuditLog(api.queue).newest())]


async def handle(ctx: Any, job: dict[str, Any]) -> None: ...


async def save(api: Api, **options: Any) -> None:
    api.queue.handlers.pop("report", None)
    api.queue.register("report", handle, **options)
    await api.queue.save_templates()


async def test_every_change_of_a_schedule(api: Api) -> None:
    for method, path, body in (
        ("POST", "/api/schedules", DAILY),
        ("PATCH", "/api/schedules/daily", {"cron": "0 10 * * *"}),
        ("PATCH", "/api/schedules/daily", {"enabled": False}),
        ("PATCH", "/api/schedules/daily", {"enabled": True}),
        ("PATCH", "/api/schedules/daily", {"enabled": True, "overlap": "skip"}),
        ("POST", "/api/schedules/daily/run", None),
        ("DELETE", "/api/schedules/daily", None),
    ):
        options: dict[str, Any] = {"json": body} if body else {}
        answer = await api.request(method, path, **options)
        assert answer.status_code in (200, 204), answer.text
    actions = ["create", "edit", "disable", "enable", "edit", "run", "delete"]
    assert await logged(api) == [("root@example.com", f"{action}_schedule", "daily") for action in actions]


async def test_a_run_names_its_job(api: Api) -> None:
    await api.post("/api/schedules", DAILY)
    job = (await api.post("/api/schedules/daily/run")).json()
    [entry] = await AuditLog(api.queue).newest(1)
    assert entry.reason == f"job {job['id']}"


async def test_every_change_of_a_template(api: Api) -> None:
    await save(api, timeout=600)
    await save(api, timeout=60)
    for body in ({"enabled": False}, {"enabled": True}, {"useVersion": 1}):
        assert (await api.patch("/api/templates/report", body)).status_code == 200
    actions = ["disable_template", "enable_template", "use_template"]
    assert await logged(api) == [("root@example.com", action, "report") for action in actions]
    assert (await AuditLog(api.queue).newest(1))[0].reason == "version 1"


async def test_a_key_is_named_and_a_refused_change_is_not_logged(api: Api) -> None:
    key = await api.key("schedules")
    assert (await api.post("/api/schedules", DAILY, as_=key)).status_code == 200
    assert await logged(api) == [(key, "create_schedule", "daily")]
    assert (await api.patch("/api/schedules/daily", {"cron": "never"})).status_code == 400
    assert (await api.request("DELETE", "/api/schedules/other")).status_code == 404
    assert (await api.patch("/api/templates/none", {"enabled": False})).status_code == 404
    assert len(await logged(api)) == 1


async def test_what_users_do_to_their_own_jobs_is_no_audit_line(api: Api) -> None:
    own = "createdBy = @request.auth.id"
    await api.rules(
        enqueue_rule="@request.auth.id != ''", manage_rule=f"{own} || @request.auth.id = '{api.people['bob'].id}'"
    )
    await api.post("/api/topics/mail/pause")
    path = f"/api/jobs/{(await api.enqueue('mail', as_='ann'))['id']}"
    for priority in range(60):
        assert (await api.patch(path, {"priority": priority}, as_="ann")).status_code == 200
    for verb in ("cancel", "requeue", "cancel"):
        assert (await api.post(f"{path}/{verb}", as_="ann")).status_code == 200
    assert ("root@example.com", "pause", "mail") in await logged(api)
    assert not [entry for entry in await logged(api) if entry[0] == "ann@example.com"]
    assert (await api.post(f"{path}/requeue", as_="bob")).status_code == 200  # not his
    assert (await logged(api))[-1] == ("bob@example.com", "requeue", path.rpartition("/")[2])
