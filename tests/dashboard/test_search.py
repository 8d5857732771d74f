"""Search that finds: no tab hides what another has, what is not understood is said, and all jobs can be searched."""

import re
from urllib.parse import quote

import pytest

from tests.dashboard.visitor import Visitor, words
from tests.waiting import until
from treadle.insights import scan, search


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search looks at the newest three of each status, and a scan reads two at a time."""
    monkeypatch.setattr(search, "SEARCHED", 3)
    monkeypatch.setattr(scan, "FIRST_PART", 2)
    monkeypatch.setattr(scan, "LARGEST_PART", 2)


def rows(page: str) -> list[str]:
    return re.findall(r'<tbody id="job-([^"]+)"', page)


@pytest.mark.usefixtures("short_searches")
async def test_all_is_never_smaller_than_a_tab(visitor: Visitor) -> None:
    wanted = await visitor.failed_job("crm_sync", max_attempts=1, payload={"userId": 4711})
    for i in range(5):
        await visitor.queue.enqueue("mail", {"userId": i})
    for query in ("payload.userId:4711", "refused"):
        page = (await visitor.get(f"/_/jobs?q={query}")).text
        assert rows(page) == [wanted.id], query
        assert re.search(r'>All <span class="count">1<', page), query
        assert "in the newest 3 of each status" in words(page)


async def test_an_empty_tab_says_where_the_matches_are(visitor: Visitor) -> None:
    await visitor.failed_job("crm_sync", max_attempts=1, payload={"userId": 4711})
    page = (await visitor.get("/_/jobs?status=pending&q=payload.userId:4711")).text
    assert "Nothing in Pending" in words(page)
    assert re.search(r'href="/_/jobs\?status=failed&amp;q=payload.userId%3A4711"><svg.*?</svg>1 in Failed<', page)


@pytest.mark.usefixtures("short_searches")
async def test_all_jobs_are_searched_by_a_scan_with_progress(visitor: Visitor) -> None:
    wanted = [
        await visitor.failed_job("crm_sync", max_attempts=1, payload={"userId": 4711}),
        await visitor.queue.enqueue("crm_sync", {"userId": 4711}),
    ]
    for i in range(9):
        await visitor.queue.enqueue("mail", {"userId": i})
    page = (await visitor.get("/_/jobs?q=payload.userId:4711&status=completed")).text
    assert "Search all 11" in words(page)
    answer = await visitor.post("/_/scan", q="payload.userId:4711", status="completed")
    address = answer.headers["location"]
    assert address == "/_/scan?q=payload.userId%3A4711"

    async def finished() -> str:
        text = (await visitor.get(address)).text
        return text if "All jobs read" in text else ""

    page = await until(finished)
    assert "11 read · 2 found" in words(page)
    assert rows(page) == [wanted[1].id, wanted[0].id]
    page = (await visitor.get(f"{address}&status=failed")).text
    assert rows(page) == [wanted[0].id]
    text = await visitor.text(f"{address}&status=completed")
    assert "None of the 2 found is completed" in text
    assert "1 in Pending" in text
    live = (await visitor.get("/_/live?view=scan&once=1&q=payload.userId:4711")).json()
    assert "2 found" in live["regions"]["scan"]


async def test_one_scan_a_person_and_it_can_be_stopped(visitor: Visitor) -> None:
    await visitor.queue.enqueue("mail")
    first = (await visitor.post("/_/scan", q="one")).headers["location"]
    second = (await visitor.post("/_/scan", q="two")).headers["location"]
    gone = await visitor.get(first)
    assert (gone.status_code, gone.headers["location"]) == (303, "/_/jobs?q=one")
    assert (await visitor.get(second)).status_code == 200
    assert (await visitor.post("/_/scan/stop")).headers["location"] == second


async def test_an_unknown_qualifier_is_named_with_the_nearest(visitor: Visitor) -> None:
    await visitor.queue.enqueue("mail", {"colour": "red"})
    page = (await visitor.get("/_/jobs?q=scop:red topic:mail")).text
    text = words(page)
    assert "scop: is not a qualifier, so it is left out. Did you mean scope:red or payload.scop:red ?" in text
    assert f'href="/_/jobs?q={quote("scope:red topic:mail", safe="").replace("%20", "+")}"' in page
    assert "<s>scop:red</s>" in page
    assert len(rows(page)) == 1
    assert 'name="q" value="topic:mail"' in page[page.index('id="bulk"') :]


async def test_an_unfinished_time_gets_examples(visitor: Visitor) -> None:
    await visitor.queue.enqueue("mail")
    text = await visitor.text("/_/jobs?q=failed:>20")
    assert "failed:>20 is not finished; write a time (failed:>20:27)" in text
    assert "failed:1h" in text


async def test_a_pasted_error_is_words(visitor: Visitor) -> None:
    job = await visitor.failed_job("mail", "SmtpError: refused", max_attempts=1)
    page = (await visitor.get("/_/jobs?q=SmtpError: refused")).text
    assert rows(page) == [job.id]
    assert "not a qualifier" not in page


async def test_what_failed_in_the_last_hour_is_listed_and_requeued(visitor: Visitor) -> None:
    failed = [await visitor.failed_job("crm_sync", max_attempts=1) for _ in range(2)]
    await visitor.completed_job("crm_sync")
    await visitor.queue.enqueue("crm_sync")
    page = (await visitor.get("/_/jobs?q=failed:1h")).text
    assert rows(page) == [job.id for job in reversed(failed)]
    assert re.search(r"<b>failed:</b>1h <span class=\"meant\">since \d+ \w+, \d\d:\d\d", page)
    answer = await visitor.confirm("/_/bulk?action=requeue&all=1&q=failed:1h")
    assert answer.status_code == 303
    assert (await visitor.queue.stats()).failed == 0


async def test_by_worker_and_by_how_long_it_ran(visitor: Visitor) -> None:
    job = await visitor.completed_job("mail")
    await visitor.queue.enqueue("mail")
    for query, found in (("worker:hands", [job.id]), ("worker:other", []), ("ran:<1h", [job.id]), ("ran:>1h", [])):
        assert rows((await visitor.get(f"/_/jobs?q={query}")).text) == found, query
