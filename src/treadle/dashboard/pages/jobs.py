"""The list of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.columns import COLUMNS, Column, as_query, chosen
from treadle.dashboard.forms import page_number
from treadle.dashboard.page import Page
from treadle.dashboard.rows import job_row
from treadle.insights.overview import Now
from treadle.insights.search import STALE, FoundJobs, JobSearch, LeftOut, understood
from treadle.model.errors import InvalidInput, QueryTooSlow
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.rules import InvalidRule

PER_PAGE = 50
SORTS = [("", "Newest first"), ("createdAt", "Oldest first"), ("runAt", "Run at"), ("-priority", "Priority")]
MOST_TYPES = 20
MAX_PAGE = 2**31 // PER_PAGE


@dataclass(frozen=True, slots=True)
class Tab:
    name: str
    url: str
    count: str
    current: bool


def search_of(params: Mapping[str, str]) -> JobSearch:
    """The search in the URL; an order that the list does not offer becomes the default."""
    sort = params.get("sort", "")
    return JobSearch(
        params.get("topic", "").strip()[:100],
        params.get("status", "").strip()[:20],
        params.get("q", "").strip()[:500],
        params.get("filter", "").strip()[:3500],
        sort if sort in dict(SORTS) else "",
    )


def search_query(search: JobSearch, **more: Any) -> dict[str, Any]:
    found = {
        "status": search.status,
        "topic": search.topic,
        "q": search.q,
        "filter": search.filter,
        "sort": search.sort,
        **more,
    }
    return {name: value for name, value in found.items() if value not in ("", None)}


async def _found(page: Page, search: JobSearch, number: int) -> tuple[FoundJobs, str]:
    """One page of the list, or what is wrong with the search."""
    try:
        return await page.state.insights.find(search, PER_PAGE, (number - 1) * PER_PAGE), ""
    except (InvalidInput, InvalidRule, QueryTooSlow) as error:
        return FoundJobs((), {}), error.message


async def jobs(page: Page) -> Response:
    texts = page.request.query_params.getlist("q")
    search, number = search_of(page.request.query_params), page_number(page.query("page"), MAX_PAGE)
    if len(texts) > 1:  # the chips and the box: one text has one address
        search = replace(search, q=" ".join(text.strip() for text in texts).strip()[:500])
        return page.redirect(page.url("/jobs", **search_query(search, cols=as_query(columns_of(page)))))
    asked, left_out, unread = _understood(search)
    (found, problem), now = await asyncio.gather(_found(page, asked, number), page.state.now.get())
    problem = unread or problem
    columns = columns_of(page)
    chips, rest = ([], search.q) if problem else _chips(page, search, left_out)
    context = {
        **_list(page, search, number, found),
        "chips": chips,
        "left_out": [_offer(page, search, one) for one in left_out],
        "asked_fields": list(search_query(asked).items()),
        "filters_words": asked.words,
        "elsewhere": _elsewhere(page, asked, found),
        "all_jobs": await _all_jobs(page, asked) if found.older else 0,
        "rest": rest,
        "rows": [job_row(job, now, page.now, columns) for job in found.jobs],
        "columns": columns,
        "all_columns": [(column, column in columns) for column in COLUMNS],
        "tabs": tabs(page, search, found.counts),
        "counts": await counts_line(page, None if search.words or problem else found.counts),
        "never_used": not search.words and found.counts.get("") == 0 and not now.topics,
        "problem": problem,
        "topics": _topics(now, search, found),
        "error_types": await _error_types(page),
        "worker_count": len(now.workers),
        "database_url": page.state.queue.url.rpartition("@")[2]
        if "@" in page.state.queue.url
        else page.state.queue.url,
    }
    live_url = page.url("/live", view="jobs", page=number, **search_query(asked, cols=as_query(columns)))
    return await page.render(
        "jobs", 400 if problem else 200, section="Jobs", title="Jobs", live_url=live_url, **context
    )


def _understood(search: JobSearch) -> tuple[JobSearch, list[LeftOut], str]:
    """The search without what can't be understood, that, and what is wrong if nothing can be read."""
    try:
        kept, left_out = understood(search.q)
    except InvalidInput as error:
        return search, [], error.message
    return replace(search, q=kept), left_out, ""


def _elsewhere(page: Page, search: JobSearch, found: FoundJobs) -> list[tuple[str, str, str]]:
    """Where the matches of an empty tab are: status, text, address."""
    if found.jobs:
        return []
    base = search.narrowed
    return [
        (
            one.value,
            f"{words.capped(count)} in {one.value.capitalize()}",
            page.url("/jobs", **search_query(base, status=one)),
        )
        for one in Status
        if (count := found.counts.get(one, 0)) and one != base.status
    ]


async def _all_jobs(page: Page, search: JobSearch) -> int:
    """How many jobs a search of all of them reads."""
    return await page.state.insights.total(search.narrowed.topic or None)


@dataclass(frozen=True, slots=True)
class Offer:
    """A term that is left out, and the addresses of the list with what may have been meant."""

    key: str
    message: str
    links: Sequence[tuple[str, str]]


