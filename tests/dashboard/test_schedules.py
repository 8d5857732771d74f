"""Schedules in the dashboard, without JavaScript: look, make, edit, run, switch off and on, delete."""

import re
from typing import Any

from pydantic import BaseModel

from tests.dashboard.visitor import Visitor, flash, visiting, words

FORM = {
    "topic": "report",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "payload": '{"until": "{{scheduledAt}}"}',
    "missed": "one",
    "overlap": "skip",
    "jitter": "0",
}


async def filled(visitor: Visitor, path: str) -> dict[str, str]:
    """What the form on this page already has in it."""
    page = (await visitor.get(path)).text
    form = page[page.index("data-preview") :]
    found = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', form))
    found |= dict(re.findall(r'<input class="radio" type="radio" name="(\w+)" value="(\w+)" checked', form))
    payload = re.search(r'<textarea[^>]*name="payload"[^>]*>(.*?)</textarea>', form, re.S)
    assert payload
    return found | {"payload": payload[1].replace("&#34;", '"')}


async def test_an_empty_list_teaches(visitor: Visitor) -> None:
    text = await visitor.text("/_/schedules")
    assert "No schedules yet" in text
    assert "treadle schedules create" in text


async def test_a_schedule_is_made_and_listed_in_words_with_its_next_five_runs(visitor: Visitor) -> None:
    answer = await visitor.post("/_/new-schedule", id="nightly", **FORM)
    assert answer.status_code == 303, answer.text[-2000:]
    assert flash(answer) == "nightly is saved: Every day at 02:30 (Europe/Berlin)."
    page = (await visitor.get("/_/schedules")).text
    text = words(page)
    for part in ("nightly", "report", "Every day at 02:30", "30 2 * * *", "Europe/Berlin", "overlap: skip"):
        assert part in text
    runs = re.findall(r"<li[^>]*>(.*?)</li>", page[page.index("next-runs") :], re.S)
    assert len(runs) == 5
    assert "1 on, 0 off" in text
    made = await visitor.queue.schedules.get("nightly")
    assert made.payload == {"until": "{{scheduledAt}}"}
    assert made.created_by is not None
    assert "Made the schedule nightly" in await visitor.text("/_/system")


async def test_a_preview_says_what_it_means_and_stores_nothing(visitor: Visitor) -> None:
    answer = await visitor.post("/_/new-schedule", preview="1", **FORM)
    text = words(answer.text)
    assert answer.status_code == 200
    assert "Every day at 02:30 (Europe/Berlin)." in text
    assert "Hour 2 at 02" in text
    assert "The next job gets" in text
    assert "Clocks go" in text
    part = await visitor.post("/_/schedule-preview", **FORM)
    assert "Every day at 02:30" in part.text
    assert "<html" not in part.text
    assert await visitor.queue.schedules.list() == []


async def test_bad_input_is_refused_at_its_field_and_stores_nothing(visitor: Visitor) -> None:
    class Report(BaseModel):
        pages: int

    def report(payload: Report) -> None: ...

    visitor.queue.register("strict", report)
    await visitor.queue.save_templates()
    cases: list[tuple[dict[str, str], str]] = [
        ({"cron": "61 * * * *"}, "is not a cron expression"),
        ({"cron": "0 0 30 2 *"}, "is not a cron expression"),
        ({"cron": "*" * 10_240}, "at most 255 characters"),
        ({"cron": "", "every": ""}, "Give cron or every"),
        ({"every": "5m"}, "Give cron or every"),
        ({"cron": "", "every": "soon"}, "is not a duration"),
        ({"timezone": "Mars/Base"}, "is not a known time zone"),
        ({"payload": "{"}, "Not JSON"),
        ({"payload": '{"a": "{{today}}"}'}, "payload.a: has an unknown placeholder"),
        ({"topic": "strict"}, "payload.pages: Field required"),
        ({"topic": "../x"}, "topic"),
        ({"startAt": "tomorrow"}, "startAt"),
        ({"jitter": "many"}, "is not a number"),
        ({"id": "a b"}, "is not a schedule"),
    ]
    for change, message in cases:
        answer = await visitor.post("/_/new-schedule", **{**FORM, **change})
        assert answer.status_code == 400, change
        text = words(answer.text)
        assert "Not saved" in text, change
        assert message in text, (change, text)
        assert (await visitor.post("/_/schedule-preview", **{**FORM, **change})).status_code == 200
    assert await visitor.queue.schedules.list() == []


