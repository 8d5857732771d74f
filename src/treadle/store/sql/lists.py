"""Lists and counts: start from the table of the requested status, newest first, and stop early.

A condition over job fields joins only the tables that it reads. Its demands on status, topic and scope are extracted
first, because there are tables and indexes to start from for these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from treadle.model.errors import InvalidInput, QueryTooSlow
from treadle.model.status import ENDED, Status
from treadle.policy.retention import Rules
from treadle.policy.rules import All, Comparison, Condition, Constant, JobField, JobPath, SortKey, by_cost
from treadle.policy.rules.conditions import every
from treadle.store.sql.dialect import DIALECTS, Lookup
from treadle.store.sql.queries import Query, step_columns, told_events
from treadle.store.sql.stale import is_uniform, may_be_stale, stale_at
from treadle.store.sql.where import COLUMNS, DERIVED_COLUMNS, Conditions
from treadle.store.views import Listing

BoundValues = list[str | int | float]

# The view's name for each table, and how it is joined to the job.
PLACES = {"jobs": "j", "outcomes": "o", "running": "r", "ready": "q", "later": "a", "held": "h", "parked": "k"}
JOINS = {
    "o": "LEFT JOIN {outcomes} {o} ON {o}.n = {p}.n",
    "r": "LEFT JOIN {running} {r} ON {r}.n = {p}.n",
    "q": "LEFT JOIN {ready} {q} ON {q}.n = {p}.n",
    "a": "LEFT JOIN {later} {a} ON {a}.n = {p}.n",
    "h": "LEFT JOIN {held} {h} ON {h}.n = {p}.n",
    "k": "LEFT JOIN {parked} {k} ON {k}.n = {p}.n",
    "s": "LEFT JOIN {leases} {s} ON {s}.id = {r}.lease",
    "x": "LEFT JOIN {notes} {x} ON {x}.n = {p}.n",
}
# The places that keep the time of their jobs.
TIMED = ("ready", "later", "held")
# The places that keep the lane of their jobs, which is the topic, the capability and the type of worker.
LANED = (*TIMED, "parked")
# SQLite rejects statements of more than a million bytes.
MAX_STATEMENT = 900_000
# PostgreSQL and SQLite count the values of a statement in 15 bits.
MAX_VALUES = 32_000
# How long a list, a count or a snapshot may take.
SEARCH_SECONDS = 2.0
NEWEST_FIRST = "ORDER BY j.n DESC"
_ALIAS = re.compile(r"\{(\w)\}")


class Builder:
    """Conditions with bound values in the dialect's placeholders."""

    def __init__(self, queries: dict[str, Query], dialect: str, retention: Rules) -> None:
        self.dialect = dialect
        self.retention = retention
        self.clock = f"({queries['clock'].sql})"
        self.values: BoundValues = []

    def bind(self, value: str | float) -> str:
        self.values.append(value)
        return f"${len(self.values)}" if self.dialect == "postgres" else f"?{len(self.values)}"

    def table(self, name: str) -> str:
        return f"treadle.{name}" if self.dialect == "postgres" else f"treadle_{name}"


def page(queries: dict[str, Query], dialect: str, listing: Listing, retention: Rules) -> tuple[str, BoundValues]:
    """The statement for one page of jobs."""
    build = Builder(queries, dialect, retention)
    keys, order = _order(listing)
    chosen = _chosen(build, narrowed(listing), listing.offset + listing.limit, keys, order)
    limits = f"LIMIT {build.bind(listing.limit)} OFFSET {build.bind(listing.offset)}"
    view, sized = queries["view_in_lists"].sql, queries["sized_page"].sql
    if not listing.sort:
        newest = f"SELECT n, -n AS place FROM ({chosen}) c ORDER BY n DESC {limits}"
        return f"WITH chosen AS ({newest}), page AS ({sized}) {view}", build.values
    ranked = f"SELECT n, row_number() OVER (ORDER BY {order}) AS place FROM ({chosen}) c ORDER BY {order} {limits}"
    view = f"{view.removesuffix(NEWEST_FIRST)} ORDER BY page.place"
    return f"WITH chosen AS ({ranked}), page AS ({sized}) {view}", build.values


def select(queries: dict[str, Query], dialect: str, listing: Listing, retention: Rules) -> tuple[str, BoundValues]:
    """The statement for numbers and ids of one page, newest first."""
    build = Builder(queries, dialect, retention)
    chosen = _chosen(build, narrowed(listing), listing.offset + listing.limit, [], "n DESC")
    limits = f"LIMIT {build.bind(listing.limit)} OFFSET {build.bind(listing.offset)}"
    page = f"SELECT n FROM ({chosen}) c ORDER BY n DESC {limits}"
    jobs = build.table("jobs")
    return f"SELECT x.n, CAST(j.id AS text) FROM ({page}) x JOIN {jobs} j ON j.n = x.n ORDER BY x.n DESC", build.values


