"""The first visit: the set-up link, and pages without data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.person import Person
from tests.browser.site import Site, site
from tests.http.api import PASSWORD


@pytest.fixture
def unused(tmp_path: Path) -> Iterator[Site]:
    """A server on a new database."""
    with site(f"sqlite:///{tmp_path}/new.db") as found:
        yield found


def set_up(page: Page, served: Site, email: str = "ada@example.com") -> str:
    token: str = served.run(served.accounts.setup_token())
    page.goto(f"{served.url}/_/setup#token={token}")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password, once more").fill(PASSWORD)
    page.get_by_role("button", name="Create and sign in").click()
    return token


def test_the_one_time_link_makes_the_first_superuser_and_signs_in(page: Page, unused: Site) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.goto(f"{unused.url}/_/")
    expect(page.get_by_text("No superuser exists yet.")).to_be_visible()
    token = set_up(page, unused)
    page.wait_for_url(f"{unused.url}/_/")
    assert not [url for url in sent if token in url], "the token is in no address that a server sees"
    page.goto(f"{unused.url}/_/setup#token={token}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Treadle is set up")


def test_a_link_that_is_no_longer_valid_says_so_and_keeps_the_address(page: Page, unused: Site) -> None:
    token = unused.run(unused.accounts.setup_token())
    unused.run(unused.accounts.setup_token())
    page.goto(f"{unused.url}/_/setup#token={token}")
    page.get_by_label("Email").fill("ada@example.com")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password, once more").fill(PASSWORD)
    page.get_by_role("button", name="Create and sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("no longer valid")
    expect(page.get_by_label("Email")).to_have_value("ada@example.com")


def test_a_queue_that_was_never_used_teaches_how_to_enqueue(page: Page, unused: Site) -> None:
    set_up(page, unused)
    page.wait_for_url(f"{unused.url}/_/")
    person = Person(page, unused)
    person.open("/jobs")
    expect(page.get_by_role("heading", name="Enqueue your first job")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text('queue.sync.enqueue("mail_digest", {"userId": "123"})')
    person.live()
    unused.enqueue("mail_digest")
    expect(page.locator(".new-pill")).to_contain_text("1 new")
    person.press(".")
    expect(page.locator("tbody[data-job]")).to_have_count(1)


def test_empty_pages_say_what_would_be_there(page: Page, unused: Site) -> None:
    set_up(page, unused)
    page.wait_for_url(f"{unused.url}/_/")
    person = Person(page, unused)
    texts = {
        "/": ["No topic yet.", "No job ended in this time.", "No failures in the last hour."],
        "/errors": ["No failures in 24 h"],
        "/topics": ["A topic appears with its first job"],
        "/schedules": ["No schedules yet"],
        "/templates": ["No templates yet"],
    }
    for path, wanted in texts.items():
        person.open(path)
        for text in wanted:
            expect(page.get_by_role("main")).to_contain_text(text)


def test_a_filtered_list_names_the_filters_and_a_link_clears_them(person: Person, served: Site) -> None:
    served.enqueue("mail", delay="1h")
    person.open("/jobs?topic=mail&status=failed&q=error:SMTP")
    main = person.page.get_by_role("main")
    expect(main).to_contain_text("No job matches")
    expect(main).to_contain_text("Nothing with topic:mail status:failed error:SMTP")
    main.get_by_role("link", name="Clear the filters").click()
    person.page.wait_for_url("**/_/jobs")
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)


def test_a_superuser_invites_another_by_a_link(person: Person, browser: Browser) -> None:
    person.open("/system")
    person.page.get_by_role("link", name="Invite a superuser").click()
    person.dialog.get_by_role("button", name="Make the link").click()
    note = person.page.locator("#users .secret > span").first
    expect(note).to_contain_text("/_/invitation#token=")
    link = note.inner_text()
    context = browser.new_context()
    invited = context.new_page()
    sent: list[str] = []
    invited.on("request", lambda request: sent.append(request.url))
    invited.goto(link)
    expect(invited.get_by_label("Email")).to_be_focused()
    invited.get_by_label("Email").fill("ada@example.com")
    invited.get_by_label("Password", exact=True).fill(PASSWORD)
    invited.get_by_label("Password, once more").fill(PASSWORD)
    invited.get_by_role("button", name="Create and sign in").click()
    invited.wait_for_url(f"{person.site.url}/_/")
    assert not [url for url in sent if link.partition("#token=")[2] in url], "the token is in no address"
    context.close()
    person.open("/system")
    row = person.page.locator("#users tr").filter(has_text="ada@example.com")
    expect(row.locator("time"), "since when, and when she was last seen").to_have_count(2)