async def test_editing_keeps_what_was_not_changed(visitor: Visitor) -> None:
    await visitor.queue.schedules.create(
        "report", "0 9 * * *", id="daily", payload={"a": 1}, scope="user", missed="all"
    )
    given = await filled(visitor, "/_/schedules/daily")
    answer = await visitor.post("/_/schedules/daily", **{**given, "cron": "0 10 * * *"})
    assert answer.status_code == 303, words(answer.text)
    after = await visitor.queue.schedules.get("daily")
    assert (after.cron, after.payload, after.scope, after.missed, after.version) == (
        "0 10 * * *",
        {"a": 1},
        "user",
        "all",
        2,
    )
    stale = await visitor.post("/_/schedules/daily", **{**given, "cron": "0 11 * * *"})
    assert stale.status_code == 409
    assert "is at version 2, not 1" in words(stale.text)
    assert "Saved now: cron 0 10 * * *." in words(stale.text)
    assert 'value="0 11 * * *"' in stale.text, "what was typed stays"
    again = await visitor.post("/_/schedules/daily", **{**given, "cron": "0 11 * * *", "version": "2"})
    assert again.status_code == 303


async def test_an_interval_replaces_the_cron_expression(visitor: Visitor) -> None:
    await visitor.queue.schedules.create("report", "0 9 * * *", id="daily")
    given = await filled(visitor, "/_/schedules/daily")
    await visitor.post("/_/schedules/daily", **{**given, "cron": "", "every": "90s"})
    after = await visitor.queue.schedules.get("daily")
    assert (after.cron, after.every_ms) == (None, 90_000)
    assert "Every 90 seconds" in await visitor.text("/_/schedules")


async def test_run_now_makes_a_job_and_leads_to_it(visitor: Visitor) -> None:
    made = await visitor.queue.schedules.create("report", "0 9 * * *", id="daily")
    answer = await visitor.post("/_/schedules/daily/run")
    [job] = await visitor.queue.list()
    assert flash(answer) == "daily made a job."
    assert (job.schedule_id, (await visitor.queue.schedules.get("daily")).next_ms) == ("daily", made.next_ms)
    assert f"/_/jobs/{job.id}" in (await visitor.get("/_/schedules/daily")).text


async def test_a_switch_turns_it_off_and_on(visitor: Visitor) -> None:
    await visitor.queue.schedules.create("report", "0 9 * * *", id="daily")
    await visitor.post("/_/schedules/daily/disable", back="/_/schedules/daily")
    assert not (await visitor.queue.schedules.get("daily")).enabled
    page = (await visitor.get("/_/schedules")).text
    assert 'action="/_/schedules/daily/enable"' in page
    assert "0 on, 1 off" in words(page)
    answer = await visitor.post("/_/schedules/daily/enable", back="https://elsewhere.example/")
    assert answer.headers["location"] == "/_/schedules"
    assert (await visitor.queue.schedules.get("daily")).enabled


async def test_the_last_outcomes_are_drawn_and_named(visitor: Visitor) -> None:
    await visitor.queue.schedules.create("mail", "0 9 * * *", id="daily")
    for error in ("", "SmtpError: refused"):
        await visitor.queue.schedules.run("daily")
        (claimed,) = await visitor.hands.claim("mail", limit=1)
        await (visitor.hands.fail(claimed, error) if error else visitor.hands.complete(claimed, None))
    page = (await visitor.get("/_/schedules")).text
    kinds = re.search(r"Last runs, newest last: ([\w, ]+)", page)
    assert kinds
    assert kinds[1].startswith("completed")


