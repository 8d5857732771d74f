"""Job search as users see it: a topic, a status, words and qualifiers, a filter, an order, a page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from treadle.insights.lists import COUNT_CAP, listing, searched_part
from treadle.model.errors import QueryTooSlow
from treadle.model.job import Job, rfc3339
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.rules import Condition
from treadle.store.protocol import Store
from treadle.store.views import Listing

_QUALIFIER = re.compile(r"(?:^|(?<=\s))(topic|status):([a-z0-9_.]+)(?=\s|$)")
STALE = "stale"
SEARCHED = 2_000
"""In how many of the newest jobs of each status words are looked for, so that a search takes no longer than a list."""


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
            found = rules.both(found, rules.parse_search(self.q))
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
        return replace(found, newest=SEARCHED, text=None if text is True else text)

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
class FoundJobs:
    jobs: Sequence[Job]
    counts: Mapping[str, int | None]
    """By status, and the total under ""; each at most one more than the cap."""
    searched: int | None = None
    """Words were looked for in this many of the newest jobs; None if in all."""
    cap: int = COUNT_CAP


async def find_jobs(store: Store, search: JobSearch, limit: int, offset: int) -> FoundJobs:
    """One page, and the number of matches per status."""
    found = search.narrowed
    wanted = found.listing(limit, offset)
    jobs, counts, searched = await asyncio.gather(
        store.list(wanted), count_jobs(store, found), searched_part(store, wanted)
    )
    return FoundJobs(jobs, counts, searched)


async def count_jobs(store: Store, search: JobSearch, statuses: Sequence[str] = ("", *Status)) -> dict[str, int | None]:
    """Each count stops at the cap, so a million jobs cost no more than ten thousand. None if it took too long."""

    async def count(status: str) -> int | None:
        try:
            return await store.count(replace(search, status=status, sort="").listing(1, 0), COUNT_CAP)
        except QueryTooSlow:
            return None

    wanted = [*statuses, STALE] if search.status == STALE and STALE not in statuses else statuses
    return dict(zip(wanted, await asyncio.gather(*map(count, wanted)), strict=True))
