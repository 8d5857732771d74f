"""The dashboard in one hand: cards that open, targets for a thumb, and no sideways scroll."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.person import Person
from tests.browser.site import Site

LONG = ("partner_catalogue_incremental_reconciliation_and_repricing_of_everything_there_is_in_" + "x" * 20)[:100]
THUMB = 44


@pytest.fixture
def phone(page: Page, person: Person) -> Person:
    page.set_viewport_size({"width": 380, "height": 800})
    return person


def width(phone: Person) -> int:
    found: int = phone.page.evaluate("document.documentElement.scrollWidth")
    return found


def test_a_name_of_a_hundred_characters_breaks(phone: Person, served: Site) -> None:
    job = served.fail(LONG)
    for path in ("/jobs", f"/jobs/{job.id}", "/topics", "/errors", "/"):
        phone.open(path)
        assert width(phone) == 380, path


def test_the_whole_card_opens_the_job_and_its_box_does_not(phone: Person, served: Site) -> None:
    job = served.enqueue("mail", {"userId": "123"})
    phone.open("/jobs")
    row = phone.row(job.id)
    row.locator(".check").check()
    expect(phone.page).to_have_url(f"{served.url}/_/jobs")
    phone.page.keyboard.press("Escape")
    box = row.locator(".payload").bounding_box()
    assert box
    phone.page.mouse.click(box["x"] + 20, box["y"] + box["height"] / 2)
    phone.page.wait_for_url(f"**/jobs/{job.id}")


def test_the_chosen_tab_is_in_view(phone: Person, served: Site) -> None:
    served.enqueue("mail")
    phone.open("/jobs?status=expired")
    box = phone.page.locator("#tabs a[aria-current]").bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 380


def test_targets_are_for_a_thumb(phone: Person, served: Site) -> None:
    served.fail("mail")
    for path in ("/jobs", "/topics", "/"):
        phone.open(path)
        small = phone.page.evaluate(
            """(most) => [...document.querySelectorAll("main .btn:not(.btn-link), main .select, main .more, #tabs a")]
                .filter((e) => e.checkVisibility() && e.getBoundingClientRect().height > 0)
                .filter((e) => e.getBoundingClientRect().height < most && !e.closest(".row-actions"))
                .map((e) => e.outerHTML.slice(0, 120))""",
            THUMB,
        )
        assert small == [], path
