"""Every page, light and dark, on a desk and on a phone, looked at by axe: nothing serious."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.furnished import page_paths
from tests.browser.person import Person
from tests.browser.site import Site

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
SERIOUS = ("serious", "critical")
LOOKS = [("light", 1280), ("dark", 1280), ("light", 380), ("dark", 380)]


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def viewer(request: pytest.FixtureRequest, browser: Browser, furnished: Site) -> Iterator[Person]:
    theme, width = request.param
    # Only here: axe is put into the page as a script, which the policy would refuse.
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
    person = Person(context.new_page(), furnished)
    person.enter()
    yield person
    context.close()


def faults(page: Page) -> list[str]:
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": TAGS}}).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]}" for one in found if one["impact"] in SERIOUS for node in one["nodes"][:3]
    ]


def test_no_page_has_a_serious_fault(viewer: Person) -> None:
    found = {}
    for path in page_paths(viewer.site):
        viewer.open(path)
        found[path] = faults(viewer.page)
        wide = viewer.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{path} scrolls sideways by {wide} px"
    assert {path: told for path, told in found.items() if told} == {}


def test_a_long_topic_does_not_make_the_jobs_page_wider(viewer: Person) -> None:
    topic = "t" * 100
    job = viewer.site.run(viewer.site.queue.enqueue(topic, delay="1h"))
    try:
        viewer.open(f"/jobs?topic={topic}")
        wide = viewer.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"it scrolls sideways by {wide} px"
        assert viewer.page.locator("select[name=topic] option").get_by_text(topic).count() == 1
    finally:
        viewer.site.run(viewer.site.queue.delete(job.id))


def test_dialogs_menus_and_selections_have_none_either(viewer: Person) -> None:
    failed = next(job for job in viewer.site.run(viewer.site.queue.list()) if job.status == "failed")
    viewer.open("/jobs")
    viewer.row(failed.id).get_by_role("checkbox").click()
    expect(viewer.page.locator("#bulk")).to_be_visible()
    assert faults(viewer.page) == []
    viewer.press("Escape")
    viewer.row(failed.id).get_by_role("button", name=re.compile("Actions")).click()
    expect(viewer.page.get_by_role("menu")).to_be_visible()
    assert faults(viewer.page) == []
    viewer.page.get_by_role("menuitem", name=re.compile("Delete")).click()
    expect(viewer.dialog).to_be_visible()
    assert faults(viewer.page) == []


def test_open_menus_and_suggestions_have_none_either(viewer: Person) -> None:
    viewer.open("/jobs")
    viewer.page.get_by_label("Search jobs").focus()
    expect(viewer.page.get_by_role("listbox")).to_be_visible()
    assert faults(viewer.page) == []
    viewer.press("Escape")
    viewer.press("Control+k")
    expect(viewer.page.get_by_role("option").first).to_be_visible()
    assert faults(viewer.page) == []
    viewer.press("Escape", "Escape")
    for summary in (".who-drop > summary", ".nav-more-drop > summary", "main details.drop > summary"):
        found = viewer.page.locator(summary).first
        if found.is_visible():
            found.click()
            assert faults(viewer.page) == [], summary
            viewer.press("Escape")


@pytest.mark.parametrize("path", ["/topics", "/workers", "/schedules", "/errors", "/templates"])
def test_the_menus_of_rows_have_none_either(viewer: Person, path: str) -> None:
    viewer.open(path)
    viewer.page.locator(".row-drop > summary").first.click()
    expect(viewer.page.locator(".row-drop[open] .menu")).to_be_visible()
    assert faults(viewer.page) == []


def test_dialogs_that_want_something_typed_and_refused_forms_have_none_either(viewer: Person) -> None:
    viewer.open("/jobs?status=failed")
    viewer.press("Shift+A", "d")
    expect(viewer.dialog).to_be_visible()
    assert faults(viewer.page) == []
    viewer.press("Control+Enter")
    expect(viewer.dialog.locator("[aria-invalid=true], :invalid").first).to_be_attached()
    assert faults(viewer.page) == []
    viewer.open("/system")
    viewer.page.get_by_label("Stale after", exact=True).fill("soon")
    viewer.page.locator("#retention").get_by_role("button", name="Save").click()
    expect(viewer.page.get_by_role("alert")).to_be_visible()
    assert faults(viewer.page) == []
    viewer.page.get_by_role("link", name="New key").click()
    expect(viewer.dialog).to_be_visible()
    assert faults(viewer.page) == []


def test_a_trial_of_a_rule_has_none_either(viewer: Person) -> None:
    viewer.open("/system")
    viewer.page.get_by_label("Who may see and manage").fill("@request.auth.id != '' || topic = 'mail'")
    viewer.page.get_by_role("button", name="Try").click()
    expect(viewer.page.get_by_label("The comparisons of the rule").get_by_role("listitem")).to_have_count(2)
    assert faults(viewer.page) == []
    wide = viewer.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"it scrolls sideways by {wide} px"


def test_an_open_step_an_unfolded_answer_and_a_refused_one_have_none_either(viewer: Person) -> None:
    jobs = viewer.site.run(viewer.site.queue.list())
    viewer.open(f"/jobs/{next(job.id for job in jobs if job.topic == 'rag')}")
    viewer.page.locator(".step-result summary").first.click()
    viewer.page.locator(".step-drop summary").first.click()
    assert faults(viewer.page) == []
    viewer.open(f"/jobs/{next(job.id for job in jobs if job.status == 'waiting')}")
    viewer.page.get_by_text("Answer with an error").click()
    assert faults(viewer.page) == []
    viewer.page.get_by_role("button", name="Send the answer").click()
    expect(viewer.page.get_by_role("alert")).to_be_visible()
    assert faults(viewer.page) == []


def test_the_pages_before_signing_in_have_none(browser: Browser, furnished: Site) -> None:
    for theme in ("light", "dark"):
        context = browser.new_context(color_scheme=theme, bypass_csp=True)
        page = context.new_page()
        for path in ("/_/login", "/_/setup", "/_/invitation"):
            page.goto(f"{furnished.url}{path}")
            assert faults(page) == []
        context.close()
