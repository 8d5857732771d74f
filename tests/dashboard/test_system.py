"""The forms of the system page, as a browser without JavaScript sends them, and what the audit log says."""

import csv
import html
import io
import re
from datetime import datetime

import pytest

from tests.dashboard.visitor import ROOT, Visitor, flash, words
from tests.http.api import PASSWORD
from treadle.dashboard.words import date_time
from treadle.model.job import from_ms
from treadle.queue.audit import Actor, AuditLog
from treadle.store.values import DutyReport

RULE = '@request.auth.id != "" && createdBy = @request.auth.id'


async def logged(visitor: Visitor) -> list[tuple[str, str, str]]:
    """Who did what to which, oldest first."""
    return [(one.who, one.action, one.target) for one in reversed(await AuditLog(visitor.queue).newest())]


def form_to(page: str, action: str) -> str:
    found = re.search(rf'<form[^>]*method="post" action="{action}".*?</form>', page, re.S)
    assert found, f"no form leads to {action}"
    return found[0]


async def test_retention_is_saved_and_shown(visitor: Visitor) -> None:
    form = form_to((await visitor.get("/_/system")).text, "/_/system/retention")
    assert {"stale_after", "delete_after"} <= set(re.findall(r'name="(\w+)"', form))
    answer = await visitor.post("/_/system/retention", stale_after="3d", delete_after="20d")
    assert (answer.status_code, flash(answer)) == (303, "Retention saved.")
    form = form_to((await visitor.get("/_/system")).text, "/_/system/retention")
    assert re.search(r'name="stale_after"[^>]*value="3d"', form)
    assert re.search(r'name="delete_after"[^>]*value="20d"', form)
    assert await logged(visitor) == [(ROOT, "settings", "retention")]


async def test_retention_is_counted_before_it_is_saved(visitor: Visitor) -> None:
    for _ in range(3):
        await visitor.completed_job()
    before = form_to((await visitor.get("/_/system")).text, "/_/system/retention")
    for given, told in (
        ({"stale_after": "0s", "delete_after": "1d"}, "3 jobs would be stale and 0 deleted"),
        ({"stale_after": "0s", "delete_after": "0s"}, "0 jobs would be stale and 3 deleted"),
        ({"stale_after": "", "delete_after": ""}, "0 jobs would be stale and 0 deleted"),
    ):
        answer = await visitor.post("/_/system/retention", **given, **{"try": "1"})
        assert answer.status_code == 200
        assert told in words(answer.text)
        assert 'value="1d"' in answer.text or given["delete_after"] != "1d", "what was typed stays"
    assert form_to((await visitor.get("/_/system")).text, "/_/system/retention") == before
    assert await logged(visitor) == []


async def test_exceptions_of_retention_are_made_counted_changed_and_removed(visitor: Visitor) -> None:
    done = await visitor.completed_job()
    topic = done.topic
    ages = {"stale_after": "7d", "delete_after": "7d", "output_after": "1d", "exceptions": "1"}
    mine = {"jobs_0": f"topic:{topic}", "stale_after_0": "0s", "delete_after_0": "0s"}
    counted = await visitor.post("/_/system/retention", **ages, **mine, **{"try": "1"})
    assert "0 jobs would be stale and 1 deleted" in words(counted.text)
    kept = {"jobs_1": "status:failed", "stale_after_1": "30d", "delete_after_1": ""}
    mine["delete_after_0"] = "5d"
    assert flash(await visitor.post("/_/system/retention", **ages, **mine, **kept)) == "Retention saved."
    form = form_to((await visitor.get("/_/system")).text, "/_/system/retention")
    for text in (f'value="topic:{topic}"', 'value="status:failed"', 'value="30d"', 'value="5d"'):
        assert text in form
    settings = await visitor.queue.site.draft({})
    assert settings.by_status == {"failed": (30 * 86_400_000, None)}
    await visitor.post("/_/system/retention", **ages, jobs_0="status:failed", stale_after_0="", delete_after_0="1d")
    settings = await visitor.queue.site.draft({})
    assert (settings.by_status, settings.by_topic) == ({"failed": (None, 86_400_000)}, {})
    await visitor.post("/_/system/retention", stale_after="7d", delete_after="7d")
    assert (await visitor.queue.site.draft({})).by_status, "a form without exceptions leaves them as they are"


