"""The list of jobs: US6's scenarios, search, tabs, paging, and markup that stays text."""

import html
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from tests.dashboard.visitor import Visitor, words
from tests.faulty import FaultyStore
from treadle.insights import overview
from treadle.policy.lifecycle import Snoozed


async def test_the_list_shows_jobs_with_topic_status_run_at_retries_and_error(visitor: Visitor) -> None:
    job = await visitor.failed_job("mail_digest", "SmtpError: connection refused", max_attempts=1)
    page = (await visitor.get("/_/jobs")).text
    row = re.search(rf'<tbody id="job-{job.id}".*?</tbody>', page, re.S)
    assert row
    text = words(row[0])
    assert "failed" in text
    assert "mail_digest" in text
    assert "userId: 123" in text
    assert "1 / 1" in text
    assert "connection refused" in text
    assert job.run_at.strftime("%Y-%m-%d %H:%M:%S UTC") in row[0]
    assert f"…{job.id[-8:]}" in text
    for label in ("View", "Retry", "Del"):
        assert label in text


async def test_the_line_of_counts_has_every_status_success_rate_and_average(visitor: Visitor) -> None:
    await visitor.completed_job()
    await visitor.failed_job(max_attempts=1)
    await visitor.queue.enqueue("other")
    page = await visitor.text("/_/jobs")
    assert "Pending 1 Processing 0 Waiting 0 Cancelling 0 Completed 1 Failed 1" in page
    assert "Success rate 50.0 %" in page
    assert re.search(r"Average execution (< 1|\d+) ms", page)


@pytest.mark.parametrize("status", ["pending", "processing", "completed", "failed"])
async def test_a_tab_filters_by_status(visitor: Visitor, status: str) -> None:
    jobs = {
        "completed": await visitor.completed_job("one"),
        "failed": await visitor.failed_job("two", max_attempts=1),
        "processing": await visitor.queue.enqueue("three"),
    }
    await visitor.hands.claim("three", limit=1)
    jobs["pending"] = await visitor.queue.enqueue("four")
    page = (await visitor.get(f"/_/jobs?status={status}")).text
    shown = re.findall(r'<tbody id="job-([^"]+)"', page)
    assert shown == [jobs[status].id]
    assert re.search(rf'aria-current="page"[^>]*>{status.capitalize()} <span class="count">1<', page)


async def test_the_chosen_topic_stays_chosen_even_if_it_has_no_jobs(visitor: Visitor) -> None:
    await visitor.queue.enqueue("mail")
    page = (await visitor.get("/_/jobs?topic=brand.new")).text
    assert "<option selected>brand.new</option>" in page


async def test_qualifiers_topic_and_payload_are_searched(visitor: Visitor) -> None:
    wanted = await visitor.failed_job("mail_digest", "SmtpError: no", max_attempts=1)
    await visitor.failed_job("other", "SmtpError: no", max_attempts=1)
    await visitor.queue.enqueue("mail_digest", {"userId": "9"})
    for query in (
        "q=topic:mail_digest status:failed payload.userId:123 error:Smtp",
        "topic=mail_digest&q=status:failed",
        "topic=mail_digest&status=failed",
        'filter=topic = "mail_digest" %26%26 lastError ~ "smtp"',
    ):
        page = (await visitor.get(f"/_/jobs?{query}")).text
        assert re.findall(r'<tbody id="job-([^"]+)"', page) == [wanted.id], query


async def test_counts_follow_the_filter_and_never_head_an_empty_list(visitor: Visitor) -> None:
    await visitor.failed_job("a", max_attempts=1)
    await visitor.queue.enqueue("b")
    page = (await visitor.get("/_/jobs?topic=b")).text
    counts = dict(re.findall(r'data-tab="\d">(\w+) <span class="count">([^<]+)<', page))
    assert counts["All"] == "1"
    assert counts["Pending"] == "1"
    assert counts["Failed"] == "0"
    done = await visitor.completed_job("gone")
    await visitor.queue.delete(done.id, force=True)
    page = await visitor.text("/_/jobs?status=completed")
    assert "Completed 0" in page
    assert "Nothing in Completed" in page