def _offer(page: Page, search: JobSearch, one: LeftOut) -> Offer:
    terms = [term.text for term in rules.search_terms(search.q)]

    def url(text: str) -> str:
        q = " ".join(text if term == one.text else term for term in terms)
        return page.url("/jobs", **search_query(replace(search, q=q), cols=as_query(columns_of(page))))

    return Offer(one.key, one.message, [(text, url(text)) for text in one.offers])


def _topics(now: Now, search: JobSearch, found: FoundJobs) -> list[str]:
    """The listed jobs' topics and the chosen one too: they may be newer than the state of the queue that was read."""
    known = {topic.topic for topic in now.topics} | {job.topic for job in found.jobs} | {search.topic}
    return sorted(known - {""})


async def _error_types(page: Page) -> list[str]:
    """To complete `error:` with, the most frequent of the newest failures first."""
    groups = sorted(await page.state.failures.get(), key=lambda one: -len(one.ended))
    return list(dict.fromkeys(one.type for one in groups if one.type.isidentifier()))[:MOST_TYPES]


def columns_of(page: Page) -> Sequence[Column]:
    return chosen(page.request.query_params.getlist("cols"))


def _list(page: Page, search: JobSearch, number: int, found: FoundJobs) -> dict[str, Any]:
    narrowed = search.narrowed
    total = found.counts.get(narrowed.status, 0)
    total = found.cap + 1 if total is None else total
    first = (number - 1) * PER_PAGE + 1
    more = total > number * PER_PAGE
    pages = max(-(-min(total, found.cap) // PER_PAGE), 1)
    query = search_query(search, cols=as_query(columns_of(page)))
    return {
        "search": _Shown(search, list(search_query(search).items())),
        "sorts": SORTS,
        "first": words.number(first),
        "last": words.number(first + len(found.jobs) - 1),
        "total_words": words.capped(total, found.cap),
        "searched": "" if found.searched is None else words.number(found.searched),
        "page_number": number,
        "pages_words": f"{pages:,}+" if total > found.cap else f"{pages:,}",
        "previous_url": page.url("/jobs", **query, page=number - 1 if number > 2 else "") if number > 1 else "",
        "next_url": page.url("/jobs", **query, page=number + 1) if more else "",
        "filtered": bool(search.words),
        "filters_words": search.words,
        "filter_words": search.filter if len(search.filter) <= 60 else search.filter[:59] + "…",
        "without_filter": page.url("/jobs", **{**query, "filter": ""}),
    }


@dataclass(frozen=True, slots=True)
class Chip:
    """A qualifier of the search, and the address of the list without it."""

    key: str
    value: str
    text: str
    url: str
    meant: str = ""
    """How a time was understood."""
    left_out: bool = False


def _chips(page: Page, search: JobSearch, left_out: Sequence[LeftOut]) -> tuple[list[Chip], str]:
    """The qualifiers, and the words that are left for the box."""
    wrong = {one.text for one in left_out}
    terms = rules.search_terms(search.q)
    chips = []
    for term in terms:
        if term.key or term.text in wrong:
            others = replace(search, q=" ".join(one.text for one in terms if one is not term))
            url = page.url("/jobs", **search_query(others, cols=as_query(columns_of(page))))
            key, _, value = term.text.partition(":")
            bad = term.text in wrong
            meant = "" if bad else _meant(term.key, value, page.now)
            chips.append(Chip(key, value, term.text, url, meant, bad))
    return chips, " ".join(term.text for term in terms if not term.key and term.text not in wrong)


def _meant(key: str, value: str, now: datetime) -> str:
    if key not in rules.TIMES:
        return ""
    return " ".join(bound.words for bound in rules.time_bounds(key, value.strip('"'), now))


@dataclass(frozen=True, slots=True)
class _Shown:
    """The search, and its fields for the page's forms."""

    search: JobSearch
    fields: Sequence[tuple[str, str]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.search, name)


def tabs(page: Page, search: JobSearch, counts: Mapping[str, int | None]) -> list[Tab]:
    current = search.narrowed.status
    base = replace(search.narrowed, sort=search.sort)

    def tab(name: str, status: str) -> Tab:
        url = f"{page.base}/jobs"
        query = urlencode(search_query(replace(base, status=status), cols=as_query(columns_of(page))))
        return Tab(name, f"{url}?{query}" if query else url, words.capped(counts.get(status, 0)), status == current)

    names = [("All", ""), *((status.value.capitalize(), status.value) for status in Status)]
    if current == STALE:
        names.append(("Stale", STALE))
    return [tab(name, status) for name, status in names]


async def counts_line(page: Page, counts: Mapping[str, int | None] | None = None) -> list[tuple[str, str, bool]]:
    """Job counts by status, success rate and average run time."""
    counts = await page.state.counts.get() if counts is None else counts
    stats = await page.state.stats.get()
    small = (Status.PENDING, Status.PROCESSING, Status.FAILED)
    return [
        *((status.value.capitalize(), words.capped(counts[status]), status in small) for status in Status),
        ("Success rate", words.percent(stats.success_rate), True),
        ("Average execution", words.duration(stats.avg_execution_time), True),
    ]