def count(
    queries: dict[str, Query], dialect: str, listing: Listing, retention: Rules, cap: int
) -> tuple[str, BoundValues]:
    """The statement that counts, up to cap + 1."""
    build = Builder(queries, dialect, retention)
    chosen = _chosen(build, narrowed(listing), cap + 1, [], "n DESC", counted=True)
    return f"SELECT count(*) FROM (SELECT n FROM ({chosen}) c LIMIT {build.bind(cap + 1)}) x", build.values


def count_by_topic(
    queries: dict[str, Query], dialect: str, listing: Listing, retention: Rules, cap: int
) -> tuple[str, BoundValues]:
    """The statement that counts the topics of the first `cap`."""
    build = Builder(queries, dialect, retention)
    chosen = _chosen(build, narrowed(listing), cap, [], "n DESC")
    first = f"SELECT n FROM ({chosen}) c LIMIT {build.bind(cap)}"
    return (
        f"SELECT j.topic, count(*) FROM ({first}) x JOIN {build.table('jobs')} j ON j.n = x.n GROUP BY 1",
        build.values,
    )


def too_slow(seconds: float) -> QueryTooSlow:
    return QueryTooSlow(
        f"the search took more than {seconds:g} s and was stopped; "
        "narrow it by topic, status, scopeId, createdBy or createdAt, or compare fewer payload fields"
    )


def by_id(queries: dict[str, Query]) -> str:
    return queries["jobs_by_id"].sql


# -- what the condition says that a listing can say itself -----------------------------------------


def narrowed(listing: Listing) -> Listing:
    """The same jobs, with what the condition demands of status, topic and scope as the listing's own."""
    if not isinstance(listing.condition, Comparison | All):
        return replace(listing, condition=None) if listing.condition is True else listing
    parts = listing.condition.parts if isinstance(listing.condition, All) else (listing.condition,)
    left: list[Condition] = []
    for part in parts:
        option = _option(part)
        if option and getattr(listing, option[0]) is None and not (option[0] == "status" and listing.stale):
            listing = replace(listing, **{option[0]: option[1]})  # type: ignore[arg-type]
        else:
            left.append(part)
    rest = every(left)
    return replace(listing, condition=None if rest is True else rest)


def _option(part: Condition) -> tuple[str, str | Status] | None:
    match part:
        case Comparison(JobField("status", False), "=", Constant(str() as value)) if value in list(Status):
            return "status", Status(value)
        case Comparison(JobField("topic" | "scope" as name, False), "=", Constant(str() as value)) if value:
            return name, value
        case Comparison(JobField("scopeId", False), "=", Constant(str() as value)) if value:
            return "scope_id", value
        case Comparison(JobField("parentId", False), "=", Constant(str() as value)) if value:
            return "parent_id", value
    return None


# -- choosing --------------------------------------------------------------------------------------


def _order(listing: Listing) -> tuple[list[str], str]:
    """The fields to sort by, and the order of the jobs by their values (k0, k1 …) and numbers.

    Jobs are numbered as they are created, so `createdAt` stands for the number and for any later key.
    """
    keys = list(listing.sort)
    names = [key.field for key in keys]
    if "createdAt" in names:
        keys = keys[: names.index("createdAt") + 1]
        names = names[: len(keys) - 1]
    words = [f"k{i} {_direction(key)}" for i, key in enumerate(keys[: len(names)])]
    # Among equals the oldest or the newest first, as the last key goes.
    words.append(f"n {_direction(keys[-1]) if keys else 'DESC'}")
    return names, ", ".join(words)


def _direction(key: SortKey) -> str:
    return "DESC" if key.descending else "ASC"


def _chosen(build: Builder, listing: Listing, top: int, keys: list[str], order: str, *, counted: bool = False) -> str:
    """The numbers of the listed jobs, at most `top` of each place, in order. `counted`: in any order."""
    names = ", ".join(["n", *_key_names(keys)])
    parts = [
        f"SELECT {names} FROM ({_select(build, listing, place, wheres, keys, order, counted)} "
        f"LIMIT {build.bind(top)}) t"
        for place, wheres in _places(build, listing)
    ]
    chosen = " UNION ALL ".join(parts)
    if len(chosen) > MAX_STATEMENT or len(build.values) > MAX_VALUES:
        raise InvalidInput("the filter and the access rule together are too large; shorten the filter")
    return chosen


def _key_names(keys: list[str]) -> list[str]:
    return [f"k{i}" for i in range(len(keys))]


