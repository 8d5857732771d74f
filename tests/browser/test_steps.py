"""A person watches the steps of a job, runs some again, and answers a waiting one."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.browser.person import Person
from tests.browser.site import Site
from tests.dashboard.flow_jobs import write
from tests.http.api import PASSWORD
from tests.http.served import ROOT
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.lifecycle import Completed


def test_the_waterfall_follows_its_job(person: Person, served: Site) -> None:
    job, claimed = served.run(served.flows.begun(write("fetch", StepState.PROCESSING)))
    person.open(f"/jobs/{job.id}")
    person.live()
    fetch = person.page.locator("#step-1")
    expect(fetch).to_contain_text("processing")
    served.run(served.flows.wrote(claimed, write("fetch", result={"documents": 24})))
    expect(fetch).to_contain_text("completed")
    expect(fetch.locator("rect.b-completed")).to_be_attached()
    fetch.get_by_text(re.compile("^Result")).click()
    expect(fetch.locator(".tree")).to_contain_text("24")
    served.run(served.flows.wrote(claimed, write("approve", StepState.PROCESSING)))
    expect(person.page.locator("#step-2")).to_contain_text("processing")
    expect(fetch.locator(".tree")).to_be_visible()  # what was unfolded stays unfolded
    served.run(served.flows.ended(claimed, Completed('"done"')))
    expect(person.page.locator("#job-head")).to_contain_text("completed")


def test_run_from_here_asks_first_and_then_runs(person: Person, served: Site) -> None:
    job = served.run(served.flows.failed())
    person.open(f"/jobs/{job.id}")
    person.page.get_by_label("Actions for approve").click()
    person.page.get_by_role("link", name="Run from here").locator("visible=true").click()
    expect(person.dialog).to_contain_text("steps run: approve, publish")
    expect(person.dialog).to_contain_text("kept, results included: fetch")
    assert served.get(job.id).status is Status.FAILED
    person.press("Control+Enter")
    expect(person.page.locator("#job-head")).to_contain_text("pending")
    assert [step["status"] for step in served.get(job.id).steps] == ["completed", "pending", "pending"]


def test_a_step_chosen_in_the_requeue_dialog_gets_its_dry_run_in_the_dialog(person: Person, served: Site) -> None:
    job = served.run(served.flows.failed())
    person.open(f"/jobs/{job.id}")
    person.press("r")
    person.dialog.get_by_label("From a step on").check()
    person.dialog.get_by_label("From step").select_option("publish")
    person.press("Control+Enter")
    expect(person.dialog).to_contain_text("step runs: publish")
    assert served.get(job.id).status is Status.FAILED
    person.press("Control+Enter")
    expect(person.page.locator("#job-head")).to_contain_text("pending")


def test_a_waiting_step_is_answered_by_keyboard(person: Person, served: Site) -> None:
    job = served.run(served.flows.waiting())
    person.open("/jobs?status=waiting")
    expect(person.row(job.id)).to_contain_text("Step approve waits for an answer. It gives up in 2d 23h.")
    person.open(f"/jobs/{job.id}")
    person.page.get_by_label("Yes").focus()
    person.press("Space")
    person.page.get_by_label("audience").select_option("internal")
    person.page.get_by_label("note").fill("Replace the annex")
    person.press("Control+Enter")
    expect(person.page.locator("#job-head")).to_contain_text("pending")
    expect(person.page.locator(".toast")).to_contain_text("approve has its answer")
    expect(person.page.locator("#timeline")).to_contain_text(f"answered by {ROOT}")
    answer = {"ok": True, "audience": "internal", "note": "Replace the annex"}
    assert served.get(job.id).steps[1]["result"] == answer


def test_a_refused_answer_shows_its_faults_and_keeps_what_was_written(person: Person, served: Site) -> None:
    job = served.run(served.flows.waiting())
    person.open(f"/jobs/{job.id}")
    person.page.get_by_label("limit").fill("many")
    person.page.get_by_role("button", name="Send the answer").click()
    expect(person.page.get_by_role("alert")).to_contain_text("Nothing was stored")
    limit = person.page.get_by_label("limit")
    expect(limit).to_have_attribute("aria-invalid", "true")
    expect(limit).to_have_value("many")
    limit.fill("3")
    person.page.get_by_label("Yes").check()
    person.page.get_by_role("button", name="Send the answer").click()
    expect(person.page.locator("#job-head")).to_contain_text("pending")
    assert served.get(job.id).steps[1]["result"]["limit"] == 3


def test_a_half_written_answer_survives_patches(person: Person, served: Site) -> None:
    job = served.run(served.flows.waiting())
    person.open(f"/jobs/{job.id}")
    person.live()
    note = person.page.get_by_label("note")
    note.fill("half a sen")
    person.page.locator("input[value=false]").check()
    person.page.get_by_label("audience").select_option("internal")
    for _ in range(2):
        person.page.evaluate("new Promise(done => document.addEventListener('treadle:patched', done, {once: true}))")
    expect(note).to_have_value("half a sen")
    expect(person.page.get_by_label("audience")).to_have_value('"internal"')
    expect(person.page.locator("input[value=false]")).to_be_checked()


def test_the_form_disappears_when_another_person_has_answered(person: Person, served: Site) -> None:
    job = served.run(served.flows.waiting({"type": "boolean"}))
    person.open(f"/jobs/{job.id}")
    person.live()
    expect(person.page.get_by_role("button", name="Send the answer")).to_be_visible()
    served.run(served.flows.answered(job, "true"))
    expect(person.page.get_by_role("button", name="Send the answer")).to_have_count(0)
    expect(person.page.locator("#step-2")).to_contain_text("completed")


def test_without_javascript_a_step_is_answered_and_run_again(browser: Browser, served: Site) -> None:
    waiting = served.run(served.flows.waiting({"type": "boolean"}))
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{served.url}/_/login")
    page.get_by_label("Email").fill(ROOT)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.goto(f"{served.url}/_/jobs/{waiting.id}")
    page.get_by_label("Yes").check()
    page.get_by_role("button", name="Send the answer").click()
    expect(page.locator("#job-head")).to_contain_text("pending")
    assert served.get(waiting.id).steps[1]["result"] is True
    failed = served.run(served.flows.failed(topic="rag_report"))
    page.goto(f"{served.url}/_/jobs/{failed.id}")
    page.locator("#step-3 .step-drop summary").click()
    page.locator("#step-3").get_by_role("link", name="Run from here").click()
    expect(page.locator(".ask")).to_contain_text("1 step runs: publish", use_inner_text=True)
    page.get_by_role("button", name="Requeue").click()
    expect(page.locator("#job-head")).to_contain_text("pending")
    context.close()
