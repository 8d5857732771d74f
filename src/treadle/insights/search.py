"""Job search as users see it: a topic, a status, words and qualifiers, a filter, an order, a page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from treadle.insights.lists import COUNT_CAP, MAX_LIMIT, listing, searched_part
from treadle.model.errors import InvalidInput, QueryTooSlow
from treadle.model.job import Job, rfc3339
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.rules import Condition
from treadle.store.protocol import Store
from treadle.store.views import Listing

_QUALIFIER = re.compile(r"(?:^|(?<=\s))(topic|status):([A-Za-z0-9_.:]+)(?=\s|$)")
STALE = "stale"
SEARCHED = 2_000
"""In how many of the newest jobs of each status words are looked for, so that a search takes no longer than a list."""
COMPARED = COUNT_CAP
"""How many of the newest jobs of each status are compared with times and other plain fields, which costs less."""


@dataclass(frozen=True, slots=True)
class JobSearch:
    topic: str = ""
    status: str = ""
    q: str = ""
    filter: str = ""
    sort: str = ""

    @property
    def narrowed(self) -> JobSearch:
        """Turn `topic:` and `status:` into fields, because the database has an index on these two."""
        topic, status = self.topic, self.status
        found = dict(_QUALIFIER.findall(self.q))
        rest = self.q
        if not topic and "topic" in found:
            topic, rest = found["topic"], _without("topic", rest)
        if not status and found.get("status") in (*Status, STALE):
            status, rest = found["status"], _without("status", rest)
        return replace(self, topic=topic, status=status, q=rest.strip())

    def condition(self, as_of: datetime | None = None) -> Condition:
        """The condition beyond topic and status. `as_of` limits it to jobs that have not moved since then."""
        found = rules.parse_filter(self.filter) if self.filter else rules.always
        if self.q.strip():
            found = rules.both(found, rules.parse_search(self.q, as_of))
        if as_of is not None:
            found = rules.both(found, rules.parse_filter(f'updatedAt <= "{rfc3339(as_of)}"'))
        return found

    def listing(self, limit: int, offset: int) -> Listing:
        """The jobs that match; words and qualifiers without an index are looked for in the newest jobs only."""
        if not self.q.strip():
            return self._listing(limit, offset, self.condition())
        indexed, text = rules.by_index(rules.parse_search(self.q))
        condition = rules.both(replace(self, q="").condition(), indexed)
        found = self._listing(limit, offset, condition)
        words = rules.looked_for(text) or rules.looks_inside(indexed)
        return replace(found, newest=SEARCHED if words else COMPARED, text=None if text is True else text)

    def frozen(self, status: Status, as_of: datetime) -> Listing:
        """Every matching job with this status that has not moved since then, with no age limit."""
        condition, search = self.condition(as_of), replace(self, sort="")
        if self.status == STALE:
            condition = rules.both(condition, rules.parse_filter(f'status = "{status}"'))
        else:
            search = replace(search, status=status)
        return replace(search._listing(1, 0, condition), newest=None)

    def _listing(self, limit: int, offset: int, condition: Condition) -> Listing:
        sort = rules.parse_sort(self.sort)
        return listing(self.topic or None, self.status or None, None, None, limit, offset, condition, sort)

    @property
    def words(self) -> str:
        """The same as one search text."""
        parts = [f"topic:{self.topic}" if self.topic else "", f"status:{self.status}" if self.status else ""]
        return " ".join(part for part in (*parts, self.q.strip(), self.filter) if part)


def _without(name: str, text: str) -> str:
    return _QUALIFIER.sub(lambda found: "" if found[1] == name else found[0], text)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A term of a search that can't be understood, and what may have been meant."""

    text: str
    key: str
    """An unknown qualifier; empty if its value is wrong."""
    message: str
    offers: Sequence[str]
    """Search texts that stand for it."""


def understood(q: str) -> tuple[str, list[LeftOut]]:
    """A search without the terms that can't be understood, and those. InvalidInput: it can't be read at all."""
    kept, left = [], []
    for term in rules.search_terms(q):
        unknown = rules.unknown_qualifier(term.text)
        if unknown:
            minus = "-" if term.text.startswith("-") else ""
            offers = rules.nearest_qualifiers(unknown, term.text.removeprefix("-").partition(":")[2])
            left.append(LeftOut(term.text, unknown, "", [minus + one for one in offers]))
            continue
        try:
            rules.parse_search(term.text)
        except InvalidInput as error:
            if not term.key or ':"' in term.text:  # a quote that is not closed takes the rest of the text
                raise
            left.append(LeftOut(term.text, "", error.message.removeprefix("q: "), _finished(term.key)))
        else:
            kept.append(term.text)
    return " ".join(kept) if left else q, left


def _finished(key: str) -> list[str]:
    if key in rules.TIMES:
        return [f"{key}:1h", f"{key}:>20:27"]
    return [f"{key}:>5s"] if key in rules.LENGTHS else []


@dataclass(frozen=True, slots=True)
class FoundJobs:
    jobs: Sequence[Job]
    counts: Mapping[str, int | None]
    """By status, and the total under ""; each at most one more than the cap."""
    searched: int | None = None
    """Words were looked for in this many of the newest jobs of each status; None if in all."""
    cap: int = COUNT_CAP
    older: bool = False
    """Older jobs, of this status or of others, were not searched."""


