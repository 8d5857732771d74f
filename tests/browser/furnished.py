"""A queue with everything in it, and the address of every page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.browser.site import Site, site
from tests.dashboard.flow_jobs import write
from tests.http.test_webhooks import age
from treadle.model.steps import StepState
from treadle.model.webhooks import SettledDelivery, Try, TryAgain
from treadle.policy.lifecycle import Failed

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
    "/system?user=ann",
    "/system/invite",
    "/bulk?action=delete&all=1&status=failed",
    "/shortcuts",
    "/schedules",
    "/schedules/nightly",
    "/new-schedule",
    "/templates",
    "/templates/report",
    "/templates/report/use/1",
    "/webhooks?open=ops&delivery=1",
    "/webhooks?open=off",
    "/webhooks/ops/edit",
    "/webhooks/ops/rotate",
    "/webhooks/ops/since",
    "/new-webhook",
]


def page_paths(found: Site) -> list[str]:
    jobs = found.run(found.queue.list())
    ids = {job.status.value: job.id for job in jobs}
    flow = next(job.id for job in jobs if job.topic == "rag")
    known = {"failed": ids["failed"], "running": ids["processing"], "waiting": ids["waiting"], "flow": flow}
    return [path.format(**known) for path in PAGES]


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
        found.run(hook(found))
        yield found


async def hook(found: Site) -> None:
    """Two endpoints: one that fails, with a delivery, and one that was switched off."""
    webhooks, store = found.queue.webhooks, found.queue.store
    await webhooks.create("https://example.com/hook", id="ops", description="On call", topics=["hooked"])
    await webhooks.create("https://example.org/", id="off", topics=["hooked"], enabled=False)
    await age(found.queue)
    job = await found.queue.enqueue("hooked", {})
    await found.hands.do(job)
    claim = await store.claim_deliveries("test", 60_000)
    again = TryAgain(claim.now_ms + 600_000)
    await store.settle_deliveries(
        [SettledDelivery(one, Try(503, None, 204, "busy"), again) for one in claim.deliveries]
    )


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
