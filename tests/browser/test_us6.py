"""Seed 000's user story 6, scenario by scenario, and its two drawings."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.person import Person
from tests.browser.site import Site

pytestmark = pytest.mark.every_store

STACK = """Traceback (most recent call last):
  File "/app/workers.py", line 15, in mail_digest_worker
    await send_mail(user)
  File "/app/mail.py", line 42, in send_mail
    raise SmtpError("SMTP connection failed")
SmtpError: SMTP connection failed"""


def test_1_a_superuser_sees_the_list_of_jobs_in_pages(person: Person, served: Site) -> None:
    jobs = served.enqueue_many("mail_digest", 120, delay="1h")
    person.page.get_by_role("link", name="Jobs", exact=True).first.click()
    person.page.wait_for_url("**/_/jobs")
    seen: list[str] = []
    for number in (1, 2, 3):
        expect(person.page.get_by_label("Pages of the list")).to_contain_text(f"Page {number} of 3")
        seen += person.page.locator("tbody[data-job]").evaluate_all("rows => rows.map(row => row.dataset.job)")
        if number < 3:
            person.page.get_by_role("link", name="Next").click()
            person.page.wait_for_url(f"**page={number + 1}")
    assert sorted(seen) == sorted(job.id for job in jobs), "jobs with one timestamp all appear, each once"
    person.page.get_by_role("link", name="Previous").click()
    expect(person.page.get_by_label("Pages of the list")).to_contain_text("Page 2 of 3")


def test_2_a_row_shows_topic_status_run_at_retries_and_error(person: Person, served: Site) -> None:
    job = served.fail("mail_digest", STACK)
    person.open("/jobs?cols=error")
    row = person.row(job.id)
    for text in ("mail_digest", "failed", "1 / 1", "SMTP connection failed", f"…{job.id[-8:]}"):
        expect(row).to_contain_text(text)
    expect(row.locator("time").first).to_have_attribute("title", re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"))


@pytest.mark.parametrize("status", ["pending", "processing", "completed", "failed"])
def test_3_the_list_is_filtered_by_status(person: Person, served: Site, status: str) -> None:
    ids = {"completed": served.complete("one").id, "failed": served.fail("two").id}
    ids |= {"processing": served.enqueue("three").id}
    served.start("three")
    ids |= {"pending": served.enqueue("four", delay="1h").id}
    person.open("/jobs")
    tab = person.page.get_by_label("Status").get_by_role("link", name=re.compile(status.capitalize()))
    expect(tab).to_contain_text("1")
    tab.click()
    person.page.wait_for_url(f"**status={status}")
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)
    expect(person.row(ids[status])).to_contain_text(status)


def test_4_a_failed_job_shows_its_error_in_detail(person: Person, served: Site) -> None:
    job = served.fail("mail_digest", STACK)
    person.open("/jobs?status=failed")
    person.row(job.id).get_by_role("link", name="mail_digest").click()
    person.page.wait_for_url(f"**/_/jobs/{job.id}")
    error = person.page.locator("#error")
    expect(error.get_by_role("heading")).to_contain_text("SMTP connection failed")
    for text in ("mail.py:42 in send_mail", "workers.py:15 in mail_digest_worker"):
        expect(error.locator(".stack-trace")).to_contain_text(text)
    assert error.bounding_box()["y"] < 400, "above the fold"  # type: ignore[index]


def test_5_requeue_puts_it_back_with_no_retries(person: Person, served: Site) -> None:
    job = served.fail("mail_digest", STACK)
    person.open(f"/jobs/{job.id}")
    person.page.locator("#job-head").get_by_role("link", name=re.compile("Requeue")).click()
    person.dialog.get_by_role("button", name=re.compile("Requeue")).click()
    expect(person.page.locator("#job-head")).to_contain_text("pending")
    found = served.get(job.id)
    assert (found.status, found.retries) == ("pending", 0)


def test_6_the_counts_the_success_rate_and_the_average_are_shown(person: Person, served: Site) -> None:
    for _ in range(3):
        served.complete("mail_digest")
    served.fail("mail_digest")
    served.enqueue("other", delay="1h")
    person.open("/jobs")
    counts = person.page.get_by_label("All jobs")
    for text in ("Pending1", "Processing0", "Completed3", "Failed1", "Success rate75.0 %"):
        expect(counts).to_contain_text(text)
    expect(counts).to_contain_text(re.compile(r"Average execution(< )?[\d.]+ m?s"))


def test_the_drawing_of_the_list(person: Person, served: Site) -> None:
    """Refresh, status, topic and search above; id, topic, status, run at and actions in rows; pages below."""
    pending, failed = served.enqueue("mail_digest", delay="1h"), served.fail("pdf_embed")
    running, done = served.enqueue("check_pay"), served.complete("mail_done")
    served.start("check_pay")
    person.open("/jobs")
    main = person.page.get_by_role("main")
    for name in ("Refresh", "View", "Retry", "Delete"):
        expect(main.get_by_role("link", name=re.compile(f"^{name}")).first).to_be_attached()
    expect(main.get_by_role("button", name="Search")).to_be_visible()
    for name in ("Topic", "Search jobs"):
        expect(main.get_by_label(name, exact=True)).to_be_visible()
    for name in ("Id", "Topic", "Status", "Run at"):
        expect(main.get_by_role("columnheader", name=name, exact=True)).to_be_visible()
    shown = {
        pending.id: ["View", "Del"],
        running.id: ["View"],
        failed.id: ["View", "Retry", "Del"],
        done.id: ["View", "Retry", "Del"],
    }
    for id, actions in shown.items():
        person.row(id).hover()
        expect(person.row(id).locator(".row-actions a")).to_have_text(actions)
    expect(main.get_by_label("Pages of the list")).to_contain_text("Page 1 of 1")
    served.enqueue("later", delay="1h")
    main.get_by_role("link", name="Refresh").click()
    expect(person.page.locator("tbody[data-job]")).to_have_count(5)
    main.get_by_label("Topic", exact=True).select_option("later")
    person.page.wait_for_url("**topic=later**")
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)


def test_the_drawing_of_one_job(person: Person, served: Site) -> None:
    """Back and retry above; topic, status, created, run at, retries of how many, locked until; payload; last error."""
    job = served.fail("mail_digest", STACK, payload={"userId": "123", "email": "user@example.com"})
    person.open("/jobs?status=failed")
    person.row(job.id).get_by_role("link", name="mail_digest").click()
    expect(person.page.locator("#job-head")).to_contain_text(job.id)
    facts = person.page.locator("#facts dl")
    names = facts.locator("dt").all_inner_texts()
    values = dict(zip(names, facts.locator("dd").all_inner_texts(), strict=True))
    assert list(values)[:6] == ["Topic", "Status", "Created", "Run at", "Retries", "Locked until"]
    assert (values["Topic"], values["Status"], values["Retries"]) == ("mail_digest", "failed", "1 / 1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", values["Created"])
    expect(person.page.locator("#payload")).to_contain_text('"user@example.com"')
    expect(person.page.locator("#error")).to_contain_text("SMTP connection failed")
    person.page.locator("#job-head").get_by_role("link", name="Jobs").click()
    person.page.wait_for_url("**/_/jobs**")