async def test_deleting_asks_and_one_from_code_stays(visitor: Visitor) -> None:
    await visitor.queue.schedules.create("report", "0 9 * * *", id="daily")
    assert "The jobs that it made stay" in await visitor.text("/_/schedules/daily/delete")
    assert (await visitor.confirm("/_/schedules/daily/delete")).status_code == 303
    assert await visitor.queue.schedules.list() == []
    visitor.queue.register("nightly", lambda: None, schedule="@daily")
    await visitor.queue.save_templates()
    page = await visitor.text("/_/schedules/nightly")
    assert "It comes from code, dashboard/test_schedules.py" in page
    assert "Delete" not in page
    assert (await visitor.post("/_/schedules/nightly/delete")).status_code == 409


async def test_many_schedules_are_paged_and_searched(sqlite_visitor: Visitor) -> None:
    for i in range(60):
        await sqlite_visitor.queue.schedules.create(f"topic_{i}", "@daily", id=f"s{i}")
    first, second = [await sqlite_visitor.text(f"/_/schedules?page={page}") for page in (1, 2)]
    assert "s0 topic_0 " in first
    assert "Page 2 of 2" in second
    assert "s59 topic_59 " in second
    assert "s59 topic_59 " in await sqlite_visitor.text("/_/schedules?q=topic_59")
    assert "No schedule matches" in await sqlite_visitor.text("/_/schedules?q=nothing")
    for odd in ("page=x", "page=99999", "page=-1", "open=nothing"):
        assert (await sqlite_visitor.get(f"/_/schedules?{odd}")).status_code == 200


async def test_markup_stays_text(sqlite_visitor: Visitor) -> None:
    evil: dict[str, Any] = {"<img src=x onerror=alert(1)>": "<script>alert(2)</script>"}
    await sqlite_visitor.queue.schedules.create("report", "@daily", id="daily", payload=evil, scope="<b>x</b>")
    for path in (
        "/_/schedules",
        "/_/schedules/daily",
        "/_/schedules?q=<script>alert(3)</script>",
        "/_/new-schedule?topic=<i>",
    ):
        page = (await sqlite_visitor.get(path)).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "<b>x</b>" not in page


async def test_a_read_only_dashboard_changes_nothing(sqlite_url: str) -> None:
    async with visiting(sqlite_url, read_only=True) as visitor:
        await visitor.queue.schedules.create("report", "@daily", id="daily")
        page = (await visitor.get("/_/schedules")).text
        assert "Run now" not in page
        for path in ("/_/new-schedule", "/_/schedules/daily", "/_/schedules/daily/run", "/_/schedules/daily/disable"):
            assert (await visitor.post(path, **FORM)).status_code == 403
        assert (await visitor.queue.schedules.get("daily")).enabled


async def test_a_secret_is_never_shown_and_stays_when_the_rest_is_edited(visitor: Visitor) -> None:
    visitor.queue.register("pay", lambda payload: None, secret=["token"])
    await visitor.queue.save_templates()
    given = {**FORM, "topic": "pay", "payload": '{"user": "ann", "token": "s3cr3t"}'}
    assert (await visitor.post("/_/new-schedule", id="monthly", **given)).status_code == 303
    for path in ("/_/schedules", "/_/schedules/monthly", "/_/system"):
        assert "s3cr3t" not in (await visitor.get(path)).text
    form = await filled(visitor, "/_/schedules/monthly")
    form["payload"] = form["payload"].replace("ann", "bob")
    preview = await visitor.post("/_/schedule-preview", **form)
    assert "The next job gets" in preview.text
    assert "s3cr3t" not in preview.text
    saved = await visitor.post("/_/schedules/monthly", **form)
    assert saved.status_code == 303, saved.text[-2000:]
    (record,) = await visitor.queue.store.get_records([("schedule", "monthly")])
    assert record is not None
    assert '"token":"s3cr3t"' in record.body
    assert '"user":"bob"' in record.body


async def test_a_search_does_not_find_a_secret(visitor: Visitor) -> None:
    visitor.queue.register("pay", lambda payload: None, secret=["token"])
    await visitor.queue.save_templates()
    await visitor.queue.schedules.create("pay", "@monthly", id="monthly", payload={"user": "ann", "token": "s3cr3t"})
    assert (await visitor.queue.schedules.page(0, 10, "ann")).total == 1
    assert (await visitor.queue.schedules.page(0, 10, "s3c")).total == 0
