"""The claim for a worker that serves several lanes.

PostgreSQL merges sorted index scans row by row (Merge Append) and stops at the limit, but only scans that are written
in the statement. So the statement is written for as many lanes as the worker serves, at most `MERGED`. If more lanes
have ready jobs, it takes those with the oldest heads and nothing behind the head of the next one.
"""

from __future__ import annotations

from functools import cache

from treadle.store.sql.queries import load

# The same number is in the statement.
MERGED = 16

_ONE = """SELECT l.lane, $5::bigint AS most FROM lane l
"""
_SEVERAL = """SELECT l.lane, $5::bigint AS most FROM lane l WHERE (SELECT cardinality(h.lanes) FROM heads h) = 1
    UNION ALL
    SELECT m.lane, count(*) FROM (SELECT x.* FROM ({branches}) x ORDER BY x.rank, x.run_at, x.n LIMIT $5) m
    WHERE (SELECT cardinality(h.lanes) FROM heads h) > 1 {cut} GROUP BY m.lane
"""
_HEADS = """heads AS MATERIALIZED (
    SELECT array_agg(l.lane ORDER BY l.nth) AS lanes, array_agg(l.mark_rank ORDER BY l.nth) AS ranks,
        array_agg(l.mark_at ORDER BY l.nth) AS times, array_agg(l.mark_n ORDER BY l.nth) AS numbers FROM lane l
), """
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
    return sql.replace("share AS MATERIALIZED", _HEADS + "share AS MATERIALIZED").replace(_ONE, several)
