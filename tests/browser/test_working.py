"""What people do at the dashboard, in a real browser, on every store."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.browser.person import Person
from tests.browser.site import Site


def test_from_the_overview_to_a_failing_job_s_stack_in_two_clicks(person: Person, served: Site) -> None:
    frame = '  File "/app/jobs/mail.py", line 42, in mail\n    await send()\n'
    error = f"Traceback (most recent call last):\n{frame}SmtpError: no"
    served.fail("mail", error)
    person.open("/errors")
    person.page.get_by_role("link", name="Boom", exact=True).click()
    expect(person.page.locator(".stack-trace")).to_contain_text("app/jobs/mail.py:42 in mail")


def test_a_failed_job_is_requeued_from_its_row(person: Person, served: Site) -> None:
    job = served.fail()
    person.open("/jobs")
    person.row(job.id).hover()
    person.row(job.id).get_by_role("link", name=re.compile("Retry")).click()
    expect(person.dialog).to_contain_text("attempts back to 0 of 1")
    person.dialog.get_by_role("button", name=re.compile("Requeue")).click()
    expect(person.page.locator(".toast")).to_contain_text("requeued")
    expect(person.row(job.id)).to_contain_text("pending")
    assert served.get(job.id).status == "pending"


def test_a_completed_job_is_deleted_with_a_question_first(person: Person, served: Site) -> None:
    job = served.complete()
    person.open("/jobs")
    person.row(job.id).hover()
    person.row(job.id).get_by_role("link", name=re.compile("Delete")).click()
    expect(person.dialog.get_by_role("link", name=re.compile("Keep it"))).to_be_focused()
    person.dialog.get_by_role("button", name=re.compile("Delete")).click()
    expect(person.row(job.id)).to_have_count(0)


def test_the_menu_of_a_row_offers_what_is_possible(person: Person, served: Site) -> None:
    job = served.enqueue()
    person.open("/jobs")
    person.row(job.id).get_by_role("button", name=re.compile("Actions")).click()
    menu = person.page.get_by_role("menu")
    expect(menu.get_by_role("menuitem")).to_contain_text(
        ["View", "Cancel…", "Reschedule…", "Run again, edited…", "Copy id", "Delete…"]
    )
    menu.get_by_role("menuitem", name=re.compile("Cancel")).click()
    person.dialog.get_by_label("Reason").fill("wrong address")
    person.dialog.get_by_role("button", name=re.compile("Cancel the job")).click()
    expect(person.row(job.id)).to_contain_text("cancelled")
    assert served.get(job.id).cancel_reason == "wrong address"


def test_every_action_works_by_keyboard(person: Person, served: Site) -> None:
    first, second = served.fail("a"), served.fail("b")
    person.open("/jobs")
    person.press("j", "j", "x")
    expect(person.row(first.id)).to_have_class(re.compile("is-selected"))
    expect(person.page.locator("#bulk")).to_contain_text("1 selected")
    person.press("r")
    expect(person.dialog).to_contain_text("Requeue 1 job?")
    person.press("Control+Enter")
    expect(person.row(first.id)).to_contain_text("pending")
    assert served.get(second.id).status == "failed"
    person.press("g", "t")
    person.page.wait_for_url("**/_/topics")
    person.press("g", "j")
    person.page.wait_for_url("**/_/jobs")
    person.ready()
    person.press("6")
    person.page.wait_for_url("**status=failed**")
    person.ready()
    person.press("/")
    expect(person.page.get_by_label("Search jobs")).to_be_focused()
    person.page.keyboard.type("x")
    expect(person.page.locator(".is-selected")).to_have_count(0)
    person.press("Escape", "Escape", "?")
    expect(person.dialog).to_contain_text("Keyboard shortcuts")
    person.press("Escape")
    expect(person.dialog).to_have_count(0)


def test_a_range_of_three_is_selected_with_shift(person: Person, served: Site) -> None:
    served.enqueue_many("mail", 12, delay="1h")
    person.open("/jobs")
    boxes = person.page.locator("tbody input.check")
    boxes.nth(8).click()
    boxes.nth(10).click(modifiers=["Shift"])
    expect(person.page.locator("tbody.is-selected")).to_have_count(3)
    expect(person.page.locator("#bulk")).to_contain_text("3 selected")


def test_everything_that_matches_is_cancelled_in_one_action(person: Person, served: Site) -> None:
    served.enqueue_many("mail", 70, delay="1h")
    person.open("/jobs?topic=mail")
    person.press("Shift+A")
    person.press("c")
    expect(person.dialog).to_contain_text("Cancel 70 jobs?")
    expect(person.dialog).to_contain_text("topic:mail")
    person.dialog.get_by_role("button", name=re.compile("Cancel 70 jobs")).click()
    expect(person.page.locator(".toast")).to_contain_text("70 jobs cancelled.")
    assert served.run(served.queue.count(status="cancelled")) == 70


def test_a_job_is_enqueued_by_hand(person: Person, served: Site) -> None:
    person.open("/jobs")
    person.page.get_by_role("link", name="Enqueue job").click()
    person.page.get_by_label("Topic", exact=True).fill("mail")
    person.page.get_by_label("Payload").fill('{"threadId": 1970670598291982290}')
    person.page.get_by_role("button", name="Enqueue").click()
    expect(person.page.locator("#payload")).to_contain_text("1970670598291982290")
    expect(person.page.get_by_role("heading", level=1)).to_have_text("mail")


def test_qualifiers_are_completed(person: Person, served: Site) -> None:
    served.enqueue("mail_digest")
    person.open("/jobs")
    box = person.page.get_by_label("Search jobs")
    box.press_sequentially("top")
    person.press("ArrowDown", "Enter")
    expect(box).to_have_value("topic:")
    person.press("ArrowDown", "Enter")
    expect(box).to_have_value("topic:mail_digest ")
    person.press("Enter")
    person.page.wait_for_url("**q=topic*")


def test_payload_keys_their_values_and_errors_are_completed(person: Person, served: Site) -> None:
    job = served.fail("mail_digest", "Boom: refused", payload={"userId": "123", "region": "eu"})
    served.enqueue("other", {"region": "us"}, delay="1h")
    person.open("/jobs")
    box = person.page.get_by_label("Search jobs")
    box.press_sequentially("pay")
    person.press("ArrowDown", "Enter")
    expect(box).to_have_value("payload.")
    box.press_sequentially("use")
    person.press("ArrowDown", "Enter")
    expect(box).to_have_value("payload.userId:")
    person.press("ArrowDown", "Enter")
    expect(box).to_have_value("payload.userId:123 ")
    box.press_sequentially("error:B")
    person.press("ArrowDown", "Enter")
    expect(box).to_have_value("payload.userId:123 error:Boom ")
    person.press("Enter")
    person.page.wait_for_url("**q=payload.userId*")
    person.ready()
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)
    expect(person.row(job.id)).to_be_visible()


def test_qualifiers_become_chips_that_can_be_removed_and_edited(person: Person, served: Site) -> None:
    served.fail("mail")
    served.enqueue("mail", delay="1h")
    person.open("/jobs")
    box = person.page.get_by_label("Search jobs")
    box.fill('topic:mail status:failed payload.userId:"123"')
    person.press("Enter")
    chips = person.page.locator("[data-chip]")
    expect(chips).to_have_text(["topic:mail", "status:failed", 'payload.userId:"123"'])
    expect(box).to_have_value("")
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)
    person.ready()
    person.page.get_by_label("Remove status:failed").click()
    expect(chips).to_have_text(["topic:mail", 'payload.userId:"123"'])
    expect(person.page.locator("tbody[data-job]")).to_have_count(2)
    person.ready()
    box.press("Backspace")
    expect(box).to_have_value('payload.userId:"123"')
    box.fill("status:pending")
    person.press("Enter")
    person.page.wait_for_url("**/_/jobs?q=topic%3Amail+status%3Apending")
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)


def test_the_palette_finds_a_topic(person: Person, served: Site) -> None:
    served.enqueue("mail.weekly")
    person.open("/")
    person.press("Control+k")
    person.page.keyboard.type("weekly")
    expect(person.page.get_by_role("option")).to_contain_text(["mail.weekly", "Jobs with"])
    person.press("ArrowDown", "Enter")
    person.page.wait_for_url("**/_/jobs?topic=mail.weekly")


def test_the_theme_stays(person: Person) -> None:
    person.open("/")
    person.press("t", "t")
    assert person.page.locator("html").get_attribute("data-theme") == "dark"
    person.open("/jobs")
    assert person.page.locator("html").get_attribute("data-theme") == "dark"


def test_copying_works_over_plain_http(person: Person, served: Site) -> None:
    job = served.enqueue()
    person.open("/jobs")
    person.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    person.page.evaluate(
        "document.addEventListener('copy', () => { window.copied = String(document.activeElement.value) })"
    )
    person.row(job.id).hover()
    person.row(job.id).get_by_role("button", name="Copy id").click()
    expect(person.page.locator(".toast")).to_contain_text("Copied")
    assert person.page.evaluate("window.copied") == job.id


def test_a_topic_is_paused_and_resumed(person: Person, served: Site) -> None:
    served.enqueue("mail.weekly")
    person.open("/topics")
    person.page.get_by_role("link", name="Pause mail.weekly").click()
    person.dialog.get_by_label("How long").select_option("1h")
    person.dialog.get_by_role("button", name=re.compile("Pause")).click()
    expect(person.page.locator("#topic-list")).to_contain_text("paused")
    person.page.get_by_role("button", name="Resume mail.weekly").click()
    expect(person.page.locator("#topic-list")).not_to_contain_text("paused")


def test_a_rule_is_tried_before_it_is_saved(person: Person, served: Site) -> None:
    job = served.enqueue(scope="user", scope_id="somebody-else")
    person.open("/system")
    person.page.get_by_label("Who may see and manage").fill("scopeId = @request.auth.id")
    person.page.get_by_label("As", exact=True).fill("ann@example.com")
    person.page.get_by_label("this job").fill(job.id)
    person.page.get_by_role("button", name="Try").click()
    expect(person.page.locator(".verdict")).to_contain_text("Refused, 404")
    person.page.get_by_role("button", name="Save both rules").click()
    expect(person.page.locator(".toast")).to_contain_text("Access rules saved")


def test_two_operators_who_change_the_settings_see_each_other(person: Person, served: Site) -> None:
    person.open("/system")
    other = person.page.context.new_page()
    other.goto(f"{served.url}/_/system")
    other.get_by_label("Stale after", exact=True).fill("3d")
    other.locator("#retention").get_by_role("button", name="Save").click()
    expect(other.locator(".toast")).to_contain_text("Retention saved.")
    person.page.get_by_label("Stale after", exact=True).fill("5d")
    person.page.locator("#retention").get_by_role("button", name="Save").click()
    expect(person.page.get_by_role("alert")).to_contain_text("Stale after: 7d → 3d")
    expect(person.page.get_by_label("Stale after", exact=True)).to_have_value("5d")
    person.page.locator("#retention").get_by_role("button", name="Save").click()
    expect(person.page.locator(".toast")).to_contain_text("Retention saved.")


def test_an_api_key_is_made_shown_once_and_revoked(person: Person) -> None:
    person.open("/system")
    person.page.get_by_role("link", name="New key").click()
    person.dialog.get_by_label("Name").fill("ci")
    person.dialog.get_by_role("button", name=re.compile("Make the key")).click()
    expect(person.page.locator(".secret")).to_contain_text("trdl_")
    person.open("/system")
    expect(person.page.locator(".secret")).to_have_count(0)
    person.page.get_by_role("link", name="Revoke ci").click()
    person.dialog.get_by_role("button", name=re.compile("Revoke")).click()
    expect(person.page.locator("#keys")).to_contain_text("No key yet")


def test_without_javascript_every_page_reads_and_actions_work(browser: Browser, served: Site) -> None:
    context = browser.new_context(java_script_enabled=False)
    person = Person(context.new_page(), served)
    person.sign_in()
    job = served.fail()
    pages = "/ /jobs /errors /topics /schedules /workers /templates /system /jobs/new /new-schedule /system/keys/new"
    for path in (*pages.split(), f"/jobs/{job.id}"):
        person.page.goto(f"{served.url}/_{path}")
        expect(person.page.get_by_role("heading", level=1)).to_be_visible()
    person.page.goto(f"{served.url}/_/jobs")
    person.row(job.id).get_by_role("link", name=re.compile("Retry")).click()
    person.page.get_by_role("button", name=re.compile("Requeue")).click()
    expect(person.page.locator(".toast")).to_contain_text("requeued")
    expect(person.row(job.id)).to_contain_text("pending")
    person.row(job.id).get_by_role("checkbox").check()
    person.page.get_by_role("button", name=re.compile("Cancel")).click()
    person.page.get_by_role("button", name=re.compile("Cancel 1 job")).click()
    expect(person.row(job.id)).to_contain_text("cancelled")
    _more_without_javascript(person, served)
    context.close()


def _more_without_javascript(person: Person, served: Site) -> None:
    """Every other action by a form: edit, release, delete, enqueue, pause, resume, drain, columns, retention."""
    page = person.page

    def press(name: str) -> None:
        page.get_by_role("main").get_by_role("button", name=re.compile(name)).first.click()

    edited = served.enqueue()
    page.goto(f"{served.url}/_/jobs/{edited.id}/edit")
    page.get_by_label("Priority").fill("high")
    press("Save|Change|Edit")
    assert served.get(edited.id).priority == 75
    page.goto(f"{served.url}/_/jobs/{edited.id}/delete")
    press("Delete")
    expect(page.locator(".toast")).to_contain_text("deleted")
    page.goto(f"{served.url}/_/jobs/new")
    page.locator("#topic").fill("by_hand")
    press("Enqueue")
    expect(page.get_by_role("heading", level=1)).to_contain_text("by_hand")
    page.goto(f"{served.url}/_/topics/by_hand/pause")
    press("Pause")
    expect(page.locator("#topic-list")).to_contain_text("paused")
    page.get_by_role("button", name="Resume by_hand").click()
    expect(page.locator(".toast")).to_contain_text("by_hand")
    served.worker("without scripts")
    page.goto(f"{served.url}/_/workers")
    page.get_by_role("link", name="Drain without scripts").click()
    press("Drain")
    expect(page.locator("#worker-list")).to_contain_text("draining")
    page.get_by_role("link", name="Undo the drain of without scripts").click()
    press("Let it go on")
    expect(page.locator("#worker-list")).not_to_contain_text("draining")
    page.goto(f"{served.url}/_/jobs")
    page.get_by_text("Columns").click()
    page.get_by_label("Priority").check()
    press("Show them")
    expect(page.get_by_role("columnheader", name="Priority")).to_be_visible()


def test_on_a_phone_no_action_of_a_job_is_missing(person: Person, served: Site) -> None:
    job = served.fail()
    person.page.set_viewport_size({"width": 380, "height": 800})
    person.open(f"/jobs/{job.id}")
    person.page.get_by_label("More actions").click()
    menu = person.page.locator(".more-acts .menu a")
    expect(menu).to_have_text(["Run again…", "Delete…"])
    wide = person.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    menu.last.click()
    person.dialog.get_by_role("button", name=re.compile("Delete")).click()
    expect(person.page.locator(".toast")).to_contain_text("deleted")


def test_a_job_is_run_again_with_edited_input(person: Person, served: Site) -> None:
    job = served.fail("mail", payload={"userId": "123", "thread": 1970670598291982290})
    person.open(f"/jobs/{job.id}")
    person.page.get_by_role("link", name="Run again…").first.click()
    box = person.page.get_by_label("Payload")
    box.fill('{"userId": "124", "thread": 1970670598291982290}')
    person.page.get_by_role("button", name="Check").click()
    expect(person.page.get_by_role("main").get_by_role("status")).to_contain_text("Nothing was stored yet.")
    expect(person.page.locator("#changed tbody tr")).to_have_count(1)
    assert served.get(job.id).status == "failed"
    box.focus()
    person.press("Control+Enter")
    expect(person.page.locator("#job-head")).to_contain_text("pending")
    assert served.get(job.id).payload == {"userId": "124", "thread": 1970670598291982290}


def test_a_worker_is_drained_in_a_dialog(person: Person, served: Site) -> None:
    lease = served.worker("host:1:abc")
    person.open("/workers")
    person.page.get_by_role("link", name="Drain host:1:abc").click()
    expect(person.dialog).to_contain_text("claims no more jobs")
    person.dialog.get_by_role("button", name="Drain this worker").click()
    expect(person.page.locator("#worker-list")).to_contain_text("draining")
    assert served.draining(lease)


def test_a_drain_of_the_wrong_worker_is_called_off(person: Person, served: Site) -> None:
    lease = served.worker("host:1:abc")
    person.open("/workers")
    person.page.get_by_role("link", name="Drain host:1:abc").click()
    person.dialog.get_by_role("button", name="Drain this worker").click()
    person.page.get_by_role("link", name="Undo the drain of host:1:abc").click()
    expect(person.dialog).to_contain_text("claims jobs again")
    person.dialog.get_by_role("button", name="Let it go on").click()
    expect(person.page.locator("#worker-list")).not_to_contain_text("draining")
    expect(person.page.get_by_role("link", name="Drain host:1:abc")).to_be_visible()
    assert not served.draining(lease)


def test_a_group_of_errors_is_requeued(person: Person, served: Site) -> None:
    jobs = [served.fail("mail", f"SmtpError: connection {n} refused") for n in range(3)]
    person.open("/errors")
    person.page.get_by_role("link", name=re.compile("Requeue 3 jobs")).click()
    expect(person.dialog).to_contain_text("Requeue 3 jobs?")
    person.dialog.get_by_role("button", name="Requeue 3 jobs").click()
    expect(person.page.locator(".toast")).to_contain_text("3 jobs requeued")
    assert {served.get(job.id).status.value for job in jobs} == {"pending"}


def test_columns_are_chosen(person: Person, served: Site) -> None:
    job = served.fail()
    person.open("/jobs?status=failed")
    person.page.get_by_text("Columns").click()
    person.page.get_by_label("Error", exact=True).check()
    person.page.get_by_label("Priority").check()
    person.page.get_by_role("button", name="Show them").click()
    expect(person.page.get_by_role("columnheader", name="Priority")).to_be_visible()
    expect(person.row(job.id)).to_contain_text("50")
    assert "status=failed" in person.page.url
