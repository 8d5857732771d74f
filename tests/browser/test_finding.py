"""People and what they did, found on the system page."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.person import Person
from tests.browser.site import Site
from tests.http.served import ROOT
from treadle.queue.audit import Actor, AuditLog


async def change(served: Site, who: Actor, topic: str) -> None:
    await AuditLog(served.queue).add(who, "pause", topic)


def test_the_audit_log_is_narrowed_to_a_person_or_to_api_keys(person: Person, served: Site) -> None:
    served.run(change(served, Actor(ROOT), "mail"))
    served.run(change(served, Actor("ci", "api_key"), "report"))
    person.open("/system")
    rows = person.page.locator("#audit tbody tr")
    expect(rows).to_have_count(2)
    who = person.page.get_by_label("Who", exact=True)
    who.select_option("API keys")
    person.page.wait_for_url("**who=api_key*")
    person.ready()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("report")
    expect(person.page.get_by_role("link", name="Export CSV")).to_have_attribute(
        "href", "/_/system/audit.csv?who=api_key"
    )
    who.select_option(ROOT)
    person.page.wait_for_url("**who=root*")
    person.ready()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("mail")


def test_a_user_is_found_by_a_part_of_the_address(person: Person, served: Site) -> None:
    ann = served.run(served.accounts.get("users", "ann@example.com"))
    job = served.enqueue("mail", delay="1h", created_by=ann.id)
    served.enqueue("mail", delay="1h")
    person.open("/system")
    person.page.get_by_label("Find a user").fill("ANN@")
    person.press("Enter")
    users = person.page.locator("#users")
    expect(users).to_contain_text("ann@example.com")
    expect(users).to_contain_text(ann.id)
    users.get_by_role("link", name="Jobs of ann@example.com").click()
    person.ready()
    expect(person.page.locator("tbody[data-job]")).to_have_count(1)
    expect(person.row(job.id)).to_be_visible()
    person.open("/system?user=nothing%00like it")
    expect(users).to_contain_text("No user has")
