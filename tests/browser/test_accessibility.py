"""Every page, light and dark, on a desk and on a phone, looked at by axe: nothing serious."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from pydantic import BaseModel, Field

from tests.browser.person import Person
from tests.browser.site import Site, site
from tests.dashboard.flow_jobs import write
from treadle.model.steps import StepState
from treadle.policy.lifecycle import Failed

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
SERIOUS = ("serious", "critical")
LOOKS = [("light", 1280), ("dark", 1280), ("light", 380), ("dark", 380)]
PAGES = [
    "/",
    "/jobs",
    "/jobs?cols=error,priority,worker",
    "/jobs/{failed}",
    "/jobs/{running}",
    "/jobs/{flow}",
    "/jobs/{flow}/step?name=embed",
    "/jobs/{flow}/requeue",
    "/jobs/{flow}/requeue?step=approve",
    "/jobs/{waiting}",
    "/jobs/{waiting}?answer=json",
    "/jobs/new",
    "/jobs/{failed}/run-again",
    "/jobs/{flow}/run-again",
    "/errors",
    "/topics",
    "/workers",
    "/system",
    "/bulk?action=delete&all=1&status=failed",
    "/shortcuts",
    "/schedules",
    "/schedules/nightly",
    "/new-schedule",
    "/templates",
    "/templates/report",
    "/templates/report/use/1",
]


class Report(BaseModel):
    month: str = Field(description="Such as 2026-01")
    pages: int | None = None
    format: Literal["pdf", "csv"] = "pdf"
    options: dict[str, int] = {}


async def report(payload: Report) -> dict[str, int]:
    return {}


@pytest.fixture(scope="module")
def furnished(people_file: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A queue with a job in every state."""
    import shutil

    path = tmp_path_factory.mktemp("axe") / "jobs.db"
    shutil.copyfile(str(people_file), path)
    with site(f"sqlite:///{path}", environment="production") as found:
        found.complete("mail", {"sent": True})
        frame = '  File "/app/jobs/mail.py", line 42, in mail\n    await send()\n'
        found.fail("mail", f"Traceback (most recent call last):\n{frame}SmtpError: no", payload={"deep": {"a": [1, 2]}})
        found.enqueue("later", delay="1h")
        found.enqueue("slow")
        found.start("slow")
        cancelled = found.enqueue("mail")
        found.run(found.queue.cancel(cancelled.id))
        flow(found)
        plan(found)
        found.worker("host:1:abc")
        found.run(found.queue.pause("later"))
        yield found


def flow(found: Site) -> None:
    """A job with steps of every kind that has failed, and one that waits."""
    runs = [write("embed", key=f"doc-{i}", result=i) for i in range(10)]
    wrong = write("embed", StepState.FAILED, key="doc-99", error="TimeoutError: too slow")
    skipped = write("translate", StepState.SKIPPED)
    _, claimed = found.run(found.flows.begun(write("fetch", result={"a": [1]}), *runs, wrong, skipped, topic="rag"))
    found.run(found.flows.ended(claimed, Failed("TimeoutError: too slow", "TimeoutError")))
    found.run(found.flows.waiting())


def plan(found: Site) -> None:
    """Schedules with runs, and a template of two versions."""
    releases: list[dict[str, Any]] = [{}, {"timeout": "1m"}]
    for options in releases:
        found.queue.handlers.clear()
        found.queue.register("report", report, title="Report", description="Builds one", **options)
        found.run(found.queue.save_templates())
    schedules = found.queue.schedules
    found.run(schedules.create("report", "30 2 * * *", id="nightly", timezone="Europe/Berlin", payload={"month": "a"}))
    found.run(schedules.create("report", every="90s", id="off", enabled=False, payload={"month": "a"}))
    found.run(schedules.run("nightly"))


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def viewer(request: pytest.FixtureRequest, browser: Browser, furnished: Site) -> Iterator[Person]:
    theme, width = request.param
    # Only here: axe is put into the page as a script, which the policy would refuse.
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
    person = Person(context.new_page(), furnished)
    person.sign_in()
    yield person
    context.close()


def faults(page: Page) -> list[str]:
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": TAGS}}).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]}" for one in found if one["impact"] in SERIOUS for node in one["nodes"][:3]
    ]


def test_no_page_has_a_serious_fault(viewer: Person) -> None:
    jobs = viewer.site.run(viewer.site.queue.list())
    ids = {job.status.value: job.id for job in jobs}
    flow = next(job.id for job in jobs if job.topic == "rag")
    known = {"failed": ids["failed"], "running": ids["processing"], "waiting": ids["waiting"], "flow": flow}
    paths = [path.format(**known) for path in PAGES]
    found = {}
    for path in paths:
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


def test_dialogs_that_want_something_typed_and_refused_forms_have_none_either(viewer: Person) -> None:
    viewer.open("/jobs?status=failed")
    viewer.press("Shift+A", "d")
    expect(viewer.dialog).to_be_visible()
    assert faults(viewer.page) == []
    viewer.press("Control+Enter")
    expect(viewer.dialog.locator("[aria-invalid=true], :invalid").first).to_be_attached()
    assert faults(viewer.page) == []
    viewer.open("/system")
    viewer.page.get_by_label("Stale after").fill("soon")
    viewer.page.locator("#retention").get_by_role("button", name="Save").click()
    expect(viewer.page.get_by_role("alert")).to_be_visible()
    assert faults(viewer.page) == []
    viewer.page.get_by_role("link", name="New key").click()
    expect(viewer.dialog).to_be_visible()
    assert faults(viewer.page) == []


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
        for path in ("/_/login", "/_/setup"):
            page.goto(f"{furnished.url}{path}")
            assert faults(page) == []
        context.close()
