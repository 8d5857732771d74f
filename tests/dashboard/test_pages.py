"""What the pages show: problems with their fix, workers, topics, and where a job came from."""

import re
from typing import Any

from tests.dashboard.visitor import ROOT, Visitor, flash, words


async def failing_schedule(visitor: Visitor, runs: int) -> None:
    await visitor.queue.schedules.create("backup", "30 2 * * *", id="nightly_backup")
    for _ in range(runs):
        await visitor.queue.schedules.run("nightly_backup")
        for claimed in await visitor.hands.claim("backup", limit=1):
            await visitor.hands.fail(claimed, "DiskFull: no space left on /backup")


async def test_a_failing_schedule_is_a_problem_with_its_last_failure(visitor: Visitor) -> None:
    await failing_schedule(visitor, 3)
    page = (await visitor.get("/_/")).text
    assert "Schedule nightly_backup has failed 3 times in a row." in words(page)
    assert "no space left on /backup" in words(page)
    link = re.search(r'href="(/_/jobs/[^"]+)">Open last failure', page)
    assert link
    assert "DiskFull" in await visitor.text(link[1])


async def test_a_schedule_that_works_again_is_no_problem(visitor: Visitor) -> None:
    await failing_schedule(visitor, 1)
    assert "Schedule nightly_backup failed the last time." in await visitor.text("/_/")
    await visitor.queue.schedules.run("nightly_backup")
    (claimed,) = await visitor.hands.claim("backup", limit=1)
    await visitor.hands.complete(claimed)
    await visitor.post("/_/schedules/nightly_backup/run")  # forgets what was kept for a few seconds
    assert "nightly_backup failed" not in await visitor.text("/_/")


async def test_due_jobs_without_a_worker_are_a_problem_with_the_command_that_helps(visitor: Visitor) -> None:
    await visitor.queue.enqueue("thumbnail", capability="image")
    page = (await visitor.get("/_/")).text
    assert "No worker takes thumbnail : 1 job is due" in words(page)
    assert 'data-copy="treadle worker app:queue --capabilities image"' in page
    assert 'href="/_/jobs?status=pending&amp;topic=thumbnail"' in page


async def test_a_worker_has_its_host_its_version_and_its_abilities(visitor: Visitor) -> None:
    serves = {"topics": ["mail"], "capabilities": ["gpu"], "slots": 4, "host": "web-1", "version": "0.0.1"}
    await visitor.queue.store.open_lease("worker-3", 60_000, serves)
    await visitor.queue.store.open_lease("erp-bridge", 60_000, {"topics": ["crm"], "slots": 0})
    page = await visitor.text("/_/workers")
    assert "worker-3 web-1 · 0.0.1 · another version" in page
    assert "erp-bridge over HTTP" in page
    assert "gpu" in page


async def test_a_disabled_topic_is_enabled_where_it_is_seen(visitor: Visitor) -> None:
    visitor.queue.register("legacy_sync", lambda: None)
    await visitor.queue.save_templates()
    await visitor.queue.enqueue("legacy_sync", delay="1h")
    await visitor.queue.templates.update("legacy_sync", enabled=False)
    page = await visitor.text("/_/topics")
    assert "disabled template switched off" in page
    assert "1 disabled" in page
    answer = await visitor.post("/_/templates/legacy_sync/enable", back="/_/topics")
    assert (answer.headers["location"], flash(answer)) == ("/_/topics", "legacy_sync is on.")
    assert "disabled" not in await visitor.text("/_/topics")


async def test_a_job_says_where_it_came_from(visitor: Visitor) -> None:
    [root] = await visitor.accounts.list("_superusers")
    key, _ = await visitor.accounts.api_keys.create("docs-sync", ["enqueue"])
    await visitor.queue.schedules.create("report", "0 9 * * *", id="daily")
    by_schedule = await visitor.queue.schedules.run("daily")
    options: dict[str, Any] = {"created_by": root.id, "idempotency_key": "digest:1", "scope": "account"}
    for job, told in (
        (await visitor.queue.enqueue("mail", {}, **options), [f"Made by {ROOT}", "Key digest:1"]),
        (await visitor.queue.enqueue("mail", {}, created_by=key.id), ["Made by docs-sync (API key)"]),
        (await visitor.queue.enqueue("mail"), ["Made by code, without an account"]),
        (by_schedule, ["Made by its schedule", "Schedule daily"]),
        (await visitor.queue.enqueue("mail", created_by="gone"), ["Made by gone"]),
    ):
        page = await visitor.text(f"/_/jobs/{job.id}")
        for text in told:
            assert text in page[page.index("Where it came from") :], text


async def test_a_job_is_shown_as_code_in_three_languages(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail", {"thread": 1970670598291982290})
    page = await visitor.text(f"/_/jobs/{job.id}")
    code = page[page.index("The same job as code") :]
    for text in ("/api/jobs/enqueue", "await queue.enqueue('mail', {'thread': 1970670598291982290})", "await fetch("):
        assert text in code


async def test_errors_say_how_many_came_in_the_last_hour(visitor: Visitor) -> None:
    for _ in range(2):
        await visitor.failed_job(max_attempts=1)
    assert "2 jobs failed in 24 h, 2 of them in the last hour" in await visitor.text("/_/errors")
    assert "of them in the last hour" not in await visitor.text("/_/errors?range=1h")


async def test_schedules_name_the_leader_that_fires_them(visitor: Visitor) -> None:
    await visitor.queue.store.elect("maintenance", "worker-1 1a2b3c4d", 3_600_000)
    await visitor.queue.schedules.create("report", "0 9 * * *", id="daily")
    assert "worker-1 leads" in await visitor.text("/_/schedules")
