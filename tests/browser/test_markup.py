"""Markup in every field that a page shows stays text: nothing runs, and the policy has nothing to refuse."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.person import Person
from tests.browser.site import Site
from tests.dashboard.flow_jobs import write
from treadle.model.steps import StepState
from treadle.policy.lifecycle import Failed
from treadle.store.values import DutyReport

XSS = [
    "<img src=x onerror=window.hit=1>",
    '"><svg onload=window.hit=1>',
    "</script><script>window.hit=1</script>",
    "javascript:window.hit=1",
    "{{constructor.constructor('window.hit=1')()}}",
    "' onmouseover='window.hit=1",
    "</title><script>window.hit=1</script>",
    "-->]]><script>window.hit=1</script>",
]
POLICY_IS_LOUD = "addEventListener('securitypolicyviolation', e => console.error('refused: ' + e.violatedDirective))"


@pytest.fixture
def wary(person: Person) -> Person:
    """Each refusal by the policy is a trouble, which fails the test."""
    person.page.add_init_script(POLICY_IS_LOUD)
    return person


def visit(person: Person, path: str) -> None:
    person.page.goto(f"{person.site.url}/_{path}")
    expect(person.page.get_by_role("heading", level=1)).to_be_attached()
    person.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    person.page.mouse.move(600, 300)
    assert person.page.evaluate("window.hit") is None, path
    assert person.troubles == [], path


def jobs_with_markup(served: Site) -> list[str]:
    ids = []
    for i, text in enumerate(XSS):
        payload = {text: text, "deep": {text: [text]}}
        ids.append(served.fail(f"topic{i}", f"{text}: {text}", payload=payload, scope=text, scope_id=text).id)
        ids.append(served.complete(f"done{i}", {text: [text]}).id)
        served.run(served.queue.cancel(served.enqueue().id, text))
    ids.append(served.enqueue("slow", {XSS[0]: XSS[1]}, idempotency_key=XSS[2]).id)
    served.report(served.start("slow"), XSS[0])
    return ids


def test_markup_of_jobs_workers_keys_and_the_address(wary: Person, served: Site) -> None:
    ids = jobs_with_markup(served)
    for text in XSS:
        served.worker(text, text)
        served.leader(text, [DutyReport(text, 1000, 1, 1, 1, text), DutyReport(text, None, 1, 1, 1, text, failed=True)])
        served.audit(text)
        served.run(served.accounts.api_keys.create(text[:40], ["manage"]))
    query = quote(XSS[1])
    paths = [
        "/",
        "/jobs",
        "/jobs?cols=error,worker,scopeId,createdBy",
        "/errors",
        "/topics",
        "/workers",
        "/system",
        f"/errors?q={query}",
        f"/jobs?q={query}&topic=topic0&status=failed&filter={query}",
        f"/jobs?q=payload.{quote('x')}:{query}",
        f"/system?audit={query}",
        f"/bulk?action=requeue&all=1&status=failed&back={query}",
        f"/workers/drain?worker={quote(XSS[0])}",
        f"/workers/undrain?worker={quote(XSS[0])}",
        f"/jobs/new?topic={query}",
        f"/jobs/new?from={ids[0]}",
        f"/schedules?q={query}&open={query}",
        f"/templates?q={query}",
        f"/new-schedule?topic={query}&cron={query}",
        f"/login?next={query}",
        f"/operations/{query}",
        f"/{query}",
    ]
    for path in (*paths, *(f"/jobs/{id}" for id in ids)):
        visit(wary, path)


def test_markup_typed_into_searches(wary: Person, served: Site) -> None:
    served.fail()
    for text in XSS:
        for path, label in (("/jobs", "Search jobs"), ("/errors", "Search errors"), ("/", "Find a job, topic or page")):
            wary.open(path)
            box = wary.page.get_by_label(label)
            box.fill(f'"{text}"' if '"' not in text else text)
            with wary.page.expect_navigation():
                wary.press("Enter")
            assert wary.page.evaluate("window.hit") is None, (path, text)


def test_markup_of_steps_and_their_answers(wary: Person, served: Site) -> None:
    ids = []
    for i, text in enumerate(XSS):
        steps = [
            write(text, result={text: text}, message=text, title=text),
            write(f"{text}b", StepState.FAILED, error=text, error_type=text, key=text),
        ]
        job, claimed = served.run(served.flows.begun(*steps, topic=f"flow{i}"))
        served.run(served.flows.ended(claimed, Failed(text, text)))
        ids.append(job.id)
        schema: dict[str, Any] = {
            "title": text,
            "type": "object",
            "properties": {text: {"description": text, "enum": [text]}},
        }
        waiting = served.run(served.flows.waiting(schema, topic=f"waits{i}"))
        visit(wary, f"/jobs/{waiting.id}")
        answered = served.run(served.flows.waiting({"type": "string"}, topic=f"answered{i}"))
        served.run(served.queue.signal(answered.id, "approve", text, answered_by=text))
        ids.append(answered.id)
    for id in ids:
        visit(wary, f"/jobs/{id}")
    for text, id in zip(XSS, ids[::2], strict=True):
        visit(wary, f"/jobs/{id}/step?name={quote(text)}")
        visit(wary, f"/jobs/{id}/requeue?step={quote(text)}")


def test_markup_of_templates_schedules_and_people(wary: Person, served: Site) -> None:
    for i, text in enumerate(XSS):
        served.queue.register(f"titled{i}", lambda payload: None, title=text, description=text, capability=text[:40])
        served.run(served.queue.save_templates())
        payload = {text: text} if "{{" not in text else {}  # an unknown placeholder
        served.run(
            served.queue.schedules.create(
                f"titled{i}", "0 9 * * *", id=f"s{i}", payload=payload, scope=text, scope_id=text
            )
        )
        served.run(served.queue.schedules.run(f"s{i}"))
    served.run(served.accounts.upsert_superuser("o'hit=1<b>@example.com".replace("<b>", "+b"), "a long password"))
    for path in ("/templates", "/schedules", "/system", "/topics", "/jobs", "/"):
        visit(wary, path)
    for i in range(len(XSS)):
        for path in (f"/templates/titled{i}", f"/schedules/s{i}", f"/new-schedule?topic=titled{i}"):
            visit(wary, path)


def test_markup_stays_text_in_dialogs_menus_and_live_patches(wary: Person, served: Site) -> None:
    job = served.enqueue("slow", {XSS[0]: XSS[1]}, max_attempts=1)
    wary.open("/jobs")
    wary.live()
    claimed = served.start("slow")
    served.report(claimed, XSS[0])
    expect(wary.row(job.id)).to_contain_text(XSS[0])
    served.run(served.hands.fail(claimed, f"{XSS[1]}: {XSS[2]}"))
    expect(wary.row(job.id)).to_contain_text(XSS[2])
    wary.row(job.id).get_by_role("checkbox").click()
    wary.press("r")
    expect(wary.dialog).to_be_visible()
    wary.press("Escape", "Escape")
    served.worker(XSS[1], XSS[1])
    wary.open("/workers")
    wary.page.get_by_role("link", name=f"Drain {XSS[1]}").click()
    expect(wary.dialog.get_by_role("heading")).to_have_text(f"Drain {XSS[1]}?")
    assert wary.page.evaluate("window.hit") is None
