"""The dashboard under a prefix, in another application and behind a proxy: links, forms, streams and cookies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.person import Person
from tests.browser.site import Site, site

PAGES = "/ /jobs /errors /topics /workers /schedules /templates /system /jobs/new /new-schedule /shortcuts".split()


@pytest.fixture
def mounted(sqlite_url: str) -> Iterator[Site]:
    """`queue.asgi()` mounted in a user's application."""
    with site(sqlite_url, prefix="/tools/queue") as found:
        yield found


@pytest.fixture
def proxied(sqlite_url: str) -> Iterator[Site]:
    """A server with a path in its public address, as `treadle serve` behind a proxy."""
    with site(sqlite_url, public_url="http://127.0.0.1/tools/queue") as found:
        found.url += "/tools/queue"
        yield found


@pytest.fixture(params=["mounted", "proxied"])
def person(request: pytest.FixtureRequest, page: Page) -> Iterator[Person]:
    found = Person(page, request.getfixturevalue(request.param))
    found.sign_in()
    yield found
    assert found.troubles == []


def links(person: Person) -> set[str]:
    found = person.page.evaluate(
        """() => ["href", "action", "src", "data-live"].flatMap(
          name => [...document.querySelectorAll(`:not(use)[${name}]`)].map(one => one.getAttribute(name)))"""
    )
    return {link for link in found if link and not link.startswith(("#", "?"))}


def test_every_link_and_form_of_every_page_stays_under_it(person: Person) -> None:
    job = person.site.fail()
    missing: list[str] = []
    person.page.on("response", lambda one: missing.append(one.url) if one.status >= 400 else None)
    followed: set[str] = set()
    for path in (*PAGES, f"/jobs/{job.id}", f"/jobs/{job.id}/requeue", "/topics/mail/pause"):
        person.open(path)
        found = links(person)
        assert found
        assert {urlsplit(link).path for link in found if not urlsplit(link).path.startswith("/tools/queue/_")} == set()
        followed |= {link for link in found if "/static/" not in link and "/live" not in link}
    root = person.site.url.removesuffix("/tools/queue")
    forms = person.page.context.request
    for link in sorted(followed):
        answer = forms.get(root + link, max_redirects=0)
        refused = 400 if link.endswith("/bulk") else 405  # a form of chosen jobs; forms that are posted
        assert answer.status in (200, 303, refused), (link, answer.status)
    assert missing == []


def test_the_stream_is_live_and_a_dialog_s_form_works(person: Person) -> None:
    job = person.site.enqueue("slow", max_attempts=1)
    person.open("/jobs")
    person.live()
    claimed = person.site.start("slow")
    expect(person.row(job.id)).to_contain_text("processing")
    person.site.run(person.site.hands.fail(claimed))
    expect(person.row(job.id)).to_contain_text("failed")
    person.row(job.id).get_by_role("checkbox").click()
    person.press("r")
    expect(person.dialog).to_contain_text("Requeue 1 job?")
    person.press("Control+Enter")
    expect(person.page.locator(".toast")).to_contain_text("1 job requeued")
    assert person.site.get(job.id).status == "pending"
    person.press("Control+k")
    person.page.keyboard.type("slow")
    expect(person.page.get_by_role("option")).to_contain_text(["slow", "Jobs with"])
    person.press("ArrowDown", "Enter")
    person.page.wait_for_url(f"{person.site.url}/_/jobs?topic=slow")


def test_theme_and_messages_keep_to_it_and_signing_out_ends_the_session(person: Person) -> None:
    person.open("/")
    person.press("t", "t")
    person.open("/jobs")
    assert person.page.locator("html").get_attribute("data-theme") == "dark"
    cookies = {one["name"]: one["path"] for one in person.page.context.cookies()}
    assert cookies["treadle_theme"] == "/tools/queue/_"
    assert cookies["treadle_auth"] == "/"
    person.page.locator(".who-drop summary").click()
    person.page.get_by_role("button", name="Sign out").click()
    person.page.wait_for_url(f"{person.site.url}/_/login")
    person.page.goto(f"{person.site.url}/_/jobs?status=failed")
    person.page.wait_for_url(re.compile(r"/tools/queue/_/login\?next=%2Ftools%2Fqueue%2F_%2Fjobs%3Fstatus%3Dfailed"))


def test_a_proxy_that_cuts_the_path_off_works_too(proxied: Site, page: Page) -> None:
    root = proxied.url.removesuffix("/tools/queue")
    answer = page.context.request.get(f"{root}/_/jobs", max_redirects=0)
    assert answer.headers["location"] == "/tools/queue/_/login?next=%2Ftools%2Fqueue%2F_%2Fjobs"
    assert page.context.request.get(f"{root}/api/health").ok
    assert page.context.request.get(f"{proxied.url}/api/health").ok