async def test_jobs_with_one_timestamp_all_appear_across_pages(visitor: Visitor) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    made = {job.id for job in await visitor.queue.enqueue_many("mail", [{}] * 120, run_at=at)}
    for sort in ("", "&sort=runAt"):
        seen: list[str] = []
        for number in (1, 2, 3):
            page = (await visitor.get(f"/_/jobs?page={number}{sort}")).text
            assert f"Page {number} of 3" in words(page)
            seen += re.findall(r'<tbody id="job-([^"]+)"', page)
        assert len(seen) == 120
        assert set(seen) == made


async def test_a_search_that_can_t_be_read_says_why(sqlite_visitor: Visitor) -> None:
    answer = await sqlite_visitor.get('/_/jobs?q=topic:"mail')
    assert answer.status_code == 400
    assert "a quote is not closed" in answer.text
    answer = await sqlite_visitor.get("/_/jobs?q=status:")  # half typed
    assert answer.status_code == 200
    assert "has no value" in answer.text
    assert (await sqlite_visitor.get("/_/jobs?filter=%28")).status_code == 400
    assert (await sqlite_visitor.get("/_/jobs?status=nonsense")).status_code == 400


async def test_an_empty_queue_teaches_and_an_empty_search_names_its_filters(sqlite_visitor: Visitor) -> None:
    assert "Enqueue your first job" in await sqlite_visitor.text("/_/jobs")
    await sqlite_visitor.queue.enqueue("mail")
    sqlite_visitor.client.cookies.delete("treadle_flash")
    empty = await sqlite_visitor.text("/_/jobs?topic=nothing&status=failed")
    assert "Nothing with topic:nothing status:failed" in empty
    assert "Clear the filters" in empty


XSS = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>{{config}}"


async def test_markup_stays_text_in_every_field(visitor: Visitor) -> None:
    job = await visitor.failed_job("mail", f"{XSS}: {XSS}", payload={XSS: XSS}, max_attempts=1, scope=XSS[:200])
    await visitor.queue.enqueue("slow", {"deep": {XSS: [XSS, {XSS: 1}]}})
    (claimed,) = await visitor.hands.claim("slow", limit=1)
    paths = ["/_/jobs", f"/_/jobs/{job.id}", f"/_/jobs/{claimed.id}", "/_/errors", "/_/", "/_/workers"]
    paths += [f"/_/jobs?q={XSS}", f"/_/jobs/new?from={job.id}", f"/_/errors?q={XSS}", f"/_/jobs/{job.id}/requeue"]
    for path in paths:
        answer = await visitor.get(path)
        assert answer.status_code in (200, 400), path
        assert "<img src=x" not in answer.text, path
        assert "<script>alert" not in answer.text, path
        assert "{{config}}" in answer.text or path in ("/_/workers", "/_/", f"/_/jobs/{job.id}/requeue"), path


async def test_a_page_of_fifty_rows_moves_under_100_kb(visitor: Visitor) -> None:
    payload = {"userId": "48213", "email": "mara@example.com", "region": "eu", "period": "week", "locale": "de"}
    await visitor.queue.enqueue_many("mail_digest", [payload] * 60, run_at=datetime.now(UTC) + timedelta(hours=1))
    answer = await visitor.get("/_/jobs")
    assert answer.text.count("<tbody id=") == 50
    assert int(answer.headers["content-length"]) < 30_000
    assert len(answer.content) < 120_000


async def test_finding_a_job_a_topic_or_a_page(sqlite_visitor: Visitor) -> None:
    job = await sqlite_visitor.queue.enqueue("mail.weekly")
    for text, target in (
        (job.id, f"/_/jobs/{job.id}"),
        ("mail.weekly", "/_/jobs?topic=mail.weekly"),
        ("Workers", "/_/workers"),
        ("anything else", "/_/jobs?q=anything+else"),
    ):
        answer = await sqlite_visitor.get(f"/_/find?q={text}")
        assert answer.headers["location"] == target


