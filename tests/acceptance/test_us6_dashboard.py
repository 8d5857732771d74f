"""User story 6: the dashboard, one test per scenario of the seed, on each store."""

import re
from collections.abc import AsyncIterator

import pytest

from tests.dashboard.visitor import Visitor, flash, visiting, words
from tests.http.api import PASSWORD
from treadle.model.status import Status


@pytest.fixture
async def visitor(url: str) -> AsyncIterator[Visitor]:
    async with visiting(url, people=True) as found:
        yield found


def row(page: str, id: str) -> str:
    found = re.search(rf'<tbody id="job-{id}".*?</tbody>', page, re.S)
    assert found, "the job is not on this page"
    return words(found[0])


async def test_1_the_jobs_panel_lists_jobs_in_pages(visitor: Visitor) -> None:
    jobs = await visitor.queue.enqueue_many("mail_digest", [{}] * 120)
    seen: list[str] = []
    for number in (1, 2, 3):
        page = (await visitor.get(f"/_/jobs?page={number}")).text
        assert f"Page {number} of 3" in words(page)
        seen += re.findall(r'data-job="([^"]+)"', page)
    assert sorted(seen) == sorted(job.id for job in jobs)


async def test_2_a_job_shows_topic_status_run_at_retries_and_last_error(visitor: Visitor) -> None:
    job = await visitor.failed_job("mail_digest", "SmtpError: connection refused", max_attempts=1)
    page = (await visitor.get("/_/jobs")).text
    text = row(page, job.id)
    for wanted in ("mail_digest", "failed", "1 / 1", "SmtpError: connection refused"):
        assert wanted in text
    assert re.search(r"<time[^>]*>", page)


@pytest.mark.parametrize("status", ["pending", "processing", "completed", "failed"])
async def test_3_jobs_are_filtered_by_status(visitor: Visitor, status: str) -> None:
    ids = {
        "completed": (await visitor.completed_job()).id,
        "failed": (await visitor.failed_job(max_attempts=1)).id,
        "processing": (await visitor.queue.enqueue("slow")).id,
    }
    await visitor.hands.claim("slow", limit=1)
    ids["pending"] = (await visitor.queue.enqueue("later", delay="1h")).id
    page = (await visitor.get(f"/_/jobs?status={status}")).text
    assert re.findall(r'data-job="([^"]+)"', page) == [ids[status]]


async def test_4_a_failed_job_shows_its_error_in_full(visitor: Visitor) -> None:
    frame = '  File "/app/jobs/mail.py", line 42, in send\n    raise SmtpError("no")\n'
    error = f"Traceback (most recent call last):\n{frame}SmtpError: connection refused"
    job = await visitor.failed_job(error=error, max_attempts=1)
    text = await visitor.text(f"/_/jobs/{job.id}")
    for wanted in ("connection refused", "jobs/mail.py:42", 'raise SmtpError("no")'):
        assert wanted in text


async def test_5_requeue_makes_a_failed_job_pending_with_no_retries(visitor: Visitor) -> None:
    job = await visitor.failed_job(max_attempts=1)
    page = (await visitor.get("/_/jobs")).text
    link = re.search(rf'href="(/_/jobs/{job.id}/requeue)"', page)
    assert link
    answer = await visitor.confirm(link[1])
    assert "requeued" in flash(answer)
    found = await visitor.queue.get(job.id)
    assert (found.status, found.retries) == (Status.PENDING, 0)


async def test_6_the_panel_shows_counts_success_rate_and_average_execution_time(visitor: Visitor) -> None:
    for _ in range(3):
        await visitor.completed_job()
    await visitor.failed_job(max_attempts=1)
    await visitor.queue.enqueue("later", delay="1h")
    page = (await visitor.get("/_/jobs")).text
    line = words(page[page.index('id="counts"') : page.index("</dl>")])
    for wanted in ("Pending 1", "Processing 0", "Completed 3", "Failed 1", "Success rate 75.0 %", "Average execution"):
        assert wanted in line
    assert re.search(r"Average execution (< 1 ms|\d+)", line)


async def test_assumption_8_the_dashboard_is_for_superusers(url: str) -> None:
    async with visiting(url, people=True, signed_in=False) as stranger:
        for path in ("/_/", "/_/jobs", "/_/templates", "/_/schedules"):
            answer = await stranger.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/_/login")
        user = await stranger.post("/_/login", identity="ann@example.com", password=PASSWORD)
        assert user.status_code == 400
        assert (await stranger.get("/_/jobs")).status_code == 303
        root = await stranger.post("/_/login", identity="root@example.com", password=PASSWORD)
        assert root.status_code == 303
        assert (await stranger.get("/_/jobs")).status_code == 200