@pytest.mark.parametrize("name", ["mail", "topic:", "topic:No Topic", "status:pending", "status:", "scope:a", "<b>"])
async def test_an_exception_for_nothing_is_refused(sqlite_visitor: Visitor, name: str) -> None:
    ages = {"stale_after": "7d", "delete_after": "7d", "output_after": "1d", "exceptions": "1"}
    given = {"jobs_0": name, "stale_after_0": "1d", "delete_after_0": ""}
    answer = await sqlite_visitor.post("/_/system/retention", **ages, **given)
    assert answer.status_code == 400
    assert html.escape(name) in answer.text, "what was typed stays"
    assert (await sqlite_visitor.queue.site.draft({})).version == 0


def carried(form: str) -> dict[str, str]:
    """The hidden fields of a form."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    return {name: html.unescape(value) for name, value in found}


async def test_two_operators_do_not_overwrite_each_other_s_retention(visitor: Visitor) -> None:
    opened = carried(form_to((await visitor.get("/_/system")).text, "/_/system/retention"))
    await visitor.post("/_/system/retention", stale_after="3d", delete_after="20d")
    refused = await visitor.post("/_/system/retention", **opened, stale_after="5d", delete_after="20d")
    assert refused.status_code == 409
    text = words(refused.text)
    assert "Not saved: the settings were changed after you opened this page" in text
    assert "Stale after: 7d → 3d" in text
    form = form_to(refused.text, "/_/system/retention")
    assert re.search(r'name="stale_after"[^>]*value="5d"', form), "what was typed stays"
    saved = await visitor.post("/_/system/retention", **carried(form), stale_after="5d", delete_after="20d")
    assert flash(saved) == "Retention saved."


async def test_two_operators_do_not_overwrite_each_other_s_rules(visitor: Visitor) -> None:
    opened = carried(form_to((await visitor.get("/_/system")).text, "/_/system/access"))
    theirs = {"enqueue_rule": RULE, "manage_rule": "", "http_enabled": "1", "allowed_topics": "mail"}
    await visitor.post("/_/system/access", **theirs, save="1")
    mine = {"enqueue_rule": "", "manage_rule": "true", "http_enabled": "1", "allowed_topics": ""}
    tried = await visitor.post("/_/system/access", **opened, **mine, **{"try": "1"})
    still = carried(form_to(tried.text, "/_/system/access"))
    assert still == opened, "a trial is no look at the settings"
    refused = await visitor.post("/_/system/access", **still, **mine, save="1")
    assert refused.status_code == 409
    assert f"Who may enqueue: empty → {RULE}" in words(refused.text)
    assert "Topics that may be enqueued: all → mail" in words(refused.text)
    assert "true" in form_to(refused.text, "/_/system/access")
    now = carried(form_to(refused.text, "/_/system/access"))
    assert flash(await visitor.post("/_/system/access", **now, **mine, save="1")) == "Access rules saved."


@pytest.mark.parametrize("seen", ["", "{", "[1]", '{"stale_after_ms": {}, "allowed_topics": 5}'])
async def test_a_conflict_survives_a_form_that_was_tampered_with(sqlite_visitor: Visitor, seen: str) -> None:
    await sqlite_visitor.post("/_/system/retention", stale_after="3d", delete_after="20d")
    given = {"version": "0", "seen": seen, "stale_after": "5d", "delete_after": "20d"}
    assert (await sqlite_visitor.post("/_/system/retention", **given)).status_code == 409


@pytest.mark.parametrize("bad", ["soon", "-1d", "3 moons"])
async def test_retention_that_can_t_be_read_is_refused_at_its_field(sqlite_visitor: Visitor, bad: str) -> None:
    before = form_to((await sqlite_visitor.get("/_/system")).text, "/_/system/retention")
    answer = await sqlite_visitor.post("/_/system/retention", stale_after=bad, delete_after="20d")
    assert answer.status_code == 400
    assert "stale_after" in words(answer.text)
    assert bad in form_to(answer.text, "/_/system/retention"), "what was typed stays"
    assert form_to((await sqlite_visitor.get("/_/system")).text, "/_/system/retention") == before
    assert await logged(sqlite_visitor) == []


async def test_access_rules_are_tried_and_then_saved(visitor: Visitor) -> None:
    form_to((await visitor.get("/_/system")).text, "/_/system/access")
    draft = {"enqueue_rule": RULE, "manage_rule": RULE, "http_enabled": "1", "allowed_topics": "mail report"}
    tried = await visitor.post(
        "/_/system/access", **draft, **{"as": "ann@example.com", "may": "manage", "on": "", "try": "1"}
    )
    assert tried.status_code == 200
    assert "Today the answer is" in words(tried.text)
    assert await logged(visitor) == [], "a trial changes nothing"
    answer = await visitor.post("/_/system/access", **draft, save="1")
    assert (answer.status_code, flash(answer)) == (303, "Access rules saved.")
    form = form_to((await visitor.get("/_/system")).text, "/_/system/access")
    assert "mail report" in form
    assert "createdBy = @request.auth.id" in form
    assert await logged(visitor) == [(ROOT, "settings", "access")]


@pytest.mark.parametrize(
    "bad", [{"manage_rule": "createdBy = "}, {"enqueue_rule": "nothing ~ 1"}, {"allowed_topics": "no/topic"}]
)
async def test_a_bad_rule_stores_nothing(sqlite_visitor: Visitor, bad: dict[str, str]) -> None:
    answer = await sqlite_visitor.post("/_/system/access", **bad, save="1")
    assert answer.status_code == 400
    assert "nothing was stored" in words(answer.text)
    assert await logged(sqlite_visitor) == []


async def test_an_api_key_is_made_shown_once_and_revoked(visitor: Visitor) -> None:
    made = await visitor.confirm("/_/system/keys/new", name="ci", scopes="enqueue", expires_at="90d")
    assert made.status_code == 200
    [key] = await visitor.accounts.api_keys.list()
    assert key.name == "ci"
    secret = re.search(r'<span class="secret"><span>([^<]+)<', made.text)
    assert secret
    assert secret[1] not in (await visitor.get("/_/system")).text
    assert f"/_/system/keys/{key.id}/revoke" in (await visitor.get("/_/system")).text
    answer = await visitor.confirm(f"/_/system/keys/{key.id}/revoke")
    assert flash(answer) == "Key revoked."
    assert await visitor.accounts.api_keys.list() == []
    assert await logged(visitor) == [(ROOT, "api_key", "ci"), (ROOT, "revoke_api_key", "ci")]


async def test_a_key_s_last_use_and_its_maker_are_shown(visitor: Visitor) -> None:
    made = await visitor.confirm("/_/system/keys/new", name="ci", scopes="enqueue", expires_at="")
    assert re.search(r"ci enqueue never never root@example.com (now|\d+s ago)", await visitor.text("/_/system"))
    secret = html.unescape(re.findall(r"trdl_[\w-]+", made.text)[0])
    sent = await visitor.client.post(
        "/api/jobs/enqueue", json={"topic": "mail"}, headers={"Authorization": f"Bearer {secret}"}
    )
    assert sent.status_code == 200
    assert re.search(r"ci enqueue (now|\d+s ago) never root@example.com", await visitor.text("/_/system"))


async def test_the_leader_s_work_is_shown(visitor: Visitor) -> None:
    assert "No leader: no worker or server that does maintenance is running" in await visitor.text("/_/system")
    store = visitor.queue.store
    await store.elect("maintenance", "worker-1 1a2b3c4d", 3_600_000)
    assert "It was elected a moment ago and has not reported yet" in await visitor.text("/_/system")
    await store.elect(
        "maintenance",
        "worker-1 1a2b3c4d",
        3_600_000,
        [
            DutyReport("reaper", 5_000, 65_000, 3, 125_000, "2 reclaimed"),
            DutyReport("schedules", None, 4_000, 1, 5_000, "nothing was due"),
            DutyReport("retention", 900_000),
            DutyReport("tidying", 60_000, 65_000, 2_100, None, "failed, it is tried again: <b>no</b>", failed=True),
        ],
    )
    text = await visitor.text("/_/system")
    assert re.search(
        r"Leader: worker-1 since (now|\d+s ago) , holds the lock until [\d:]{8} UTC, reported (now|\d+s ago)", text
    )
    assert "Take back lost jobs every 5s 1m ago 3 ms in 2m 2 reclaimed" in text
    assert re.search(r"Schedules as they are due \d+s ago 1 ms – nothing was due; no schedule is enabled", text)
    assert "Retention every 15m not yet – – –" in text
    assert "Statistics and limits every 1m 1m ago 2.1 s – failed, it is tried again: <b>no</b>" in text
    await visitor.queue.schedules.create("report", every="1h", id="hourly")
    assert re.search(
        r"Schedules as they are due \d+s ago 1 ms in 59m nothing was due; next: hourly", await visitor.text("/_/system")
    )


async def test_the_migrations_are_shown_with_their_time(visitor: Visitor) -> None:
    applied = await visitor.queue.store.migrations()
    text = await visitor.text("/_/system")
    assert f"{len(applied)} of {len(applied)}, code and database agree" in text
    for one in applied:
        assert f"{one.name} {date_time(from_ms(one.applied_at))}" in text


async def test_a_key_with_an_unknown_scope_is_refused_at_its_field(sqlite_visitor: Visitor) -> None:
    answer = await sqlite_visitor.post("/_/system/keys/new", name="ci", scopes="everything", expires_at="")
    assert answer.status_code == 400
    assert "everything" in words(answer.text)
    assert await sqlite_visitor.accounts.api_keys.list() == []


async def test_users_are_listed_and_signed_out_by_a_form(visitor: Visitor) -> None:
    page = (await visitor.get("/_/system")).text
    assert ROOT in words(page)
    [root] = await visitor.accounts.list("_superusers")
    assert f"/_/system/superusers/{root.id}/revoke" in page
    answer = await visitor.confirm(f"/_/system/superusers/{root.id}/revoke")
    assert answer.status_code == 303
    assert (await visitor.get("/_/system")).status_code == 303, "this session has ended too"
    assert (await visitor.sign_in(PASSWORD)).status_code == 303
    assert await logged(visitor) == [(ROOT, "revoke_sessions", ROOT)]


async def test_what_is_done_to_schedules_and_templates_is_logged(visitor: Visitor) -> None:
    visitor.queue.register("report", lambda: None, timeout=600)
    await visitor.queue.save_templates()
    visitor.queue.handlers.pop("report")
    visitor.queue.register("report", lambda: None, timeout=60)
    await visitor.queue.save_templates()
    form = {"topic": "report", "cron": "0 9 * * *", "timezone": "UTC", "payload": "{}", "missed": "one"}
    form |= {"overlap": "skip", "jitter": "0"}
    await visitor.post("/_/new-schedule", id="daily", **form)
    version = str((await visitor.queue.schedules.get("daily")).version)
    await visitor.post("/_/schedules/daily", **{**form, "cron": "0 10 * * *", "version": version, "expected": version})
    for action in ("run", "disable", "enable"):
        await visitor.post(f"/_/schedules/daily/{action}")
    await visitor.confirm("/_/schedules/daily/delete")
    for action in ("disable", "enable"):
        await visitor.post(f"/_/templates/report/{action}")
    await visitor.confirm("/_/templates/report/use/1")
    on_schedule = [f"{action}_schedule" for action in ("create", "edit", "run", "disable", "enable", "delete")]
    on_template = [f"{action}_template" for action in ("disable", "enable", "use")]
    wanted = [(ROOT, one, "daily") for one in on_schedule] + [(ROOT, one, "report") for one in on_template]
    assert await logged(visitor) == wanted
    text = await visitor.text("/_/system")
    for sentence in ("Made the schedule daily", "Ran the schedule daily", "Switched off the template report"):
        assert sentence in text


async def test_what_the_doctor_warns_about_is_on_the_overview_too(visitor: Visitor) -> None:
    await visitor.queue.site.change({"enqueue_rule": '@request.auth.id != ""'})
    assert "enqueue_rule names no scopeId" in await visitor.text("/_/system?check=1")
    assert "enqueue_rule names no scopeId: users can enqueue jobs in the name of others" in await visitor.text("/_/")


async def test_older_entries_of_the_audit_log_are_on_the_next_page(visitor: Visitor) -> None:
    log = AuditLog(visitor.queue)
    for number in range(105):
        await log.add(Actor("ann@example.com"), "cancel", f"job-{number:03d}")
    first = await visitor.text("/_/system")
    assert "job-104" in first
    assert "job-005" in first
    assert "job-004" not in first
    page = (await visitor.get("/_/system")).text
    older = re.search(r'href="([^"]+)">Older<', page)
    assert older
    assert ">Newer<" not in page
    page = (await visitor.get(html.unescape(older[1]).partition("#")[0])).text
    assert "job-004" in words(page)
    assert "job-005" not in words(page)
    assert ">Older<" not in page
    assert 'href="/_/system#audit">Newer<' in page
    found = await visitor.get("/_/system?audit=job-10&page=9")
    assert "No entry has" in words(found.text)


async def test_a_rule_without_a_scope_is_warned_about_at_its_field(visitor: Visitor) -> None:
    warned = "The rule names no scopeId : users can enqueue in the name of others"
    assert warned not in await visitor.text("/_/system")
    rules = {"manage_rule": "", "http_enabled": "1", "allowed_topics": ""}
    draft = await visitor.post("/_/system/access", enqueue_rule='@request.auth.id != ""', **rules, **{"try": "1"})
    assert warned in words(draft.text)
    draft = await visitor.post("/_/system/access", enqueue_rule="scopeId = @request.auth.id", **rules, **{"try": "1"})
    assert warned not in words(draft.text)


async def test_a_trial_says_which_comparison_decides(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail", {}, scope="account", scope_id="acc_2201")
    ann = await visitor.accounts.get("users", "ann@example.com")
    draft = {"enqueue_rule": "", "manage_rule": "@request.auth.id != '' && scopeId = @request.auth.id"}
    draft |= {"http_enabled": "1", "allowed_topics": "", "as": "ann@example.com", "may": "manage", "try": "1"}
    answer = await visitor.post("/_/system/access", **draft, on=job.id)
    text = words(answer.text)
    assert "Refused, 404. ann@example.com may not see and manage this mail" in text
    assert text.count("Reads well. It names job fields: each job is decided on its own.") == 1, "an empty rule is none"
    assert f"True: @request.auth.id != '' @request.auth.id is {ann.id}" in text
    assert f"False: scopeId = @request.auth.id scopeId is acc_2201, @request.auth.id is {ann.id}" in text
    text = words((await visitor.post("/_/system/access", **draft, on="")).text)
    assert f"Open: scopeId = @request.auth.id @request.auth.id is {ann.id}; it depends on the job" in text
    for rule in ("", "true"):
        text = words((await visitor.post("/_/system/access", **{**draft, "manage_rule": rule}, on=job.id)).text)
        assert "Today the answer is" in text
        assert "True:" not in text


async def test_the_audit_log_is_exported_as_csv(visitor: Visitor) -> None:
    log = AuditLog(visitor.queue)
    assert "audit.csv" not in (await visitor.get("/_/system")).text, "there is nothing to export"
    await log.add(Actor("ann@example.com"), "cancel", "job-1", reason='wrong, "bucket"')
    await log.add(Actor("ci", "api_key"), "requeue", filter="topic:mail", changed=118, skipped=6)
    await log.add(Actor("ann@example.com"), "cancel", "job-2", reason="=HYPERLINK(1)")
    link = re.search(r'href="([^"]+)" download', (await visitor.get("/_/system?audit=ann")).text)
    assert link
    answer = await visitor.get(html.unescape(link[1]))
    assert answer.headers["content-type"].startswith("text/csv")
    assert re.fullmatch(
        r'attachment; filename="treadle-audit-\d{4}-\d\d-\d\d\.csv"', answer.headers["content-disposition"]
    )
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["who"], row["target"], row["reason"]) for row in rows] == [
        ("ann@example.com", "job-2", "'=HYPERLINK(1)"),
        ("ann@example.com", "job-1", 'wrong, "bucket"'),
    ], "newest first, as searched, and no cell is a formula"
    everything = list(csv.DictReader(io.StringIO((await visitor.get("/_/system/audit.csv")).text)))
    assert [row["changed"] for row in everything] == ["", "118", ""]
    assert datetime.fromisoformat(everything[0]["at"]).tzinfo is not None


async def test_a_superuser_is_invited_and_seen(visitor: Visitor) -> None:
    assert f"{ROOT} " in await visitor.text("/_/system")
    made = await visitor.confirm("/_/system/invite")
    link = re.search(r'<span class="secret"><span>([^<]+)<', made.text)
    assert link
    address, _, token = html.unescape(link[1]).partition("#token=")
    assert address == "http://queue.test/_/invitation"
    assert token not in (await visitor.get("/_/system")).text, "it is shown once"
    ada = {"token": token, "email": "ada@example.com", "password": PASSWORD, "passwordConfirm": PASSWORD}
    visitor.client.cookies.clear()
    assert "Become a superuser" in await visitor.text("/_/invitation")
    refused = await visitor.post("/_/invitation", **{**ada, "passwordConfirm": "something else"})
    assert (refused.status_code, "The two are not the same" in refused.text) == (400, True)
    refused = await visitor.post("/_/invitation", **{**ada, "email": ROOT})
    assert (refused.status_code, f"{ROOT} belongs to another account." in words(refused.text)) == (400, True)
    answer = await visitor.post("/_/invitation", **ada)
    assert (answer.status_code, answer.headers["location"]) == (303, "/_/")
    text = await visitor.text("/_/system")
    assert "Made a link that invites a superuser" in text
    assert "Became a superuser by an invitation" in text
    ada_row = re.search(r"ada@example\.com\s.*?now, this browser", text)
    assert ada_row
    seen = await visitor.accounts.last_seen.all()
    assert set(seen) == {one.id for one in await visitor.accounts.list("_superusers")}, "both have signed in"
    visitor.client.cookies.clear()
    again = await visitor.post("/_/invitation", **{**ada, "email": "eve@example.com"})
    assert (again.status_code, "used already" in again.text) == (403, True)


async def test_a_foreign_site_can_not_accept_an_invitation(sqlite_visitor: Visitor) -> None:
    [root] = await sqlite_visitor.accounts.list("_superusers")
    token = await sqlite_visitor.accounts.invite(root)
    ada = {"token": token, "email": "ada@example.com", "password": PASSWORD, "passwordConfirm": PASSWORD}
    answer = await sqlite_visitor.post("/_/invitation", headers={"Origin": "https://evil.example"}, **ada)
    assert answer.status_code == 403
    assert len(await sqlite_visitor.accounts.list("_superusers")) == 1


async def test_the_navigation_counts_schedules(visitor: Visitor) -> None:
    def counted(page: str) -> list[str]:
        return re.findall(r"<span>Schedules</span><span class=\"nav-count\">([^<]+)<", page)

    assert counted((await visitor.get("/_/")).text) == []
    for number in range(3):
        await visitor.queue.schedules.create("mail", id=f"plan-{number}", cron="0 9 * * *")
    assert counted((await visitor.get("/_/")).text) == ["3"]
