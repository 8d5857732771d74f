"""The ⋯ of a row on every list but the jobs, and rows that stay where they are while the page is live."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.browser.person import Person
from tests.browser.site import Site

PAGES = {
    "/topics": (
        "mail",
        ["Failed jobs", "Pending jobs", "Enqueue a job…", "Requeue the failed…", "Cancel the pending…"],
    ),
    "/workers": ("host:1:abc", ["Running jobs", "Failed jobs", "Copy the name"]),
    "/schedules": ("nightly", ["Edit", "Next five runs", "Its jobs", "Jobs of the topic", "Delete…"]),
    "/errors": (
        "Boom",
        ["Newest failed job", "Jobs of this group", "Jobs of the topic", "Copy the message", "Delete them…"],
    ),
}


@pytest.fixture
def rows(served: Site) -> Site:
    """A site with a row on each of these pages."""
    served.fail("mail")
    served.worker("host:1:abc")
    served.run(served.queue.schedules.create("mail", "30 2 * * *", id="nightly"))
    return served


def more(person: Person, name: str) -> Locator:
    return person.page.locator("summary").and_(person.page.get_by_label(f"Actions for {name}", exact=True))


@pytest.mark.parametrize("path", PAGES)
def test_the_menu_of_a_row_is_worked_by_keyboard(person: Person, rows: Site, path: str) -> None:
    name, items = PAGES[path]
    person.open(path)
    more(person, name).focus()
    person.press("Enter")
    menu = person.page.locator(".row-drop[open] .menu")
    expect(menu.locator("a, button")).to_have_text(items)
    person.press("Tab")
    expect(menu.locator("a").first).to_be_focused()
    person.press("Escape")
    expect(menu).to_have_count(0)
    expect(more(person, name)).to_be_focused()


def test_a_menu_opens_the_jobs_of_a_group_of_errors(person: Person, rows: Site) -> None:
    person.open("/errors")
    more(person, "Boom").click()
    person.page.get_by_role("link", name="Jobs of this group").click()
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)


def test_a_menu_opens_the_jobs_that_failed_on_a_worker(person: Person, rows: Site) -> None:
    person.open("/workers")
    more(person, "host:1:abc").click()
    person.page.locator(".row-drop[open]").get_by_role("link", name="Failed jobs").click()
    expect(person.page.get_by_role("heading", level=1)).to_have_text("Jobs")
    expect(person.page.get_by_role("alert")).to_have_count(0)
    expect(person.page.locator("tbody[data-job]")).to_have_count(0)


def test_the_failed_jobs_of_a_topic_are_requeued_from_its_menu(person: Person, rows: Site) -> None:
    person.open("/topics")
    more(person, "mail").focus()
    person.press("Enter")
    person.page.get_by_role("link", name="Requeue the failed…").focus()
    person.press("Enter")
    expect(person.dialog).to_contain_text("1")
    person.press("Escape")
    expect(person.page.locator("dialog")).to_have_count(0)
    expect(more(person, "mail")).to_be_focused()
    person.press("Enter")
    person.page.get_by_role("link", name="Requeue the failed…").click()
    expect(person.dialog).to_be_visible()
    person.press("Control+Enter")
    expect(person.page.locator("dialog")).to_have_count(0)
    expect(person.page.locator(".toast")).to_contain_text("requeued")


def test_menus_open_without_javascript(browser: Browser, rows: Site) -> None:
    context = browser.new_context(java_script_enabled=False)
    person = Person(context.new_page(), rows)
    person.sign_in()
    person.page.goto(f"{rows.url}/_/schedules")
    more(person, "nightly").click()
    person.page.get_by_role("link", name="Delete…").click()
    person.page.locator("main form button[type=submit]").click()
    expect(person.page.locator("main")).to_contain_text("No schedules yet")
    context.close()


# The list with its rows the other way round, without the first of them and with a new one on top.
TURNED_ROUND = """() => {
  const list = document.querySelector("#topic-list").cloneNode(true);
  const table = list.querySelector("table");
  const [first, ...rows] = table.tBodies;
  const fresh = first.cloneNode(true);
  fresh.dataset.row = "fresh";
  first.remove();
  table.append(fresh, ...rows.reverse());
  return list.outerHTML;
}"""


def test_live_rows_stay_in_their_places_and_an_open_menu_is_left_alone(person: Person, served: Site) -> None:
    for topic in ("first", "second", "third"):
        served.enqueue(topic, delay="1h")
    patches: list[dict[str, object]] = [{}]

    def stream(route: Route) -> None:
        body = f"retry: 3600000\n\nevent: patch\ndata: {json.dumps(patches[-1])}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    person.page.route(re.compile("/_/live"), stream)
    person.open("/topics")
    expect(person.page.locator("[data-live-word]")).to_have_text("Live")
    names = person.page.locator("#topic-list tbody a.topic")
    expect(names).to_have_text(["first", "second", "third"])
    list_ = person.page.evaluate(TURNED_ROUND)
    note = '<p class="page-note" id="topics-note">arrived</p>'
    patches.append({"regions": {"topic-list": list_, "topics-note": note}})
    more(person, "second").click()
    person.press("l", "l")
    expect(person.page.locator("#topics-note")).to_have_text("arrived")
    expect(person.page.locator("#topic-list tbody")).to_have_count(3)
    person.press("Escape")
    more(person, "third").focus()
    person.page.locator("[data-palette]").focus()
    expect(person.page.locator("#topic-list tbody")).to_have_count(4)
    found = person.page.locator("#topic-list tbody").evaluate_all("rows => rows.map((row) => row.dataset.row)")
    assert found == ["first", "second", "third", "fresh"]
    expect(person.page.locator("#topic-list tbody").first).to_have_class("is-gone")


def test_two_live_workers_of_one_name_both_stay(person: Person, served: Site) -> None:
    served.worker("twin")
    served.worker("twin")
    person.open("/workers")
    person.live()
    served.worker("zoe")
    served.enqueue(delay="1h")  # something happens, so the page is drawn again soon
    expect(person.page.locator("#worker-list tbody")).to_have_count(3)
    expect(person.page.locator("#worker-list .is-gone")).to_have_count(0)