async def test_columns_are_added_by_choice_and_stay_in_the_address(visitor: Visitor) -> None:
    await visitor.failed_job(error="SmtpError: <b>refused</b>", max_attempts=1, priority="high", scope="user")
    plain = await visitor.text("/_/jobs")
    for name in ("Error", "Priority", "Created by", "Worker"):
        assert name in plain, "the menu offers it"
    page = (await visitor.get("/_/jobs?cols=priority&cols=error&status=failed&cols=nonsense")).text
    head = page[page.index("<thead>") : page.index("</thead>")]
    assert re.findall(r'<th class="extra[^>]*>([^<]*)', head) == ["Error", "Priority"]
    cells = re.findall(r'<td class="extra[^>]*>([^<]*)', page)
    assert cells == ["Boom: SmtpError: &lt;b&gt;refused&lt;/b&gt;", "75"]
    tab = re.search(r'href="([^"]*)"[^>]*>Completed', page)
    assert tab
    assert "cols=error%2Cpriority" in tab[1]
    live = (await visitor.get(f"/_/live?view=jobs&cols=error&once=1&ids={_first_id(page)}")).json()
    assert 'class="extra"' in live["regions"][f"job-{_first_id(page)}"]


def _first_id(page: str) -> str:
    found = re.search(r'data-job="([^"]+)"', page)
    assert found
    return found[1]


async def test_a_snoozed_job_has_no_negative_wait(visitor: Visitor) -> None:
    await visitor.queue.enqueue("mail")
    (claimed,) = await visitor.hands.claim("mail", limit=1)
    await visitor.hands.settle(claimed, Snoozed(3_600_000))
    page = (await visitor.get("/_/jobs")).text
    assert not re.search(r">-\d", page)
    assert "data-since" not in page[page.index("<thead>") :]


@pytest.fixture
async def asked(sqlite_visitor: Visitor) -> Counter[str]:
    """The verbs of the store that pages used."""
    return cast(FaultyStore, sqlite_visitor.queue.store).calls


@pytest.mark.parametrize("path", ["/", "/jobs", "/errors", "/topics", "/workers", "/system"])
async def test_a_page_reads_the_state_of_the_queue_once(
    sqlite_visitor: Visitor, asked: Counter[str], path: str
) -> None:
    await sqlite_visitor.failed_job(max_attempts=1)
    await sqlite_visitor.text("/_/system?check=1")  # the doctor asks on its own, once a minute
    asked.clear()
    await sqlite_visitor.text(f"/_{path}")
    counts = {verb: asked[verb] for verb in ("topics", "workers", "failed_groups")}
    assert set(counts.values()) == {1}, counts


