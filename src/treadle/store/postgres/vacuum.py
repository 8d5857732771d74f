"""Vacuums the tables through which jobs move, sooner than autovacuum would.

Rows live for milliseconds there. What is dead lies at the heads of the lanes, where each claim has to step over it.
While an old snapshot is open nothing can be removed. When it has gone, claims should be fast again within seconds, but
autovacuum looks only once a minute. A vacuum that removes nothing is repeated, so it may use only a small share of the
time.
"""

from __future__ import annotations

import time

from treadle.store.postgres.pools import Pools

# Stepping over so many costs a claim about a millisecond.
MANY_DEAD = 5_000
# A vacuum waits so many times as long as the last one took.
REST_SHARE = 20
FIND_DEAD = (
    "SELECT relname FROM pg_stat_user_tables WHERE schemaname = 'treadle' "
    "AND relname IN ('ready', 'later', 'held', 'running') AND n_dead_tup >= $1"
)


class Vacuum:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._rest_until = 0.0

    async def run(self) -> None:
        """Vacuum what needs it, unless the last time was a moment ago."""
        began = time.monotonic()
        if began < self._rest_until:
            return
        async with self._pools.acquire() as connection:
            for (table,) in await connection.fetch(FIND_DEAD, MANY_DEAD):
                # No waiting for autovacuum or for a migration; no truncating, which would lock out everyone. With the
                # indexes in any case: PostgreSQL leaves them alone where few pages have dead rows.
                await connection.execute(f"VACUUM (SKIP_LOCKED, TRUNCATE FALSE, INDEX_CLEANUP ON) treadle.{table}")
        self._rest_until = time.monotonic() + REST_SHARE * (time.monotonic() - began)
