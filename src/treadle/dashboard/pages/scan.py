"""The search of all jobs: progress, what was found so far, and a stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.forms import page_number
from treadle.dashboard.page import Page, macros
from treadle.dashboard.pages.jobs import PER_PAGE, Tab, search_of, search_query
from treadle.dashboard.rows import JobRow, job_row
from treadle.insights import scan as scans
from treadle.insights.scan import Scan
from treadle.model.errors import InvalidInput
from treadle.model.status import Status
from treadle.policy.rules import InvalidRule

_ENDS = {
    scans.DONE: "All jobs read",
    scans.STOPPED: "Stopped",
    scans.FULL: f"Stopped at {scans.MOST_FOUND:,} found; narrow the search",
    scans.FAILED: "The search failed",
}


@dataclass(frozen=True, slots=True)
class ScanView:
    title: str
    progress: str
    percent: int
    running: bool
    problem: str
    search_words: str
    tabs: Sequence[Tab]
    status: str
    rows: Sequence[JobRow]
    found: int
    elsewhere: Sequence[tuple[str, str, str]]
    back: str
    """The list of jobs with this search."""
    previous_url: str
    next_url: str


async def start(page: Page) -> Response:
    form = await page.form()
    search = search_of({name: values[0] for name, values in form.items()})
    try:
        scan = await page.state.scans.start(page.who, search)
    except InvalidRule as error:
        raise InvalidInput(error.message, field="q") from None
    return page.redirect(page.url("/scan", **search_query(scan.search)))


async def stop(page: Page) -> Response:
    await page.state.scans.stop(page.who)
    found = page.state.scans.of(page.who)
    return page.redirect(page.url("/scan", **(search_query(found.search) if found else {})))


async def scan(page: Page) -> Response:
    found = _scan(page)
    if found is None:  # another search was started since, or the server
        search = search_of(page.request.query_params)
        text = "This search has ended. Start it again with “Search all”."
        return page.redirect(page.url("/jobs", **search_query(search)), text)
    view = await _view(page, found)
    live_url = ""
    if view.running:
        asked = {name: value for name, value in page.request.query_params.items() if name != "view"}
        live_url = page.url("/live", view="scan", **asked)
    return await page.render("scan", section="Jobs", title="Search of all jobs", view=view, live_url=live_url)


async def scan_regions(page: Page) -> dict[str, str]:
    found = _scan(page)
    return {"scan": str(macros("scan").scan(await _view(page, found), page.base, page.read_only))} if found else {}


def _scan(page: Page) -> Scan | None:
    """This person's scan, if the address is its own."""
    found = page.state.scans.of(page.who)
    asked = search_of(page.request.query_params)
    same = found and (found.search.q, found.search.topic, found.search.filter) == (asked.q, asked.topic, asked.filter)
    return found if same else None


async def _view(page: Page, running: Scan) -> ScanView:
    scan = replace(running, found=dict(running.found), took=running.seconds)  # it goes on while jobs are read
    status = page.query("status")
    counts = scan.counts()
    wanted = [id for id, one in scan.found.items() if status in ("", one)]
    number = page_number(page.query("page"), scans.MOST_FOUND)
    shown = wanted[(number - 1) * PER_PAGE : number * PER_PAGE]
    now = await page.state.now.get()
    jobs = [job for job in await page.state.insights.jobs(shown) if job is not None]
    query = search_query(scan.search)

    def url(**more: Any) -> str:
        return page.url("/scan", **{**query, **more})

    return ScanView(
        f"Searching all {scan.total:,} jobs" if scan.state == scans.RUNNING else _ENDS[scan.state],
        _progress(scan),
        min(round(scan.read * 100 / scan.total), 100) if scan.total else 100,
        scan.state == scans.RUNNING,
        scan.problem,
        scan.search.words or "all jobs",
        [
            Tab(name, url(status=value), f"{counts.get(value, 0):,}", value == status)
            for name, value in [("All", ""), *((one.value.capitalize(), one.value) for one in Status)]
        ],
        status,
        [job_row(job, now, page.now) for job in jobs],
        len(scan.found),
        [
            (one.value, f"{counts[one]:,} in {one.value.capitalize()}", url(status=one.value))
            for one in Status
            if one in counts
        ],
        page.url("/jobs", **query),
        url(status=status, page=number - 1) if number > 1 else "",
        url(status=status, page=number + 1) if len(wanted) > number * PER_PAGE else "",
    )


def _progress(scan: Scan) -> str:
    told = [f"{scan.read:,} read" if scan.state != scans.DONE else f"{scan.total:,} read"]
    if scan.back_to and scan.state != scans.DONE:
        told[0] += f", newest first, back to {scan.back_to:%-d %b, %H:%M}"
    told.append(f"{len(scan.found):,} found")
    left = scan.seconds_left
    if scan.state != scans.RUNNING:
        told.append(f"in {words.duration(scan.seconds * 1000)}")
    elif left is not None:
        told.append(f"about {words.duration(left * 1000)} left")
    return " · ".join(told)
