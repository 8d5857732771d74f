"""What a live page receives: what it has missed, rows at a low rate of events, only counts at a high one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from starlette.requests import Request

from tests.dashboard.visitor import Visitor
from treadle import Job
from treadle.dashboard.page import Page
from treadle.dashboard.pages.live import BATCH_S, CALM_EVENTS_PER_S, JobList, LiveStream, WholePage
from treadle.dashboard.pages.workers import workers_regions
from treadle.dashboard.state import State
from treadle.events.ring import FeedEvent
from treadle.http.server import Server
from treadle.telemetry import HttpMetrics


class BatchStream(LiveStream):
    """A stream on which the first job is claimed, and all of these jobs are told of within one batch."""

    def __init__(self, page: Page, source: JobList, visitor: Visitor, jobs: Sequence[Job]) -> None:
        super().__init__(page, source)
        self._visitor, self._jobs = visitor, jobs

    async def gather(self, first: float) -> list[FeedEvent]:
        await self._visitor.hands.claim(self._jobs[0].topic, limit=1)
        return [FeedEvent(i, "job:started", {}, job.as_json(), b"") for i, job in enumerate(self._jobs)]


def asked_for(visitor: Visitor, query: str) -> Page:
    scope = {"type": "http", "method": "GET", "path": "/_/live", "root_path": "/_", "headers": []}
    request = Request({**scope, "query_string": query.encode()})
    return Page(request, State(Server(visitor.queue, HttpMetrics())), None)


@pytest.mark.parametrize("more", [0, int(CALM_EVENTS_PER_S * BATCH_S)], ids=["calm", "busy"])
async def test_above_fifty_events_a_second_only_counts_are_sent(sqlite_visitor: Visitor, more: int) -> None:
    job = await sqlite_visitor.queue.enqueue("slow")
    others = await sqlite_visitor.queue.enqueue_many("other", [{}] * more) if more else []
    page = asked_for(sqlite_visitor, f"view=jobs&ids={job.id}&drawn=pending")
    source = JobList(page)
    patch = await anext(source.patches(BatchStream(page, source, sqlite_visitor, [job, *others])))
    assert {"counts", "tabs"} <= set(patch["regions"])
    assert (f"job-{job.id}" in patch["regions"]) is not bool(more)


def drawn(page: str) -> str:
    """Without the times that a browser updates, and without the filters that begin at a time before now."""
    return re.sub(r'(<time[^>]*>)[^<]*|\?[^"]*filter=[^"]*', r"\1", page)


async def live_list(visitor: Visitor, view: str) -> str:
    """What a live page receives, which is what a new request would show."""
    shown = (await visitor.get(f"/_/{view}")).text
    regions: dict[str, str] = (await visitor.get(f"/_/live?view={view}&once=1")).json()["regions"]
    assert len(regions) == 2, "the note and the list"
    for name, html in regions.items():
        assert f'id="{name}"' in html
        assert drawn(html) in drawn(shown)
    return "".join(regions.values())


@pytest.mark.parametrize("view", ["workers", "topics", "errors", "schedules"])
async def test_a_live_list_shows_its_first_entry(visitor: Visitor, view: str) -> None:
    assert 'class="panel empty"' in await live_list(visitor, view)
    await visitor.hands.arrive("mail")
    await visitor.failed_job()
    await visitor.queue.schedules.create("mail", every="1h", id="hourly", enabled=False)
    assert 'class="panel empty"' not in await live_list(visitor, view)


@pytest.mark.parametrize("view", ["workers", "errors", "schedules"])
async def test_a_live_list_shows_that_its_last_entry_has_gone(visitor: Visitor, view: str) -> None:
    lease = await visitor.hands.arrive("mail")
    job = await visitor.failed_job()
    await visitor.queue.schedules.create("mail", every="1h", id="hourly", enabled=False)
    assert 'class="panel empty"' not in await live_list(visitor, view)
    await visitor.queue.store.close_lease(lease)
    await visitor.queue.delete(job.id)
    await visitor.queue.schedules.delete("hourly")
    assert 'class="panel empty"' in await live_list(visitor, view)


async def test_what_changed_while_the_page_was_being_opened_is_sent_first(sqlite_visitor: Visitor) -> None:
    await sqlite_visitor.hands.arrive("mail")  # after the page was drawn
    page = asked_for(sqlite_visitor, "view=workers")
    source = WholePage(page, workers_regions)
    patch = await anext(source.patches(LiveStream(page, source)))
    assert "hands" in patch["regions"]["worker-list"]
