"""Every key of the dashboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.person import Person
from tests.browser.site import Site
from treadle.model.status import Status

PAGES = {"o": "/_/", "e": "/_/errors", "j": "/_/jobs", "t": "/_/topics", "c": "/_/schedules", "w": "/_/workers"}
PAGES |= {"p": "/_/templates", "s": "/_/system", "h": "/_/webhooks"}


def test_g_and_a_letter_open_each_page(person: Person) -> None:
    for letter, path in PAGES.items():
        person.press("g", letter)
        person.page.wait_for_url(f"{person.site.url}{path}")
        person.ready()


def test_numbers_open_the_tabs_by_status(person: Person, served: Site) -> None:
    served.enqueue(delay="1h")
    person.open("/jobs")
    for number, status in enumerate(Status, start=1):
        person.press(str(number))
        person.page.wait_for_url(f"**status={status}")
        person.ready()
    person.press("0")
    person.page.wait_for_url("**/_/jobs")


def test_rows_are_walked_selected_and_opened(person: Person, served: Site) -> None:
    jobs = served.enqueue_many("mail", 5, delay="1h")[::-1]  # newest first
    person.open("/jobs")
    rows = person.page.locator("tbody[data-job]")
    person.press("j", "j", "k")
    expect(rows.nth(0)).to_have_class(re.compile("is-cursor"))
    person.press("x", "j", "j", "Shift+X")
    expect(person.page.locator("tbody.is-selected")).to_have_count(3)
    person.press("x")
    expect(person.page.locator("#bulk")).to_contain_text("2 selected")
    person.press("a")
    expect(person.page.locator("#bulk")).to_contain_text("5 selected")
    person.press("Escape")
    expect(person.page.locator("#bulk")).to_be_hidden()
    person.press("Shift+A")
    expect(person.page.locator("#bulk")).to_contain_text("All selected")
    person.press("Escape", "k", "Enter")
    person.page.wait_for_url(f"**/_/jobs/{jobs[1].id}")


@pytest.mark.parametrize(
    ("key", "made", "question"),
    [("r", "failed", "Requeue this job?"), ("c", "pending", "Cancel this job?"), ("d", "failed", "Delete this job?")],
)
def test_keys_that_change_something_only_ask(person: Person, served: Site, key: str, made: str, question: str) -> None:
    job = served.fail() if made == "failed" else served.enqueue(delay="1h")
    for path, keys in (("/jobs", ["j", key]), (f"/jobs/{job.id}", [key])):
        person.open(path)
        person.press(*keys)
        expect(person.dialog.get_by_role("heading")).to_have_text(question)
        expect(person.dialog.locator("[data-cancel]"), "the harmless button").to_be_focused()
        person.press("Escape")
        expect(person.dialog).to_have_count(0)
        assert served.get(job.id).status == made


def test_focus_returns_to_where_the_dialog_was_opened(person: Person, served: Site) -> None:
    job = served.fail()
    person.open(f"/jobs/{job.id}")
    button = person.page.locator("#job-head").get_by_role("link", name=re.compile("Delete"))
    button.focus()
    person.press("Enter")
    expect(person.dialog).to_be_visible()
    person.press("Escape")
    expect(button).to_be_focused()


def test_a_closing_dialog_leaves_the_focus_where_the_person_has_moved_it(person: Person, served: Site) -> None:
    job = served.fail()
    person.open(f"/jobs/{job.id}")
    buttons = person.page.locator("#job-head")
    buttons.get_by_role("link", name=re.compile("Delete")).focus()
    person.press("Enter")
    expect(person.dialog).to_be_visible()
    other = buttons.get_by_role("link", name=re.compile("Requeue"))
    # A browser tells of the close after the dialog has gone. We move on before that.
    other.evaluate("""async (other) => {
        const dialog = document.querySelector("dialog");
        const told = new Promise((resolve) => dialog.addEventListener("close", resolve));
        dialog.close();
        other.focus();
        await told;
    }""")
    expect(person.page.locator("dialog")).to_have_count(0)
    expect(other).to_be_focused()


def test_an_action_chosen_twice_opens_one_dialog(person: Person, served: Site) -> None:
    job = served.fail()
    person.open(f"/jobs/{job.id}")
    button = person.page.locator("#job-head").get_by_role("link", name=re.compile("Delete"))
    button.evaluate("""async (button) => {
        const fetched = [];
        const real = window.fetch;
        window.fetch = (...asked) => fetched[fetched.push(real(...asked)) - 1];
        button.click();
        button.click();
        window.fetch = real;
        await Promise.all(fetched);
    }""")
    expect(person.dialog).to_be_visible()
    person.page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 100))")
    expect(person.page.locator("dialog")).to_have_count(1)


def test_brackets_turn_pages_and_y_copies_the_id(person: Person, served: Site) -> None:
    served.enqueue_many("mail", 60, delay="1h")
    person.open("/jobs")
    person.press("]")
    person.page.wait_for_url("**page=2")
    person.ready()
    person.press("[")
    person.page.wait_for_url(re.compile(r"/_/jobs$"))
    person.ready()
    person.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    person.page.evaluate(
        "document.addEventListener('copy', () => { window.copied = String(document.activeElement.value) })"
    )
    person.press("j", "y")
    expect(person.page.locator(".toast")).to_contain_text("Id copied")
    first = person.page.locator("tbody[data-job]").first.get_attribute("data-job")
    assert person.page.evaluate("window.copied") == first


def test_keys_are_ignored_in_inputs_and_can_be_switched_off(person: Person, served: Site) -> None:
    job = served.fail()
    person.open("/jobs")
    box = person.page.get_by_label("Search jobs")
    box.press_sequentially("jxrcdalt0")
    expect(box).to_have_value("jxrcdalt0")
    expect(person.dialog).to_have_count(0)
    box.fill("")
    person.press("Escape", "Escape", "?")
    person.dialog.get_by_label("Single-key shortcuts").uncheck()
    person.press("Escape")
    person.press("g", "t", "j", "d")
    expect(person.dialog).to_have_count(0)
    expect(person.page.locator(".is-cursor")).to_have_count(0)
    person.open("/jobs")
    person.press("6", "d")
    assert person.page.url.endswith("/_/jobs")
    person.press("Control+k")
    expect(person.page.get_by_label("Find a job, topic or page")).to_be_focused()
    assert served.get(job.id).status == "failed"


def test_elements_tell_their_keys(person: Person, served: Site) -> None:
    served.enqueue_many("mail", 60, delay="1h")
    person.open("/jobs")
    told = person.page.locator("[aria-keyshortcuts]").evaluate_all(
        "all => all.flatMap(one => one.getAttribute('aria-keyshortcuts').split(' '))"
    )
    assert {"/", "a", "Shift+A", "r", "c", "d", "l", "t", "]", "Meta+K", *"012345678"} <= set(told)


def test_a_row_s_menu_is_worked_by_keyboard(person: Person, served: Site) -> None:
    job = served.fail()
    person.open("/jobs")
    person.row(job.id).get_by_role("button", name=re.compile("Actions")).focus()
    person.press("Enter")
    items = person.page.get_by_role("menuitem")
    expect(items.first).to_be_focused()
    person.press("ArrowUp")
    expect(items.last).to_be_focused()
    person.press("Escape")
    expect(person.page.get_by_role("menu")).to_have_count(0)
    expect(person.row(job.id).get_by_role("button", name=re.compile("Actions"))).to_be_focused()
