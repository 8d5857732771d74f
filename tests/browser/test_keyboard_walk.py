"""Every page with the keyboard alone: each control is reached by Tab, its focus is seen, and dialogs give it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.furnished import page_paths
from tests.browser.person import Person
from tests.browser.site import Site

MOST_TABS = 400

# Numbers the controls that a person can see and use. Of a group of radio buttons, Tab reaches one.
NUMBER_CONTROLS = """() => {
  const wanted = "a[href], button, input:not([type=hidden]), select, textarea, summary";
  const groups = new Set();
  let count = 0;
  for (const one of document.querySelectorAll(wanted)) {
    if (one.disabled || one.tabIndex < 0 || !one.checkVisibility({ visibilityProperty: true })) continue;
    if (one.type === "radio") {
      const group = one.name + (one.form?.action ?? "");
      if (groups.has(group)) continue;
      groups.add(group);
      for (const other of document.getElementsByName(one.name)) other.dataset.walk = count;
    }
    one.dataset.walk = count++;
  }
  return count;
}"""

# Where the focus is, and what is wrong with how it looks.
LOOK_AT_FOCUS = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const marks = [one, one.nextElementSibling, one.closest("label")].filter(Boolean);
  const ringed = marks.some((mark) => {
    const style = getComputedStyle(mark);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  });
  const box = one.getBoundingClientRect();
  const inside = box.bottom > 0 && box.top < innerHeight;
  return {
    number: one.dataset.walk === undefined ? -1 : Number(one.dataset.walk),
    text: one.outerHTML.slice(0, 160),
    fault: ringed ? (inside ? "" : "off the screen") : "no ring",
  };
}"""


@pytest.fixture(params=[("light", 1280), ("dark", 380)], ids=["desk", "phone"])
def walker(request: pytest.FixtureRequest, browser: Browser, furnished: Site) -> Iterator[Person]:
    theme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
    context.set_default_timeout(15_000)
    person = Person(context.new_page(), furnished)
    person.sign_in()
    # Pages stand still, so that no control is exchanged under the walk.
    person.ready()
    person.press("l")
    expect(person.page.locator("[data-live-word]")).to_have_text("Paused")
    yield person
    assert person.troubles == []
    context.close()


def walk(person: Person) -> tuple[int, set[int], list[str]]:
    """Tab once around the page: how many controls it has, which were reached, and what was wrong."""
    page = person.page
    count: int = page.evaluate(NUMBER_CONTROLS)
    reached: set[int] = set()
    wrong: list[str] = []
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        seen: dict[str, Any] | None = page.evaluate(LOOK_AT_FOCUS)
        if seen is None:
            continue  # from the end to the top
        if seen["number"] in reached:
            break
        if seen["number"] >= 0:
            reached.add(seen["number"])
        if seen["fault"]:
            wrong.append(f"{seen['fault']}: {seen['text']}")
    return count, reached, wrong


def missed(person: Person, numbers: set[int]) -> list[str]:
    find = "number => document.querySelector(`[data-walk='${number}']`).outerHTML.slice(0, 160)"
    return [person.page.evaluate(find, number) for number in sorted(numbers)]


def test_every_control_of_every_page_is_reached_by_tab_with_its_focus_seen(walker: Person) -> None:
    for path in page_paths(walker.site):
        walker.open(path)
        count, reached, wrong = walk(walker)
        assert count > 5, path
        assert missed(walker, set(range(count)) - reached) == [], path
        assert wrong == [], path


def test_every_dialog_opens_by_enter_and_gives_the_focus_back(walker: Person) -> None:
    opened = 0
    for path in page_paths(walker.site):
        walker.open(path)
        links = walker.page.locator("main a[data-dialog]").filter(visible=True)
        for number in range(links.count()):
            link = links.nth(number)
            link.focus()
            walker.press("Enter")
            expect(walker.dialog).to_be_visible()
            inside = walker.dialog.locator(":focus")
            expect(inside, f"{path}: the focus is in the dialog").to_have_count(1)
            expect(inside, f"{path}: on what changes nothing").not_to_have_attribute("data-confirm", "")
            walker.press("Escape")
            expect(walker.dialog).to_have_count(0)
            expect(link, f"{path}: the focus is back").to_be_focused()
            opened += 1
    assert opened > 10
