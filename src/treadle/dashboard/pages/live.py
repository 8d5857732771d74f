"""Live updates: parts of a page, drawn by the same macros as the page.

A stream knows its page's address and, on the list of jobs, the ids of its rows. It waits for events of the feed,
collects them for a moment, draws the parts that may have changed and sends the ones that did.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic_core import to_json
from starlette.responses import Response

from treadle.dashboard.page import Page, macros
from treadle.dashboard.pages import bulk, errors, job, jobs, overview, scan, schedules, topics, workers
from treadle.dashboard.rows import job_row
from treadle.events.feed import RESYNC, FeedStopped, Listener
from treadle.events.frames import frame
from treadle.events.ring import FeedEvent
from treadle.http.errors import ApiError
from treadle.http.streams.sse import StreamResponse
from treadle.insights.search import JobSearch
from treadle.model.errors import JobNotFound, QueryTooSlow, StoreUnavailable, TreadleError
from treadle.policy import rules
from treadle.policy.rules import Condition

log = logging.getLogger("treadle.dashboard")

MAX_IDS = 100
BATCH_S = 0.25
# Above this rate, rows stay unchanged and only counts are sent.
CALM_EVENTS_PER_S = 50
COUNTS_EVERY_S = 2.0
LOOK_EVERY_S = 2.0
CHECK_S = 3.0
# How often pages without rows are redrawn, during activity and when idle.
BUSY_S, QUIET_S = 2.0, 15.0
_TIMES = re.compile(r"(<time[^>]*>)[^<]*(</time>)|(data-since=\"[^\"]*\">)[^<]*<")

Regions = Callable[[Page], Awaitable[dict[str, str]]]


async def job_regions(page: Page) -> dict[str, str]:
    view, part = await job.job_view(page, page.query("id"), live=True), macros("job")
    steps = macros("steps")
    return {
        "graph": str(steps.drawing(view, page.base)),
        "steps": str(steps.waterfall(view, page.base, page.read_only)),
        "answer": str(steps.answers(view, page.base, page.read_only)),
        "job-head": str(part.head(view, page.base, page.read_only)),
        "why": str(part.why(view)),
        "progress": str(part.progress(view)),
        "output": str(part.output(view, page.base)),
        "error": str(part.error(view, page.base)),
        "attempts": str(part.attempts(view)),
        "webhooks": str(macros("webhooks").of_job(view.webhooks, page.base)),
        "family": str(part.family(view, page.base)),
        "result": str(part.result(view, page.base)),
        "timeline": str(part.timeline(view)),
        "facts": str(part.facts(view, page.base)),
    }


async def operation_regions(page: Page) -> dict[str, str]:
    return await bulk.operation_regions(page, page.query("id"))


PAGES: Mapping[str, Regions] = {
    "overview": overview.overview_regions,
    "job": job_regions,
    "errors": errors.errors_regions,
    "topics": topics.topics_regions,
    "workers": workers.workers_regions,
    "schedules": schedules.schedules_regions,
    "operation": operation_regions,
    "scan": scan.scan_regions,
}


async def live(page: Page) -> Response:
    view = page.query("view")
    if view != "jobs" and view not in PAGES:
        raise ApiError(404, "not_found", "No live part has this name.")
    source: Source = JobList(page) if view == "jobs" else WholePage(page, PAGES[view])
    if page.query("once"):
        patch = await source.everything()
        return Response(to_json(patch), headers={"Cache-Control": "no-store"}, media_type="application/json")
    stream = LiveStream(page, source)
    await stream.open()
    return StreamResponse(stream)


class Source(Protocol):
    """What a stream sends."""

    def sees(self, facts: Mapping[str, Any]) -> bool:
        """Whether an event about this job may change the page."""

    async def everything(self) -> dict[str, Any]:
        """A patch with every part."""

    def patches(self, stream: LiveStream) -> AsyncIterator[dict[str, Any]]:
        """Patches with what changed, forever; an empty one lets the stream check that it may go on."""


def fresh(page: Page) -> Page:
    """The page as a new request would get it."""
    return Page(page.request, page.state, page.caller)


class LiveStream:
    """One reader: its position in the feed, and what was sent to it."""

    def __init__(self, page: Page, source: Source) -> None:
        self.page = page
        self._source = source
        self._listener: Listener | None = None
        self._sent: dict[str, str] = {}
        self._check_at = time.monotonic() + CHECK_S

    async def open(self) -> None:
        self._listener = await self.page.state.server.feed.listener(None, self._source.sees)

    async def close(self) -> None:
        if self._listener:
            await self._listener.close()

    async def frames(self) -> AsyncIterator[bytes]:
        """Runs until the reader leaves or signs out, or the server stops."""
        # A browser that connects again sends the id back, so we know that its page is older than its address says.
        yield b"retry: 2000\r\nid: live\r\n\r\n"
        try:
            async for patch in self._source.patches(self):
                if patch:
                    yield frame("patch", to_json(patch))
                if not await self._may_go_on():
                    return
        except (FeedStopped, StoreUnavailable):
            return

    async def _may_go_on(self) -> bool:
        if time.monotonic() < self._check_at:
            return True
        self._check_at = time.monotonic() + CHECK_S
        try:
            caller = await self.page.state.server.access.caller(self.page.request, anew=True)
        except ApiError:
            return False
        except StoreUnavailable:
            return True  # without the store there are no events either
        return caller.is_superuser

    def changed(self, regions: Mapping[str, str]) -> dict[str, str]:
        """The parts that differ from what was sent. Relative times are left out, because the browser updates them."""
        found = {}
        for name, html in regions.items():
            digest = hashlib.sha256(_TIMES.sub(r"\1\2\3", html).encode()).hexdigest()
            if self._sent.get(name) != digest:
                self._sent[name] = digest
                found[name] = html
        return found

    async def gather(self, first: float) -> list[FeedEvent]:
        """Wait for an event, then for further ones within a moment."""
        assert self._listener
        told = await self._listener.next(first)
        events = [told] if told else []
        until = time.monotonic() + BATCH_S
        while events and (left := until - time.monotonic()) > 0:
            if (more := await self._listener.next(left)) is None:
                break
            events.append(more)
        return events


class WholePage:
    """Redraws a whole page and sends the parts that changed."""

    def __init__(self, page: Page, regions: Regions) -> None:
        self.page = page
        self._regions = regions

    def sees(self, facts: Mapping[str, Any]) -> bool:
        wanted = self.page.query("id") if self.page.query("view") == "job" else ""
        return not wanted or facts["id"] == wanted

    async def everything(self) -> dict[str, Any]:
        try:
            return {"regions": await self._regions(fresh(self.page))}
        except JobNotFound:
            return {}

    async def patches(self, stream: LiveStream) -> AsyncIterator[dict[str, Any]]:
        # Something may have changed after the page was drawn, and then never again.
        yield {"regions": stream.changed((await self.everything()).get("regions", {}))}
        alone = self.page.query("view") == "job"
        operation = self.page.query("view") in ("operation", "scan")
        while True:
            wait = BATCH_S * 2 if operation else QUIET_S
            events = await stream.gather(min(wait, CHECK_S))
            if events and not alone and not operation:
                await asyncio.sleep(BUSY_S)
            regions = stream.changed((await self.everything()).get("regions", {}))
            yield {"regions": regions} if regions else {}


@dataclass(slots=True)
class _News:
    rows: set[str] = field(default_factory=set)
    newcomers: set[str] = field(default_factory=set)


class JobList:
    """The list of jobs: its rows by id, its counts, and the number of new jobs that would be on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        params = page.request.query_params
        self._ids = [id for id in params.get("ids", "").split(",") if id][:MAX_IDS]
        again = "drawn" not in params or "last-event-id" in page.request.headers
        self._drawn = None if again else [one for one in params["drawn"].split(",") if one]
        """The statuses of the rows of a page that was drawn a moment ago; None if the page is older."""
        self._search: JobSearch = jobs.search_of(params)
        self._condition: Condition = self._search.narrowed.condition()
        self._first_page = params.get("page", "1") in ("", "1") and not self._search.sort
        self._newcomers: set[str] = set()
        self._gone: set[str] = set()
        self._counts_at = 0.0
        self._looked_at = time.monotonic()
        self._moving: set[str] = set(self._ids)
        """Rows of live jobs, because claims, heartbeats and some progress cause no events."""

    def sees(self, facts: Mapping[str, Any]) -> bool:
        return True

    def _matches(self, document: Mapping[str, Any]) -> bool:
        found = self._search.narrowed
        return (
            found.topic in ("", document["topic"])
            and found.status in ("", document["status"], "stale")
            and rules.matches(self._condition, document)
        )

    async def everything(self) -> dict[str, Any]:
        rows, gone, _ = await self._changed_rows(self._ids)
        await self._find_missed()
        pill = {"newcomers": self._pill()} if self._first_page else {}
        back = [id for id in self._ids if id not in self._gone]
        return {"regions": {**rows, **pill, **await self._counts()}, "gone": gone, "back": back}

    async def _is_as_drawn(self) -> bool:
        if self._drawn is None:
            return False
        found = await self.page.state.insights.jobs(self._ids)
        return [one.status.value if one else "" for one in found] == self._drawn

    async def _find_missed(self) -> None:
        """Jobs that came after the page was drawn and before there was a stream that told of them."""
        if not self._first_page:
            return
        try:
            found = await self.page.state.insights.find_ids(self._search, jobs.PER_PAGE)
        except QueryTooSlow:
            return
        # Below the last row of a full page come older jobs, which are not new.
        last = min(self._ids) if len(self._ids) >= jobs.PER_PAGE else ""
        self._newcomers |= {id for id in found if id > last} - set(self._ids)

    async def patches(self, stream: LiveStream) -> AsyncIterator[dict[str, Any]]:
        if await self._is_as_drawn():
            stream.changed(await self._rows(self._ids))
            await self._find_missed()
        else:
            missed = await self.everything()
            yield {**missed, "regions": stream.changed(missed["regions"])}
        late: set[str] = set()
        while True:
            events = await stream.gather(min(COUNTS_EVERY_S, CHECK_S))
            news = self._news(events)
            busy = len(events) > CALM_EVENTS_PER_S * BATCH_S
            late |= news.rows
            if time.monotonic() - self._looked_at > LOOK_EVERY_S:
                self._looked_at = time.monotonic()
                late |= self._moving
            patch: dict[str, Any] = {}
            regions: dict[str, str] = {}
            if late and not busy:
                regions, gone, back = await self._changed_rows(sorted(late))
                patch |= {name: found for name, found in (("gone", gone), ("back", back)) if found}
                late.clear()
            self._newcomers |= news.newcomers
            if self._first_page:
                regions["newcomers"] = self._pill()
            if events and time.monotonic() - self._counts_at > COUNTS_EVERY_S:
                self._counts_at = time.monotonic()
                regions |= await self._counts()
            if changed := stream.changed(regions):
                patch["regions"] = changed
            yield patch

    def _news(self, events: list[FeedEvent]) -> _News:
        news = _News()
        shown = set(self._ids)
        for told in events:
            if told.event == RESYNC:
                news.rows |= shown
                continue
            id = told.facts["id"]
            if id in shown:
                news.rows.add(id)
            elif told.event == "job:deleted":
                self._newcomers.discard(id)
            elif "status" in told.facts:
                (news.newcomers.add if self._matches(told.facts) else self._newcomers.discard)(id)
        return news

    async def _changed_rows(self, ids: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
        found = {one.id: one for one in await self.page.state.insights.jobs(ids) if one is not None}
        fits = {id for id in ids if id in found and self._matches(found[id].as_json())}
        gone, back = set(ids) - fits - self._gone, fits & self._gone
        self._gone = (self._gone | gone) - back
        return await self._rows(list(found)), sorted(gone), sorted(back)

    async def _rows(self, ids: list[str]) -> dict[str, str]:
        """All rows in one query."""
        found = [one for one in await self.page.state.insights.jobs(ids) if one is not None]
        self._moving -= {one.id for one in found if one.ended}
        self._moving |= {one.id for one in found if not one.ended}
        page, part = fresh(self.page), macros("jobs")
        now = await page.state.now.get()
        columns = jobs.columns_of(page)
        return {f"job-{one.id}": str(part.job_row(job_row(one, now, page.now, columns), page.base)) for one in found}

    def _pill(self) -> str:
        return str(
            macros("jobs").new_pill(len(self._newcomers), self.page.url("/jobs", **jobs.search_query(self._search)))
        )

    async def _counts(self) -> dict[str, str]:
        page, part = fresh(self.page), macros("jobs")
        try:
            counts = await page.state.insights.count(replace(self._search.narrowed, sort=""))
        except TreadleError:
            return {}
        line = await jobs.counts_line(page, None if self._search.words else counts)
        return {
            "counts": str(part.counts_line(line)),
            "tabs": str(part.status_tabs(jobs.tabs(page, self._search, counts))),
        }
