"""What a live list receives: rows at a low rate of events, only counts at a high one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from starlette.requests import Request

from tests.dashboard.visitor import Visitor
from treadle import Job
from treadle.dashboard.page import Page
from treadle.dashboard.pages.live import BATCH_S, CALM_EVENTS_PER_S, JobList, LiveStream
from treadle.dashboard.state import State
from treadle.http.server import Server
from treadle.insights.feed import FeedEvent
from treadle.telemetry import HttpMetrics


class BatchStream(LiveStream):
    """A stream on which the first job is claimed, and all of these jobs are told of within one batch."""

    def __init__(self, page: Page, source: JobList, visitor: Visitor, jobs: Sequence[Job]) -> None:
        super().__init__(page, source)
        self._visitor, self._jobs = visitor, jobs

    async def gather(self, first: float) -> list[FeedEvent]:
        await self._visitor.hands.claim(self._jobs[0].topic, limit=1)
        return [FeedEvent(i, "job:started", {}, job.as_json(), b"") for i, job in enumerate(self._jobs)]


@pytest.mark.parametrize("more", [0, int(CALM_EVENTS_PER_S * BATCH_S)], ids=["calm", "busy"])
async def test_above_fifty_events_a_second_only_counts_are_sent(sqlite_visitor: Visitor, more: int) -> None:
    job = await sqlite_visitor.queue.enqueue("slow")
    others = await sqlite_visitor.queue.enqueue_many("other", [{}] * more) if more else []
    scope = {"type": "http", "method": "GET", "path": "/_/live", "root_path": "/_", "headers": []}
    asked = Request({**scope, "query_string": f"view=jobs&ids={job.id}".encode()})
    page = Page(asked, State(Server(sqlite_visitor.queue, HttpMetrics())), None)
    source = JobList(page)
    patch = await anext(source.patches(BatchStream(page, source, sqlite_visitor, [job, *others])))
    assert {"counts", "tabs"} <= set(patch["regions"])
    assert (f"job-{job.id}" in patch["regions"]) is not bool(more)