def _select(
    build: Builder, listing: Listing, place: str, wheres: list[str], keys: list[str], order: str, counted: bool
) -> str:
    """The jobs of one place, in order, without a limit."""
    source = _Source(build, place)
    plain, inside = by_cost(True if listing.condition is None else listing.condition)
    inside = inside if listing.text is None else every([inside, listing.text])
    # PostgreSQL has statistics and may start at the jobs of a rare topic; SQLite would look all pending jobs up.
    source.by_lane = counted and inside is True and place in LANED and build.dialect == "sqlite"
    wheres = [*wheres, *_job_conditions(build, listing, source)]
    if plain is not True:
        wheres.append(f"({source.sql(plain)})")
    if inside is not True and listing.newest is not None and listing.ended_since is None and not source.joins:
        wheres = source.limit(wheres, listing.newest)
    columns = ["p.n", *(f"{source.sort_key(name)} AS k{i}" for i, name in enumerate(keys))]
    own_order = order.replace("n ", "p.n ", 1)
    if listing.ended_since is not None and place == "outcomes" and build.dialect == "sqlite":
        # By number it would scan everything that ever ended for those few; PostgreSQL knows better.
        source.index = "INDEXED BY treadle_outcomes_ended"
        own_order = own_order if keys else "p.ended_at DESC"
    if inside is True:
        in_order = "" if source.by_lane else f" ORDER BY {own_order}"
        return f"SELECT {', '.join(columns)} FROM {source.joined(wheres)}{in_order}"
    # Conditions on documents come last, over the newest jobs that the others let through. The limit between the two
    # selects also makes each path be looked up only once. Rows come out of the inner one in its order.
    outer = _OuterSelect(source)
    fits = outer.sql(inside)
    bound = source.dialect.everything() if listing.newest is None else f"LIMIT {build.bind(listing.newest)}"
    inner_order = "p.n DESC" if keys or listing.newest is not None else own_order
    inner = (
        f"SELECT {', '.join(columns + outer.columns)} FROM {source.joined(wheres, outer.joins)} ORDER BY {inner_order}"
    )
    own = f" ORDER BY {order}" if keys or inner_order != own_order else ""
    return f"SELECT {', '.join(['n', *_key_names(keys)])} FROM ({inner} {bound}) s WHERE {fits}{own}"


class _Source:
    """A place, joined with the tables that its conditions read."""

    def __init__(self, build: Builder, place: str) -> None:
        self.build = build
        self.place = place
        self.index = ""
        self.first = ""
        self.by_lane = False
        own = PLACES[place]
        self.aliases = {alias: alias for alias in "jloqrahksx"} | {own: "p", "p": "p"}
        self.used: set[str] = set()
        self.dialect = dialect = DIALECTS[build.dialect](build.bind)
        self.words = {
            "clock": build.clock,
            "events": build.table("events"),
            "workers": build.table("workers"),
            "told_events": told_events(build.dialect),
            "greatest": dialect.greatest,
            "empty_list": dialect.empty_list,
            **step_columns(build.dialect, "p.n"),
        }
        self.conditions = Conditions(dialect, self.column)

    def column(self, name: str) -> str:
        text = COLUMNS.get(name) or DERIVED_COLUMNS[name]
        self.used |= set(_ALIAS.findall(text))
        # Each use binds values of its own.
        stale = {"stale_at": self.stale_at()} if "{stale_at}" in text else {}
        return text.format(**self.aliases, **self.words, **stale)

    def stale_at(self) -> str:
        return stale_at(self.build.retention, self.aliases["o"], self.build.clock, self.dialect.bound_text)

    def job_column(self, name: str) -> str:
        self.used.add("j")
        return f"{self.aliases['j']}.{name}"

    def of_topic(self, topic: str) -> str:
        """By the place's own lane if the order does not matter: `ready` is sorted by it, and no job is looked up."""
        if self.by_lane:
            lanes = f"SELECT l.lane FROM {self.build.table('lanes')} l WHERE l.topic = {self.build.bind(topic)}"
            return f"p.lane IN ({lanes})"
        column = "p.topic" if self.place == "outcomes" else self.job_column("topic")
        return f"{column} = {self.build.bind(topic)}"

    def sql(self, condition: Condition) -> str:
        return self.conditions.sql(condition)

    def sort_key(self, name: str) -> str:
        # A place has the job's time: without a join and bare, so that an index can give the order.
        return "p.run_at" if name == "runAt" and self.place in TIMED else self.conditions.sort_key(name)

    @property
    def joins(self) -> bool:
        """Whether another table is needed so far."""
        return any(self.aliases[alias] != "p" for alias in self.used)

    def limit(self, wheres: list[str], newest: int) -> list[str]:
        """Take the newest of the place before anything is joined; returns the conditions that are left, none."""
        where = f"WHERE {' AND '.join(wheres)} " if wheres else ""
        bound = self.build.bind(newest)
        self.first = f"(SELECT * FROM {self.build.table(self.place)} p {where}ORDER BY p.n DESC LIMIT {bound}) p"
        return []

    def joined(self, wheres: list[str], lookups: list[str] | None = None) -> str:
        """The FROM and the WHERE."""
        tables = [self.first or f"{self.build.table(self.place)} p {self.index}"]
        wheres = [*wheres, *self._inner_joins(tables)]
        tables += self._outer_joins() + (lookups or [])
        return " ".join(tables) + (f" WHERE {' AND '.join(wheres)}" if wheres else "")

    def _inner_joins(self, tables: list[str]) -> Iterator[str]:
        # A cross join keeps SQLite from starting at the jobs of the topic, most of which ended long ago.
        if self.place != "jobs" and self.used & {"j", "l"}:
            tables.append(f"CROSS JOIN {self.build.table('jobs')} j")
            yield "j.n = p.n"
        if "l" in self.used:
            tables.append(f"CROSS JOIN {self.build.table('lanes')} l")
            yield f"l.lane = {self.aliases['j']}.lane"

    def _outer_joins(self) -> list[str]:
        needed = self.used | ({"r"} if "s" in self.used else set())
        names = {place: self.build.table(place) for place in (*PLACES, "leases", "notes")}
        return [
            join.format(**self.aliases, **names)
            for alias, join in JOINS.items()
            if alias in needed and self.aliases[alias] != "p"
        ]


