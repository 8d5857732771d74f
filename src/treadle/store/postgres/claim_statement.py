"""The claim in one statement: its text for any number of lanes, its parameters and its answer.

PostgreSQL merges sorted index scans row by row (Merge Append) and stops at the limit, but only scans that are written
in the statement. So the statement is written for as many lanes as the worker serves, at most `MERGED`. If more lanes
have ready jobs, it takes those with the oldest heads and nothing behind the head of the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import repeat
from typing import Any

from pydantic_core import from_json

from treadle.store.lanes import MERGED
from treadle.store.sql.queries import load
from treadle.store.values import Claimed, Wants

_NO_OWNER = (None, None, None, None)

# `lane`: the lanes with ready jobs, by their heads; empty ones end here. `share`: how many rows to take from each,
# found without a lock. That many are then locked, even if they are different rows by then.
_SEVERAL = """), lane AS MATERIALIZED (
    SELECT l.lane, p.rate_limit IS NOT NULL AS rated, coalesce(m.rank, -2147483648) AS mark_rank,
        coalesce(m.run_at, -1) AS mark_at, coalesce(m.n, -1) AS mark_n,
        row_number() OVER (ORDER BY head.rank, head.run_at, head.n) AS nth, head.rank, head.run_at, head.n
    FROM me, unnest($2::text[]) AS w(topic) CROSS JOIN unnest($3::text[]) AS c(capability)
    CROSS JOIN unnest($4::text[]) AS y(worker_type)
    CROSS JOIN LATERAL (SELECT x.lane FROM treadle.lanes x
        WHERE x.topic = w.topic AND x.capability = c.capability AND x.worker_type = y.worker_type OFFSET 0) l
    LEFT JOIN treadle.topics p ON p.topic = w.topic
    LEFT JOIN LATERAL (SELECT u.rank, u.run_at, u.n
        FROM unnest($8::int[], $9::int[], $10::bigint[], $11::bigint[]) AS u(lane, rank, run_at, n)
        WHERE u.lane = l.lane) m ON true
    CROSS JOIN LATERAL (SELECT r.rank, r.run_at, r.n FROM treadle.ready r WHERE r.lane = l.lane
        AND (r.rank, r.run_at, r.n) > (coalesce(m.rank, -2147483648), coalesce(m.run_at, -1), coalesce(m.n, -1))
        ORDER BY r.rank, r.run_at, r.n LIMIT 1) head
    WHERE p.paused_until IS NULL OR p.paused_until <= me.now
), heads AS MATERIALIZED (
    SELECT array_agg(l.lane ORDER BY l.nth) AS lanes, array_agg(l.mark_rank ORDER BY l.nth) AS ranks,
        array_agg(l.mark_at ORDER BY l.nth) AS times, array_agg(l.mark_n ORDER BY l.nth) AS numbers FROM lane l
), share AS MATERIALIZED (
    SELECT l.lane, $5::bigint AS most FROM lane l WHERE (SELECT cardinality(h.lanes) FROM heads h) = 1
    UNION ALL
    SELECT m.lane, count(*) FROM (SELECT x.* FROM ({branches}) x ORDER BY x.rank, x.run_at, x.n LIMIT $5) m
    WHERE (SELECT cardinality(h.lanes) FROM heads h) > 1 {cut} GROUP BY m.lane
), picked AS MATERIALIZED (
    SELECT q.*, row_number() OVER (ORDER BY q.rank, q.run_at, q.n) AS place FROM (
        SELECT x.*, l.rated FROM me, share s JOIN lane l ON l.lane = s.lane CROSS JOIN LATERAL (
            SELECT r.ctid AS tid, r.lane, r.rank, r.run_at, r.n, r.attempt, r.max_attempts, r.flags FROM treadle.ready r
            WHERE r.lane = l.lane AND (r.rank, r.run_at, r.n) > (l.mark_rank, l.mark_at, l.mark_n)
            ORDER BY r.rank, r.run_at, r.n LIMIT s.most FOR UPDATE SKIP LOCKED) x) q
"""
_BRANCH = """
        (SELECT r.lane, r.rank, r.run_at, r.n FROM treadle.ready r WHERE r.lane = (SELECT lanes[{i}] FROM heads)
            AND (r.rank, r.run_at, r.n) > ((SELECT ranks[{i}] FROM heads), (SELECT times[{i}] FROM heads),
                (SELECT numbers[{i}] FROM heads)) ORDER BY r.rank, r.run_at, r.n LIMIT $5)"""
_CUT = """AND NOT EXISTS (
        SELECT 1 FROM lane l WHERE l.nth = {next} AND (m.rank, m.run_at, m.n) >= (l.rank, l.run_at, l.n))"""


@cache
def claim_statement(lanes: int) -> str:
    """The SQL for a worker that serves at most this many lanes."""
    sql = load("postgres")["claim"].sql
    if lanes <= 1:
        return sql
    branches = " UNION ALL".join(_BRANCH.replace("{i}", str(i + 1)) for i in range(min(lanes, MERGED)))
    cut = _CUT.replace("{next}", str(MERGED + 1)) if lanes > MERGED else ""
    several = _SEVERAL.replace("{branches}", branches).replace("{cut}", cut)
    return sql[: sql.index("), lane AS")] + several + sql[sql.index("), chosen AS") :]


def claim_values(wants: Wants) -> tuple[Any, ...]:
    """The parameters between the lease and the marks."""
    return (
        list(dict.fromkeys(wants.topics)),
        list({"", *wants.capabilities}),
        list({"", *wants.worker_types}),
        wants.limit,
        wants.free,
        wants.max_bytes,
    )


def claimed_jobs(columns: Sequence[Any], token: int, lease: int) -> list[Claimed]:
    """The jobs in the arrays that the statement answers with."""
    ns, ids, topics, payloads, attempts, most, flags, due, owned = columns
    none = repeat(None)
    owners: Sequence[Iterable[Any]] = (none, none, none, none)
    if owned is not None:
        known = from_json(owned)
        owners = list(zip(*[known.get(str(n), _NO_OWNER) for n in ns], strict=True))
    *who, traces = owners
    lent = (*who, repeat(token), repeat(lease), due, traces)
    rows = zip(ns, ids, topics, payloads, attempts, most, flags, *lent, none, none, strict=False)  # some are endless
    new = tuple.__new__
    return [new(Claimed, row) for row in rows]
