"""Schedules and templates, as a person with a browser uses them."""

from __future__ import annotations

import re
from typing import Any, Literal

from playwright.sync_api import expect
from pydantic import BaseModel, Field

from tests.browser.person import Person
from treadle import Queue


class Report(BaseModel):
    month: str = Field(pattern=r"^\d{4}-\d{2}$", description="Such as 2026-01")
    pages: int = Field(10, ge=1)
    format: Literal["pdf", "csv"] = "pdf"
    options: dict[str, int] = {}


async def report(payload: Report) -> None: ...


def release(person: Person, **options: Any) -> None:
    """A program with this code starts."""
    queue: Queue = person.site.queue
    queue.handlers.clear()
    queue.register("report", report, title="Monthly report", **options)
    person.site.run(queue.save_templates())


def test_a_person_makes_a_schedule_and_sees_what_it_means_while_typing(person: Person) -> None:
    person.open("/schedules")
    person.page.get_by_role("link", name="New schedule").first.click()
    person.ready()
    person.page.get_by_label("Cron").fill("30 2 * * *")
    person.page.get_by_label("Timezone").fill("Europe/Berlin")
    outlook = person.page.locator("#outlook")
    expect(outlook).to_contain_text("Every day at 02:30 (Europe/Berlin).")
    expect(person.page.locator("#next-runs li")).to_have_count(5)
    person.page.get_by_label("Cron").fill("61 * * * *")
    expect(outlook).to_contain_text("is not a cron expression")
    person.page.get_by_role("link", name="weekdays at 09:00").click()
    expect(outlook).to_contain_text("Weekdays at 09:00")
    person.page.locator("#topic").fill("report")
    person.page.locator("#id").fill("morning")
    person.page.get_by_label("Payload").fill('{"until": "{{scheduledAt}}"}')
    expect(person.page.locator("#payload-words")).to_contain_text("The next job gets")
    person.page.get_by_role("button", name="Make it").click()
    expect(person.page.get_by_role("link", name="morning", exact=True)).to_be_visible()
    made = person.site.run(person.site.queue.schedules.get("morning"))
    assert (made.cron, made.timezone, made.topic) == ("0 9 * * MON-FRI", "Europe/Berlin", "report")


def test_a_person_runs_a_schedule_now_and_switches_it_off(person: Person) -> None:
    person.site.run(person.site.queue.schedules.create("report", "0 9 * * *", id="daily"))
    person.open("/schedules")
    person.page.get_by_role("button", name="Run daily now").click()
    expect(person.page.locator(".toast")).to_contain_text("daily made a job.")
    [job] = person.site.run(person.site.queue.list())
    assert job.schedule_id == "daily"
    person.page.get_by_role("switch", name="daily enabled").click()
    expect(person.page.get_by_role("switch", name="daily enabled")).to_have_attribute("aria-checked", "false")
    assert not person.site.run(person.site.queue.schedules.get("daily")).enabled


def test_a_person_deletes_a_schedule_after_a_question(person: Person) -> None:
    person.site.run(person.site.queue.schedules.create("report", "0 9 * * *", id="daily"))
    person.open("/schedules/daily")
    person.page.get_by_role("link", name="Delete…").click()
    expect(person.dialog).to_contain_text("Delete the schedule daily?")
    person.page.keyboard.press("Escape")
    expect(person.dialog).to_have_count(0)
    person.page.get_by_role("link", name="Delete…").click()
    person.dialog.get_by_role("button", name="Delete").click()
    expect(person.page.get_by_text("No schedules yet")).to_be_visible()


def test_a_person_enqueues_a_job_by_the_form_of_its_template(person: Person) -> None:
    release(person)
    person.open("/templates")
    person.page.get_by_role("link", name="Enqueue report").click()
    person.ready()
    form = person.page.locator("#enqueue form")
    form.get_by_label("month").fill("January")
    form.get_by_label("pages").fill("0")
    form.get_by_role("button", name="Enqueue job").click()
    expect(form.get_by_role("alert")).to_contain_text("2 fields do not fit the schema. Nothing was stored.")
    expect(form.get_by_label("month")).to_have_attribute("aria-invalid", "true")
    expect(form.get_by_label("month")).to_have_value("January")
    form.get_by_label("month").fill("2026-01")
    form.get_by_label("pages").fill("25")
    form.get_by_label("format").select_option(label="csv")
    form.get_by_label("options").fill('{"dpi": 300}')
    form.get_by_role("button", name="Enqueue job").click()
    person.page.wait_for_url(re.compile("/_/jobs/[0-9a-f-]{36}"))
    [job] = person.site.run(person.site.queue.list())
    assert job.payload == {"month": "2026-01", "pages": 25, "format": "csv", "options": {"dpi": 300}}


def test_a_person_copies_the_code_that_enqueues_a_job(person: Person) -> None:
    release(person)
    person.open("/templates/report")
    code = person.page.locator("#as-code")
    shown = code.locator(".codebox").filter(visible=True)
    expect(shown).to_contain_text("curl -X POST")
    expect(shown).to_contain_text('{"topic": "report", "payload": {"month": "text"}}')
    code.get_by_text("Python", exact=True).click()
    expect(shown).to_have_text("await queue.enqueue('report', {'month': 'text'})")
    person.page.get_by_label("month").fill("October")
    person.page.get_by_role("textbox", name="pages").fill("3")
    person.page.get_by_role("button", name="Enqueue job").click()
    expect(person.page.get_by_role("alert")).to_contain_text("1 field does not fit")
    code.get_by_text("Python", exact=True).click()
    expect(shown).to_have_text("await queue.enqueue('report', {'month': 'October', 'pages': 3})")


def test_a_person_compares_versions_and_rolls_back(person: Person) -> None:
    release(person, timeout="10m")
    release(person, timeout="1m")
    person.open("/templates/report")
    expect(person.page.locator(".diff")).to_contain_text("timeoutSeconds")
    person.page.get_by_role("link", name="Use version 1 again").click()
    expect(person.dialog).to_contain_text("Use version 1 of report?")
    person.dialog.get_by_role("button", name="Use version 1").click()
    expect(person.page.get_by_text("rolled back", exact=True)).to_be_visible()
    assert person.site.run(person.site.queue.templates.get("report")).version == 1


def test_a_person_switches_a_template_off(person: Person) -> None:
    release(person)
    person.open("/templates")
    person.page.get_by_role("switch", name="report enabled").click()
    expect(person.page.get_by_role("switch", name="report enabled")).to_have_attribute("aria-checked", "false")
    expect(person.page.get_by_role("link", name="Enqueue report")).to_have_count(0)
    assert not person.site.run(person.site.queue.templates.get("report")).enabled


def test_the_new_pages_are_reached_by_keys(person: Person) -> None:
    person.open("/")
    person.press("g", "c")
    person.page.wait_for_url(re.compile("/_/schedules$"))
    person.ready()
    person.press("g", "p")
    person.page.wait_for_url(re.compile("/_/templates$"))
