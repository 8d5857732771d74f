"""A real Chromium at a real server, on each store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

from tests.browser.furnished import furnished
from tests.browser.person import Person
from tests.browser.site import Site, site
from tests.dashboard.conftest import (
    people_file,
    people_template,
    postgres_url,
    slow_answers_are_not_kept,
    sqlite_url,
)

__all__ = [
    "furnished",
    "people_file",
    "people_template",
    "postgres_url",
    "slow_answers_are_not_kept",
    "sqlite_url",
]

# Time only runs out when something is wrong, so the limit is generous.
PATIENCE_MS = 30_000
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """The system's Chromium, else playwright's own."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    try:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
    except Exception as error:
        message = f"no Chromium can be started, so no page was looked at: {str(error).splitlines()[0]}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    yield found
    found.close()


@pytest.fixture
def served(url: str) -> Iterator[Site]:
    with site(url) as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def person(page: Page, served: Site) -> Iterator[Person]:
    """A signed-in person; a script error or a broken policy on any page fails the test."""
    found = Person(page, served)
    found.enter()
    yield found
    assert found.troubles == []
