"""The first question of the night: what is wrong, why, and since when."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.dashboard.visitor import Visitor, words
from treadle import Concurrency, Rate


def long_ago() -> datetime:
    return datetime.now(UTC) - timedelta(minutes=12)


async def reports(visitor: Visitor, accounts: list[str]) -> None:
    visitor.queue.register("slow_report", lambda account: None, concurrency=Concurrency(keys=["input.account"]))
    await visitor.queue.save_templates()
    for account in accounts:
        await visitor.queue.enqueue("slow_report", {"account": account}, run_at=long_ago())


async def test_jobs_that_wait_for_their_key_say_so_and_slots_are_not_blamed(visitor: Visitor) -> None:
    await reports(visitor, ["acme", "globex", *["acme"] * 3, *["globex"] * 2])
    assert len(await visitor.hands.claim("slow_report")) == 2
    page = await visitor.text("/_/")
    assert "slow_report : 5 of 5 due jobs wait for their key (acme, globex: 1 each); 8 slots are free." in page
    assert "More workers would not help." in page
    assert "slots or workers would help" not in page
    assert "key is full" in await visitor.text("/_/topics")


async def test_slots_are_mentioned_when_they_are_full(visitor: Visitor) -> None:
    for _ in range(13):
        await visitor.queue.enqueue("video", run_at=long_ago())
    assert len(await visitor.hands.claim("video", limit=10)) == 10
    page = await visitor.text("/_/")
    assert "video : 3 of 3 due jobs wait for a slot; all 10 are taken." in page
    assert "More slots or workers would help." in page
    assert "slots full" in await visitor.text("/_/topics")


async def test_a_used_up_rate_limit_is_the_cause(visitor: Visitor) -> None:
    visitor.queue.register("crawl", lambda: None, rate=Rate(1, "1h"))
    await visitor.queue.save_templates()
    for _ in range(3):
        await visitor.queue.enqueue("crawl", run_at=long_ago())
    assert len(await visitor.hands.claim("crawl")) == 1
    assert "crawl : 2 of 2 due jobs wait for the rate limit of 1 per 1h; 9 slots are free." in await visitor.text("/_/")


async def test_a_failing_topic_comes_first_with_its_error_and_what_to_do(visitor: Visitor) -> None:
    for _ in range(6):
        job = await visitor.failed_job("crm_sync", "Boom: cannot import name 'Client'", max_attempts=1)
    await visitor.completed_job("mail")
    await visitor.queue.enqueue("nobody_s")
    page = (await visitor.get("/_/")).text
    text = words(page)
    assert re.search(r"crm_sync is failing: 6 of 6 failed since \d\d:\d\d\.", text)
    assert "Boom (new): cannot import name 'Client'" in text
    assert text.index("crm_sync is failing") < text.index("No worker takes")
    assert f'href="/_/jobs/{job.id}">Newest failure' in page
    assert 'href="/_/topics/crm_sync/pause?back=%2F_%2F" data-dialog' in page
    assert "Requeue 6" in text
    answer = await visitor.confirm("/_/topics/crm_sync/pause?back=/_/")
    assert answer.headers["location"] == "/_/"
    assert "The topic is paused." in await visitor.text("/_/")


@pytest.mark.parametrize(("failed", "completed"), [(4, 0), (1, 4), (2, 8)])
async def test_a_few_failures_are_no_failing_topic(visitor: Visitor, failed: int, completed: int) -> None:
    for _ in range(failed):
        await visitor.failed_job("crm_sync", max_attempts=1)
    for _ in range(completed):
        await visitor.completed_job("crm_sync")
    assert "is failing" not in await visitor.text("/_/")


async def test_topics_show_what_fails_above_what_is_idle(visitor: Visitor) -> None:
    for _ in range(5):
        await visitor.failed_job("zebra_sync", max_attempts=1)
    await visitor.completed_job("mail")
    page = await visitor.text("/_/topics")
    assert "failing 5 of 5" in page
    assert page.index("zebra_sync") < page.index("mail")
    assert "1 failing" in page


async def test_jobs_that_wait_for_a_person_are_a_row_and_a_figure(visitor: Visitor) -> None:
    assert "wait for a person" not in await visitor.text("/_/")
    jobs = [await visitor.flows.waiting() for _ in range(2)]
    page = (await visitor.get("/_/")).text
    text = words(page)
    assert "2 jobs wait for a person, the longest for" in text
    assert f'href="/_/jobs/{jobs[0].id}">Answer the oldest' in page
    assert re.search(r"For a person 2 ", text)


async def test_a_sleeping_job_waits_for_no_person(visitor: Visitor) -> None:
    await visitor.flows.asleep()
    assert "for a person" not in await visitor.text("/_/")


async def test_a_paused_topic_is_not_behind(visitor: Visitor) -> None:
    await visitor.queue.enqueue("video", run_at=long_ago())
    await visitor.hands.arrive("video")
    await visitor.queue.pause("video")
    page = await visitor.text("/_/")
    assert "due job waits" not in page
    assert "No worker" not in page
