"""Job listings: every option that a caller may give, validated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from treadle.model.errors import InvalidInput
from treadle.model.job import Job, checked_topic, short_text
from treadle.model.other_names import STALE, STATUS_WORDS, StatusWord, unknown_status
from treadle.model.status import Status
from treadle.policy.rules import (
    Condition,
    Constant,
    InvalidRule,
    JobField,
    SortKey,
    always,
    both,
    by_cost,
    parse_filter,
)
from treadle.policy.rules.conditions import compare
from treadle.store.protocol import Store
from treadle.store.views import Listing

MAX_LIMIT = 1000
MAX_OFFSET = 2**31
COUNT_CAP = 10_000
"""Counts are exact up to this."""


class Count(int):
    """A number of jobs, exact up to 10,000. More are counted as 10,001, and `capped` is true."""

    @property
    def capped(self) -> bool:
        return self > COUNT_CAP


NEWEST = 100_000
"""How many jobs are searched by a condition over payloads, results or steps."""


def listing(
    topic: str | None,
    status: Status | str | None,
    scope: str | None,
    scope_id: str | None,
    limit: int,
    offset: int,
    condition: Condition = always,
    sort: Sequence[SortKey] = (),
    parent_id: str | None = None,
) -> Listing:
    """A validated listing; limits out of range are clamped."""
    stale = status == STALE
    wanted = None if stale or status is None else _status(str(status))
    if wanted and wanted.field:
        narrower = compare(JobField(wanted.field), wanted.sign, Constant(wanted.value))
        condition = both(narrower, condition)
    return Listing(
        None if topic is None else checked_topic(topic),
        wanted and wanted.status,
        stale,
        short_text(scope, "scope"),
        short_text(scope_id, "scope_id"),
        short_text(parent_id, "parent_id"),
        min(max(limit, 1), MAX_LIMIT),
        min(max(offset, 0), MAX_OFFSET),
        condition,
        tuple(sort),
        newest=NEWEST,
    )


def filtered(text: str | None) -> Condition:
    """The condition of a filter that a caller wrote."""
    try:
        return parse_filter(text) if text else always
    except InvalidRule as error:
        raise InvalidInput(f"filter: {error.message}", field="filter") from None


def _status(word: str) -> StatusWord:
    if word not in STATUS_WORDS:
        raise InvalidInput(f"status: {unknown_status(word)}", field="status")
    return STATUS_WORDS[word]


class ListedJobs(NamedTuple):
    """Some jobs of a listing, and the total number."""

    jobs: Sequence[Job]
    total: int | None
    """At most COUNT_CAP + 1; None if not counted."""
    searched: int | None
    """Only this many of the newest jobs were searched; None if all were."""


async def page(store: Store, listing: Listing, *, counted: bool = True) -> ListedJobs:
    jobs, total, searched = await asyncio.gather(
        store.list(listing), store.count(listing, COUNT_CAP) if counted else _nothing(), searched_part(store, listing)
    )
    return ListedJobs(jobs, total, searched)


async def _nothing() -> None:
    return None


async def searched_part(store: Store, listing: Listing) -> int | None:
    """In how many of the newest jobs documents and words were looked for, if there are more."""
    plain, inside = by_cost(True if listing.condition is None else listing.condition)
    if listing.newest is None or (inside is True and listing.text is None):
        return None
    there = await store.count(replace(listing, condition=plain, newest=None, text=None), listing.newest)
    return listing.newest if there > listing.newest else None
