"""Lists and counts: start from the table of the wanted status, newest first, and stop early."""

from __future__ import annotations

from treadle.lifecycle import ENDED, Status
from treadle.store.base import Listing
from treadle.store.queries import Query

Bound = list[str | int]


class Builder:
    """Conditions with bound values in the dialect's placeholders."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.values: Bound = []

    def bind(self, value: str | int) -> str:
        self.values.append(value)
        return f"${len(self.values)}" if self.dialect == "postgres" else f"?{len(self.values)}"

    def table(self, name: str) -> str:
        return f"treadle.{name}" if self.dialect == "postgres" else f"treadle_{name}"


def page(queries: dict[str, Query], dialect: str, listing: Listing, stale_after_ms: int) -> tuple[str, Bound]:
    """The statement for one page of jobs."""
    build = Builder(dialect)
    chosen = _chosen(build, listing, stale_after_ms, queries["clock"].sql, listing.offset + listing.limit)
    limits = f"LIMIT {build.bind(listing.limit)} OFFSET {build.bind(listing.offset)}"
    sql = f"WITH page AS (SELECT n FROM ({chosen}) c ORDER BY n DESC {limits}) {queries['view'].sql}"
    return sql, build.values


def count(
    queries: dict[str, Query], dialect: str, listing: Listing, stale_after_ms: int, cap: int
) -> tuple[str, Bound]:
    """The statement that counts, up to cap + 1."""
    build = Builder(dialect)
    chosen = _chosen(build, listing, stale_after_ms, queries["clock"].sql, cap + 1)
    return f"SELECT count(*) FROM (SELECT n FROM ({chosen}) c LIMIT {build.bind(cap + 1)}) x", build.values


def by_id(queries: dict[str, Query]) -> str:
    return f"WITH page AS ({queries['page_by_id'].sql}) {queries['view'].sql}"


def _chosen(build: Builder, listing: Listing, stale_after_ms: int, clock: str, top: int) -> str:
    """The numbers of the jobs that the listing means, at most `top` of each place, newest first."""
    places = _places(build, listing, stale_after_ms, clock)
    parts = []
    for place, conditions in places:
        wheres = [*conditions, *_job_conditions(build, listing, place)]
        source = f"{build.table(place)} p"
        if place != "jobs" and _needs_job(listing, place):
            # A cross join keeps SQLite from starting at the jobs of the topic, of which most have ended long ago.
            source += f" CROSS JOIN {build.table('jobs')} j"
            wheres.append("j.n = p.n")
        where = f" WHERE {' AND '.join(wheres)}" if wheres else ""
        limit = build.bind(top)
        parts.append(f"SELECT n FROM (SELECT p.n FROM {source}{where} ORDER BY p.n DESC LIMIT {limit}) s")
    return " UNION ALL ".join(parts)


def _places(build: Builder, listing: Listing, stale_after_ms: int, clock: str) -> list[tuple[str, list[str]]]:
    if listing.stale:
        stale = [f"p.ended_at <= ({clock}) - {build.bind(stale_after_ms)}"]
        return [("outcomes", stale)]
    match listing.status:
        case None:
            return [("jobs", [])]
        case Status.PENDING:
            return [("ready", []), ("later", []), ("held", [])]
        case Status.PROCESSING:
            return [("running", ["p.cancel_at IS NULL"])]
        case Status.CANCELLING:
            return [("running", ["p.cancel_at IS NOT NULL"])]
        case status if status in ENDED:
            # Literals, so that the planner sees the partial index; SQLite only if its very condition is there.
            conditions = [f"p.status = '{status.value}'"]
            if status is not Status.COMPLETED:
                conditions.append("p.status <> 'completed'")
            return [("outcomes", conditions)]
        case _:
            return [("running", ["1 = 0"])]


def _needs_job(listing: Listing, place: str) -> bool:
    scoped = listing.scope is not None or listing.scope_id is not None
    return scoped or (listing.topic is not None and place != "outcomes")


def _job_conditions(build: Builder, listing: Listing, place: str) -> list[str]:
    job = "p" if place == "jobs" else "j"
    conditions = []
    if listing.topic is not None:
        owner = "p" if place in ("jobs", "outcomes") else "j"
        conditions.append(f"{owner}.topic = {build.bind(listing.topic)}")
    if listing.scope is not None:
        conditions.append(f"{job}.scope = {build.bind(listing.scope)}")
    if listing.scope_id is not None:
        conditions.append(f"{job}.scope_id = {build.bind(listing.scope_id)}")
    return conditions