async def test_the_topics_of_listed_jobs_can_be_chosen_though_the_state_of_the_queue_is_older(
    sqlite_visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sqlite_visitor.queue.enqueue("early")
    monkeypatch.setattr(overview, "QUICK_S", 0)
    monkeypatch.setattr(overview, "KEPT_FOR", 10**9)
    for _ in range(2):  # the first answer is not kept
        await sqlite_visitor.get("/_/jobs")
    await sqlite_visitor.queue.enqueue("later")
    page = (await sqlite_visitor.get("/_/jobs")).text
    chosen = page[page.index('name="topic"') :]
    assert re.findall(r"<option>(\w+)<", chosen[: chosen.index("</select>")]) == ["early", "later"]


async def test_a_page_of_jobs_asks_the_same_number_of_queries_for_one_row_and_for_fifty(
    sqlite_visitor: Visitor, asked: Counter[str]
) -> None:
    counts = []
    for jobs in (1, 49):
        await sqlite_visitor.queue.enqueue_many("mail", [{}] * jobs)
        asked.clear()
        await sqlite_visitor.get("/_/jobs?q=userId")
        counts.append(dict(asked))
    assert counts[0] == counts[1]


async def test_a_secret_is_shown_nowhere(visitor: Visitor) -> None:
    visitor.queue.register("pay", lambda payload: None, secret=["token"])
    job = await visitor.queue.enqueue("pay", {"user": "ann", "token": "s3cr3t-t0k3n"})
    for path in ("/_/jobs", f"/_/jobs/{job.id}", f"/_/jobs/new?from={job.id}"):
        page = await visitor.get(path)
        assert page.status_code == 200
        assert "s3cr3t-t0k3n" not in page.text
        assert "***" in page.text


async def test_words_are_looked_for_in_the_newest_jobs_and_the_page_says_so(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.insights.search.SEARCHED", 3)
    old = await visitor.failed_job(error="SmtpError: REFUSED", max_attempts=1)
    jobs = [await visitor.failed_job(error="SmtpError: REFUSED", max_attempts=1) for _ in range(3)]
    await visitor.queue.enqueue("other")
    for query in ("q=refused", "q=error:refused", "q=refused&sort=runAt"):
        page = (await visitor.get(f"/_/jobs?{query}")).text
        assert set(re.findall(r'<tbody id="job-([^"]+)"', page)) == {job.id for job in jobs}, query
        assert old.id not in page
        assert "of 3 that match in the newest 3 of each status" in words(page)
        assert "all that match, older ones too" in words(page)
    by_status = (await visitor.get("/_/jobs?q=status:pending refused")).text
    assert "in the newest" not in words(by_status)
    nothing = await visitor.text("/_/jobs?q=nowhere")
    assert "Nothing with nowhere in the newest 3 jobs of each status." in nothing
    assert "Search all 5" in nothing


async def test_a_search_by_an_index_reaches_the_oldest_job(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.insights.search.SEARCHED", 1)
    old = await visitor.queue.enqueue("mail", {"userId": "7"}, scope="user", scope_id="u1")
    await visitor.queue.enqueue_many("mail", [{}] * 3)
    for query in (f"id:{old.id}", "scopeId:u1", "scope:user scopeId:u1 payload.userId:7"):
        page = (await visitor.get(f"/_/jobs?q={query}")).text
        assert old.id in page, query
        assert "in the newest" not in words(page)


async def test_changing_everything_that_matches_reaches_older_jobs_than_the_search(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.insights.search.SEARCHED", 1)
    jobs = [await visitor.failed_job(error="SmtpError: refused", max_attempts=1) for _ in range(3)]
    asks = await visitor.text("/_/bulk?action=requeue&all=1&q=refused")
    assert f"{len(jobs)} requeued" in asks or f"{len(jobs)} jobs" in asks, asks[:1500]


async def test_an_idle_list_asks_the_same_number_of_queries_for_one_row_and_for_fifty(
    sqlite_visitor: Visitor, asked: Counter[str]
) -> None:
    jobs = await sqlite_visitor.queue.enqueue_many("mail", [{}] * 50)
    counts = []
    for shown in (1, 50):
        asked.clear()
        ids = ",".join(job.id for job in jobs[:shown])
        answer = await sqlite_visitor.get(f"/_/live?view=jobs&once=1&ids={ids}")
        assert answer.status_code == 200
        assert len([name for name in answer.json()["regions"] if name.startswith("job-")]) == shown
        counts.append(dict(asked))
    assert counts[0] == counts[1]


async def test_names_with_dots_are_links_that_work(visitor: Visitor) -> None:
    await visitor.queue.enqueue("mail.weekly.v2")
    for path in ("/_/topics", "/_/jobs", "/_/"):
        page = (await visitor.get(path)).text
        links = set(re.findall(r'href="([^"]*mail\.weekly\.v2[^"]*)"', page))
        assert links or path == "/_/jobs", path
        for link in links:
            assert (await visitor.get(html.unescape(link))).status_code == 200, link


async def test_a_worker_s_name_stays_text(visitor: Visitor) -> None:
    await visitor.queue.store.open_lease(XSS, 60_000, {"topics": ["mail"], "capabilities": [XSS], "slots": 1})
    page = (await visitor.get("/_/workers")).text
    assert "&lt;img src=x" in page
    assert "<img src=x" not in page
    assert "<script>alert" not in page
