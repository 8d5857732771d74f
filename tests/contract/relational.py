"""A database of one of the two SQL stores, seen from outside: how time passes in it and what can be wrong in it."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from treadle.store.connect import make_store
from treadle.store.protocol import Store
from treadle.store.sql.queries import TABLES, load
from treadle.store.sql.rows import NOBODY
from treadle.testing.workbench import DAY, Database

# What can't be true of a healthy database: (what is wrong, a query that shows it).
PROBLEMS = [
    (
        "a row in a place without a job",
        " UNION ALL ".join(
            f"SELECT '{place}', p.n FROM {{{place}}} p "
            f"WHERE p.n <> {NOBODY} AND NOT EXISTS (SELECT 1 FROM {{jobs}} j WHERE j.n = p.n)"
            for place in (
                "ready later held parked running outcomes keys members deadlines notes events steps step_results "
                "output channels answers deliveries outbox"
            ).split()
        ),
    ),
    (
        "a place that disagrees with its job",
        "SELECT r.n FROM {ready} r JOIN {jobs} j ON j.n = r.n "
        "WHERE (r.lane, r.rank, r.run_at, r.max_attempts, r.flags) "
        "<> (j.lane, ~j.priority, j.run_at, j.max_attempts, j.flags)"
        " UNION ALL SELECT l.n FROM {later} l JOIN {jobs} j ON j.n = l.n WHERE (l.lane, l.run_at) <> (j.lane, j.run_at)"
        " UNION ALL SELECT h.n FROM {held} h JOIN {jobs} j ON j.n = h.n "
        "WHERE (h.lane, h.key, h.rank, h.run_at, h.most) <> (j.lane, j.limit_key, ~j.priority, j.run_at, j.limit_most)"
        " UNION ALL SELECT k.n FROM {parked} k JOIN {jobs} j ON j.n = k.n WHERE k.lane <> j.lane"
        " UNION ALL SELECT o.n FROM {outcomes} o JOIN {jobs} j ON j.n = o.n WHERE o.topic <> j.topic",
    ),
    (
        "an attempt out of bounds (n, attempt, maximum)",
        " UNION ALL ".join(
            f"SELECT p.n, p.attempt, j.max_attempts FROM {{{place}}} p JOIN {{jobs}} j ON j.n = p.n "
            f"WHERE p.attempt < {least} OR p.attempt > j.max_attempts - {room}"
            for place, least, room in [
                ("ready", 0, 1),
                ("later", 0, 1),
                ("held", 0, 1),
                ("parked", 0, 1),
                ("running", 1, 0),
            ]
        )
        + " UNION ALL SELECT p.n, p.attempt, j.max_attempts FROM {outcomes} p JOIN {jobs} j ON j.n = p.n "
        "WHERE p.attempt < 0 OR p.attempt > j.max_attempts",
    ),
    (
        "a running job whose lease is gone: nobody would ever reclaim it",
        "SELECT r.n, r.lease FROM {running} r WHERE NOT EXISTS (SELECT 1 FROM {leases} l WHERE l.id = r.lease)",
    ),
    (
        "a tally that is not what ended (topic, status, tally, outcomes)",
        "SELECT topic, status, sum(counted), sum(ended) FROM ("
        "SELECT topic, status, count AS counted, 0 AS ended FROM {tally} WHERE status <> 'retrying' "
        "UNION ALL SELECT topic, status, 0, 1 FROM {outcomes}) x GROUP BY 1, 2 HAVING sum(counted) <> sum(ended)",
    ),
    (
        "more jobs running under a key than any of them allows",
        "SELECT j.limit_key, count(*), max(j.limit_most) FROM {running} r JOIN {jobs} j ON j.n = r.n "
        "WHERE j.limit_key IS NOT NULL GROUP BY 1 HAVING count(*) > max(j.limit_most)",
    ),
    (
        "a held job that nobody would ever wake",
        "SELECT h.n, h.key FROM {held} h WHERE NOT EXISTS (SELECT 1 FROM {wakes} w WHERE w.key = h.key) AND h.most > "
        "(SELECT count(*) FROM {running} r JOIN {jobs} j ON j.n = r.n WHERE j.limit_key = h.key) + "
        "(SELECT count(*) FROM {ready} r JOIN {jobs} j ON j.n = r.n WHERE j.limit_key = h.key AND j.lane = h.lane)",
    ),
    (
        "a live job under a key that the key does not know",
        "SELECT j.n, j.limit_key FROM {jobs} j WHERE j.limit_key IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM {outcomes} o WHERE o.n = j.n) "
        "AND NOT EXISTS (SELECT 1 FROM {members} m WHERE m.n = j.n AND m.key = j.limit_key)",
    ),
    (
        "something that an ended job still holds",
        "SELECT 'member', m.n FROM {members} m JOIN {outcomes} o ON o.n = m.n "
        "UNION ALL SELECT 'dedupe', k.n FROM {keys} k JOIN {outcomes} o ON o.n = k.n WHERE k.kind = 'dedupe' "
        "UNION ALL SELECT 'deadline', d.n FROM {deadlines} d JOIN {outcomes} o ON o.n = d.n",
    ),
    (
        "a live job without the dedupe key or the deadline that it should have",
        "SELECT 'dedupe', j.n FROM {jobs} j WHERE j.dedupe_key IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM {outcomes} o WHERE o.n = j.n) "
        "AND NOT EXISTS (SELECT 1 FROM {keys} k WHERE k.kind = 'dedupe' AND k.key = j.dedupe_key AND k.n = j.n) "
        "UNION ALL SELECT 'deadline', j.n FROM {jobs} j WHERE j.expires_at IS NOT NULL AND (j.flags & 4) <> 0 AND ("
        "j.n IN (SELECT n FROM {ready} WHERE attempt = 0) OR j.n IN (SELECT n FROM {later} WHERE attempt = 0) "
        "OR j.n IN (SELECT n FROM {held} WHERE attempt = 0)) "
        "AND NOT EXISTS (SELECT 1 FROM {deadlines} d WHERE d.n = j.n)",
    ),
    (
        "a job whose idempotency key is not kept",
        "SELECT j.n FROM {jobs} j WHERE j.idempotency_key IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM {keys} k WHERE k.kind = 'idempotency' AND k.n = j.n)",
    ),
]

PROBLEMS += [
    (
        "a delivery that is pending and in no outbox, or in one and not pending",
        "SELECT d.id, d.status FROM {deliveries} d WHERE (d.status = 'pending') <> "
        "EXISTS (SELECT 1 FROM {outbox} o WHERE o.id = d.id) "
        "UNION ALL SELECT o.id, 'gone' FROM {outbox} o "
        "WHERE NOT EXISTS (SELECT 1 FROM {deliveries} d WHERE d.id = o.id)",
    ),
    (
        "a job that says nothing of its deliveries",
        "SELECT j.n, j.webhook_sent FROM {jobs} j WHERE (j.webhook_sent IS NULL) = "
        "EXISTS (SELECT 1 FROM {deliveries} d WHERE d.n = j.n)",
    ),
    (
        "a channel that is not what was written to it",
        "SELECT c.n, c.channel FROM {channels} c WHERE (c.last, c.size) <> "
        "(SELECT max(o.last), sum(o.size) FROM {output} o WHERE o.n = c.n AND o.channel = c.channel)",
    ),
    (
        "steps of a job whose flag does not say so",
        "SELECT j.n FROM {jobs} j WHERE (j.flags & 32) = 0 AND (EXISTS (SELECT 1 FROM {steps} s WHERE s.n = j.n) "
        "OR EXISTS (SELECT 1 FROM {answers} a WHERE a.n = j.n))",
    ),
    (
        "a step under way in a job that nobody runs",
        "SELECT s.n, s.name FROM {steps} s WHERE s.state = 'processing' "
        "AND NOT EXISTS (SELECT 1 FROM {running} r WHERE r.n = s.n)",
    ),
    (
        "a parked job that waits for nothing, or for longer than its steps say",
        "SELECT k.n FROM {parked} k WHERE NOT EXISTS (SELECT 1 FROM {steps} s WHERE s.n = k.n AND s.state = 'waiting') "
        "OR coalesce(k.until, 0) <> coalesce("
        "(SELECT min(s.until) FROM {steps} s WHERE s.n = k.n AND s.state = 'waiting'), 0)",
    ),
    (
        "an answer that its waiting step has not got",
        "SELECT a.n, a.name FROM {answers} a JOIN {steps} s ON s.n = a.n AND s.name = a.name AND s.key = a.key "
        "JOIN {parked} k ON k.n = a.n WHERE s.state = 'waiting' AND s.child IS NULL AND s.children_made IS NULL",
    ),
    (
        "a step that waits for a child that has ended or is gone",
        "SELECT s.n, s.name FROM {steps} s WHERE s.state = 'waiting' AND s.child IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM {jobs} j WHERE j.id = s.child AND NOT EXISTS (SELECT 1 FROM {outcomes} o WHERE o.n = j.n)) "
        "UNION ALL SELECT c.n, c.name FROM {children} c JOIN {steps} s ON s.n = c.n AND s.name = c.name AND s.key = '' "
        "WHERE s.state = 'waiting' AND c.state = 'waiting' AND NOT EXISTS "
        "(SELECT 1 FROM {jobs} j WHERE j.id = c.child AND NOT EXISTS (SELECT 1 FROM {outcomes} o WHERE o.n = j.n))",
    ),
    (
        "a step with wrong counts of its children",
        "SELECT s.n, s.name FROM {steps} s WHERE s.state = 'waiting' AND s.children_made IS NOT NULL AND "
        "(s.children_left, s.children_failed) <> (SELECT count(CASE c.state WHEN 'waiting' THEN 1 END), "
        "count(CASE c.state WHEN 'failed' THEN 1 END) FROM {children} c WHERE c.n = s.n AND c.name = s.name)",
    ),
    (
        "a parked job whose children have all ended",
        "SELECT k.n FROM {parked} k WHERE k.until IS NULL AND NOT EXISTS (SELECT 1 FROM {steps} s WHERE s.n = k.n "
        "AND s.state = 'waiting' AND coalesce(s.children_left, 1) > 0)",
    ),
    (
        "children of no job",
        "SELECT c.n FROM {children} c WHERE NOT EXISTS (SELECT 1 FROM {jobs} j WHERE j.n = c.n)",
    ),
    (
        "a job that waits for nothing",
        "SELECT k.n FROM {parked} k WHERE k.until IS NULL AND NOT EXISTS "
        "(SELECT 1 FROM {steps} s WHERE s.n = k.n AND s.state = 'waiting')",
    ),
    (
        "a result that is kept apart from no step",
        "SELECT w.n, w.name FROM {step_results} w WHERE NOT EXISTS "
        "(SELECT 1 FROM {steps} s WHERE s.n = w.n AND s.name = w.name AND s.key = w.key AND s.result IS NULL)",
    ),
]

# Jobs that are ready stay where they are: they are due already, and claims remember how far they came.
TIMES = {
    "jobs": ["created_at", "expires_at"],
    "later": ["run_at"],
    "workers": ["seen_at"],
    "leases": ["until", "renewed_at"],
    "running": ["claimed_at", "started_at", "cancel_at", "grace_from"],
    "outcomes": ["ended_at", "claimed_at", "started_at", "cancel_at"],
    "deadlines": ["expires_at"],
    "parked": ["until"],
    "steps": ["started_at", "ended_at", "until"],
    "children": ["started_at", "ended_at"],
    "answers": ["created_at"],
    "channels": ["created_at"],
    "deliveries": ["created_at", "finished_at"],
    "outbox": ["due_at"],
    "starts": ["at"],
    "events": ["created_at"],
    "leaders": ["until", "since", "reported_at"],
    "topics": ["paused_until"],
    "pauses": ["paused_until"],
    "stale_marks": ["ended_at"],
    "records": ["created_at", "updated_at"],
}


class RelationalDatabase(Database):
    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect = "sqlite" if url.startswith("sqlite") else "postgres"

    def make_store(self) -> Store:
        return make_store(self.url, stale_after_ms=7 * DAY)

    async def pass_time(self, ms: int) -> None:
        statements = ["UPDATE {jobs} SET run_at = run_at - %d WHERE n IN (SELECT n FROM {later})" % ms]
        for table, columns in TIMES.items():
            changes = ", ".join(f"{column} = {column} - {ms}" for column in columns)
            statements.append(f"UPDATE {{{table}}} SET {changes}")
        for table in ("tally", "tally_hist"):
            statements.append(f"UPDATE {{{table}}} SET minute = -minute")  # in one step two minutes could meet
            statements.append(f"UPDATE {{{table}}} SET minute = -minute - {ms // 60_000}")
        await self.execute(*statements)

    async def problems(self) -> list[str]:
        return await asyncio.to_thread(self._problems)

    def _problems(self) -> list[str]:
        queries = load(self.dialect)
        misplaced, drift, *others = self._run(
            [queries["misplaced"].sql, queries["limit_drift"].sql, *(statement for _, statement in PROBLEMS)]
        )
        found = [f"a job in no place or in two: {row}" for row in misplaced]
        found += [f"a key that is counted wrong (key, counted, running): {row}" for row in drift if row[1] != row[2]]
        for (what, _), rows in zip(PROBLEMS, others, strict=True):
            found += [f"{what}: {row}" for row in rows[:10]]
        return found

    async def execute(self, *statements: str) -> list[Any]:
        """Run statements with {table} names in one transaction; returns the rows of the last."""
        answers = await asyncio.to_thread(self._run, statements)
        return answers[-1]

    def _run(self, statements: Sequence[str]) -> list[list[Any]]:
        names = {table: self._name(table) for table in TABLES}
        texts = [statement.format(**names) if "{" in statement else statement for statement in statements]
        return self._run_sqlite(texts) if self.dialect == "sqlite" else self._run_postgres(texts)

    def _name(self, table: str) -> str:
        return f"treadle.{table}" if self.dialect == "postgres" else f"treadle_{table}"

    def _run_sqlite(self, statements: Sequence[str]) -> list[list[Any]]:
        path = Path(self.url.removeprefix("sqlite:///"))
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            answers = [connection.execute(statement).fetchall() for statement in statements]
            connection.execute("COMMIT")
            return answers

    def _run_postgres(self, statements: Sequence[str]) -> list[list[Any]]:
        with psycopg.connect(self.url, prepare_threshold=None) as connection:
            cursors = [connection.execute(statement.encode()) for statement in statements]
            return [cursor.fetchall() if cursor.description else [] for cursor in cursors]
