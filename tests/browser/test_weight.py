"""What a page costs while nothing happens, and what a large job's page costs to open."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.person import Person
from tests.browser.site import Site

# Of a core's time on the page's own thread: a clock that is read, not a wait.
MOST_OF_A_CORE = 0.02
WATCHED_S = 10


def thread_seconds(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def test_a_list_that_shows_nothing_new_is_idle(person: Person, served: Site) -> None:
    served.enqueue_many("busy", 10)
    for _ in range(10):
        served.start("busy")
    served.enqueue_many("late", 40)
    person.open("/jobs")
    person.live()
    expect(person.page.locator("tbody[data-job]")).to_have_count(50)
    person.page.wait_for_timeout(3000)  # the first patch, and what Chromium does after a page
    before = thread_seconds(person.page)
    person.page.wait_for_timeout(WATCHED_S * 1000)
    share = (thread_seconds(person.page) - before) / WATCHED_S
    assert share <= MOST_OF_A_CORE, f"{share:.1%} of a core"


def test_a_large_payload_is_folded_and_opens_on_demand(person: Person, served: Site) -> None:
    job = served.enqueue("import", {"rows": [{"name": "x" * 50, "n": n} for n in range(4_200)]})
    person.open(f"/jobs/{job.id}")
    payload = person.page.locator("#payload")
    expect(payload).to_contain_text("4,188 more items")
    payload.get_by_text("Show all").click()
    expect(payload.locator("pre")).to_contain_text('"n": 4199')
    person.page.get_by_text("The same job as code").click()
    expect(person.page.locator("#as-code pre").first).to_contain_text("curl")


def test_a_long_error_leaves_the_stack_above_the_fold(person: Person, served: Site) -> None:
    frames = 'Traceback (most recent call last):\n  File "/app/crm/sync.py", line 12, in sync\n    push()\n'
    job = served.fail("crm_sync", f"{frames}Boom: {'the server said no, and then it said no again; ' * 64}")
    person.page.set_viewport_size({"width": 1440, "height": 900})
    person.open(f"/jobs/{job.id}")
    box = person.page.locator(".frame-own").first.bounding_box()
    assert box
    assert box["y"] + box["height"] < 900
    lines = person.page.locator("#error-h").evaluate("e => e.clientHeight / parseFloat(getComputedStyle(e).lineHeight)")
    assert round(lines) == 6