async def find_jobs(store: Store, search: JobSearch, limit: int, offset: int) -> FoundJobs:
    """One page, and the number of matches per status."""
    found = search.narrowed
    wanted = found.listing(limit, offset)
    if found.status or not _is_limited(wanted):
        jobs, counts, searched = await asyncio.gather(
            store.list(wanted), count_jobs(store, found), searched_part(store, wanted)
        )
        elsewhere = not jobs and _is_limited(wanted) and await _searched_of_any(store, replace(found, status=""))
        return FoundJobs(jobs, counts, searched, older=bool(searched or elsewhere))
    top = min(offset + limit, MAX_LIMIT)
    parts = dict(zip(Status, await asyncio.gather(*(_first(store, found, one, top) for one in Status)), strict=True))
    jobs, counts, searched = await asyncio.gather(
        _merged(store, found, parts, limit, offset), _counts(store, found, parts, top), _searched_of_any(store, found)
    )
    return FoundJobs(jobs, counts, searched, older=searched is not None)


def _is_limited(listing: Listing) -> bool:
    """Whether the search looks at the newest jobs only: of each status, so that All is never less than a tab."""
    condition = True if listing.condition is None else listing.condition
    return listing.text is not None or bool(rules.looks_inside(condition))


async def _first(store: Store, search: JobSearch, status: Status, top: int) -> Sequence[tuple[int, str]]:
    if not _possible(search, status):
        return []
    return await store.select(replace(search, status=status, sort="").listing(top, 0))


def _possible(search: JobSearch, status: str) -> bool:
    demanded = rules.demanded_status(search.condition())
    return status == STALE or not demanded or demanded == status


async def _merged(
    store: Store, search: JobSearch, parts: Mapping[Status, Sequence[tuple[int, str]]], limit: int, offset: int
) -> Sequence[Job]:
    """The newest of all statuses, or the first in another order."""
    if search.sort and search.sort != "-createdAt":
        lists = [
            store.list(replace(search, status=one).listing(offset + limit, 0)) for one, ids in parts.items() if ids
        ]
        jobs = [job for found in await asyncio.gather(*lists) for job in found]
        return sorted(jobs, key=_ORDERS[search.sort])[offset : offset + limit]
    ids = [id for _, id in sorted((one for ids in parts.values() for one in ids), reverse=True)]
    return [job for job in await store.get(ids[offset : offset + limit]) if job is not None] if ids else []


_ORDERS: Mapping[str, Callable[[Job], Any]] = {
    "createdAt": lambda job: job.created_at,
    "runAt": lambda job: (job.run_at, job.created_at),
    "-priority": lambda job: (-job.priority, -job.created_at.timestamp()),
}


async def _counts(
    store: Store, search: JobSearch, parts: Mapping[Status, Sequence[tuple[int, str]]], top: int
) -> dict[str, int | None]:
    """What was found is not counted again if it was all."""
    more = [one.value for one, ids in parts.items() if len(ids) >= top]
    counted = await count_jobs(store, search, more) if more else {}
    counts: dict[str, int | None] = {one.value: len(ids) for one, ids in parts.items()}
    return {**counts, **counted, "": _total({**counts, **counted})}


def _total(counts: Mapping[str, int | None]) -> int | None:
    known = [counts[one] for one in Status if one in counts]
    if None in known:
        return None
    return min(sum(count for count in known if count is not None), COUNT_CAP + 1)


async def _searched_of_any(store: Store, search: JobSearch) -> int | None:
    """How many of each status were searched, if there are more of any."""
    searched = await searched_part(store, search.listing(1, 0))
    if searched is None:
        return None
    for status in sorted(Status, key=lambda one: one not in (Status.COMPLETED, Status.FAILED, Status.PENDING)):
        if _possible(search, status) and await searched_part(store, replace(search, status=status).listing(1, 0)):
            return searched
    return None


async def find_ids(store: Store, search: JobSearch, limit: int) -> Sequence[str]:
    """The first ids of a page of the newest."""
    found = search.narrowed
    wanted = found.listing(limit, 0)
    if found.status or not _is_limited(wanted):
        return [id for _, id in await store.select(wanted)]
    parts = await asyncio.gather(*(_first(store, found, one, limit) for one in Status))
    return [id for _, id in sorted((one for ids in parts for one in ids), reverse=True)[:limit]]


async def count_jobs(store: Store, search: JobSearch, statuses: Sequence[str] = tuple(Status)) -> dict[str, int | None]:
    """Each count stops at the cap, so a million jobs cost no more than ten thousand. None if it took too long.

    With every status, the sum is under "".
    """

    async def count(status: str) -> int | None:
        if not _possible(search, status):
            return 0
        try:
            return await store.count(replace(search, status=status, sort="").listing(1, 0), COUNT_CAP)
        except QueryTooSlow:
            return None

    wanted = [*statuses, STALE] if search.status == STALE and STALE not in statuses else statuses
    counts = {str(one): found for one, found in zip(wanted, await asyncio.gather(*map(count, wanted)), strict=True)}
    return {**counts, "": _total(counts)} if set(Status) <= set(wanted) else counts