class _OuterSelect:
    """The select around a source: it takes the job's fields and documents from the inner one."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._fields: dict[str, str] = {}
        self._lookups: dict[JobPath, Lookup] = {}
        self._conditions = Conditions(source.dialect, self._column, self._lookup)

    def sql(self, condition: Condition) -> str:
        return self._conditions.sql(condition)

    def _column(self, name: str) -> str:
        if name not in self._fields:
            self._fields[name] = f"{self._source.column(name)} AS f{len(self._fields)}"
        return "s." + self._fields[name].rpartition(" AS ")[2]

    def _lookup(self, path: JobPath) -> Lookup:
        if path not in self._lookups:
            column = self._source.column(path.document)
            self._lookups[path] = self._source.dialect.lookup(column, path.path, len(self._lookups))
        return self._lookups[path]

    @property
    def columns(self) -> list[str]:
        return [*self._fields.values(), *(one.select for one in self._lookups.values())]

    @property
    def joins(self) -> list[str]:
        return [one.join for one in self._lookups.values() if one.join]


def _places(build: Builder, listing: Listing) -> list[tuple[str, list[str]]]:
    if listing.stale:
        return [("outcomes", [may_be_stale(build.retention, "p", build.clock, build.bind)])]
    match listing.status:
        case None:
            return [("jobs", [])]
        case Status.PENDING:
            return [("ready", []), ("later", []), ("held", [])]
        case Status.PROCESSING:
            return [("running", ["p.cancel_at IS NULL"])]
        case Status.CANCELLING:
            return [("running", ["p.cancel_at IS NOT NULL"])]
        case Status.WAITING:
            return [("parked", [])]
        case status if status in ENDED:
            # Literals, so that the planner sees the partial index; SQLite needs its exact condition.
            conditions = [f"p.status = '{status.value}'"]
            if status is not Status.COMPLETED:
                conditions.append("p.status <> 'completed'")
            if listing.ended_since is not None:
                conditions.append(f"p.ended_at >= {build.bind(listing.ended_since)}")
            return [("outcomes", conditions)]
        case unknown:
            raise AssertionError(f"{unknown} has no place")


def _job_conditions(build: Builder, listing: Listing, source: _Source) -> list[str]:
    conditions = []
    if listing.stale and not is_uniform(build.retention):
        conditions.append(f"{source.stale_at()} IS NOT NULL")
    if listing.below is not None:
        conditions.append(f"p.n < {build.bind(listing.below)}")
    if listing.topic is not None:
        conditions.append(source.of_topic(listing.topic))
    if listing.scope is not None:
        conditions.append(f"{source.job_column('scope')} = {build.bind(listing.scope)}")
    if listing.scope_id is not None:
        conditions.append(f"{source.job_column('scope_id')} = {build.bind(listing.scope_id)}")
    if listing.parent_id is not None:
        conditions.append(f"{source.job_column('parent_id')} = {build.bind(listing.parent_id)}")
    return conditions
