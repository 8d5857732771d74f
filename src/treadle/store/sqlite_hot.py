"""SQLite's hot paths, on the writer's connection inside its transaction: few statements, few rows to step through.

Stepping through a row gives up Python's global lock, and a busy event loop takes up to 5 ms to hand
it back. So many rows travel as one JSON text, in both directions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from pydantic_core import from_json, to_json

from treadle.errors import LeaseLost
from treadle.store.base import Claim, Claimed, NewJob, Settlement
from treadle.store.queries import Query
from treadle.store.scripts.moving import completed_row


def document(rows: object) -> str:
    return to_json(rows).decode()


Lanes = dict[tuple[str, str, int], int]


def insert_one(db: sqlite3.Connection, queries: dict[str, Query], job: NewJob, lane: int) -> int:
    """A plain job by itself: two statements. Returns when."""
    values = (
        job.id,
        lane,
        job.topic,
        job.run_at,
        job.delay_ms,
        job.max_attempts,
        job.template_version,
        job.scope,
        job.scope_id,
        job.created_by,
        job.payload,
        job.trace,
    )
    # All rows are fetched: with one left, the statement would still be running at COMMIT.
    [(n, run_at, now)] = db.execute(queries["insert_one"].sql, values).fetchall()
    if run_at <= now:
        db.execute(queries["place_one_ready"].sql, (lane, run_at, n, job.max_attempts))
    else:
        db.execute(queries["place_one_later"].sql, (n, lane, run_at))
    return int(now)


def insert(db: sqlite3.Connection, queries: dict[str, Query], jobs: Sequence[NewJob], lanes: Lanes) -> int:
    """Plain jobs, without keys, gates or deadlines: the rows, then their places by number. Returns when."""
    now, last = db.execute(queries["clock_and_last_number"].sql).fetchone()
    due: list[tuple[object, ...]] = []
    later: list[tuple[object, ...]] = []
    for job in jobs:
        run_at = now + job.delay_ms if job.run_at is None else job.run_at
        row = (
            job.id,
            lanes[job.topic, job.capability, job.priority],
            job.topic,
            run_at,
            now,
            job.max_attempts,
            job.template_version,
            job.scope,
            job.scope_id,
            job.created_by,
            job.payload,
            job.trace,
        )
        (due if run_at <= now else later).append(row)
    if due:
        db.executemany(queries["insert_alike"].sql, due)
        db.execute(queries["place_alike_ready"].sql, (last,))
    if later:
        last = db.execute(queries["clock_and_last_number"].sql).fetchone()[1]
        db.executemany(queries["insert_alike"].sql, later)
        db.execute(queries["place_alike_later"].sql, (last,))
    return int(now)


def nothing_to_claim(
    db: sqlite3.Connection, queries: dict[str, Query], lease: int, topics: Sequence[str], capabilities: Sequence[str]
) -> bool:
    """A look without a transaction: those who come in vain with a live lease take no lock and write nothing."""
    if db.execute(queries["lane_heads"].sql, (_names(topics, capabilities),)).fetchone():
        return False
    return db.execute(queries["hold_lease"].sql, (document([{"lease": lease}]),)).fetchone() is not None


def _names(topics: Sequence[str], capabilities: Sequence[str]) -> str:
    return document([{"topic": topic} for topic in topics] + [{"capability": name} for name in capabilities])


def claim(
    db: sqlite3.Connection,
    queries: dict[str, Query],
    lease: int,
    topics: Sequence[str],
    capabilities: Sequence[str],
    limit: int,
    free: int,
) -> Claim | None:
    """Whole runs of lanes from their heads. None: not so simple (rate limits, deadlines, last attempts)."""
    names = _names(topics, capabilities)
    if db.execute(queries["rated_topics"].sql, (names,)).fetchone():
        return None
    held = db.execute(queries["hold_lease"].sql, (document([{"lease": lease}]),)).fetchone()
    if held is None:
        raise LeaseLost("the lease has run out")
    lanes = db.execute(queries["lane_heads"].sql, (names,)).fetchall()
    if not lanes or limit <= 0:
        return Claim([])
    token: int = db.execute(queries["next_token"].sql).fetchone()[0]
    found: list[tuple[int, int, list[list[object]]]] = []
    count = 0
    for lane, _ in lanes:
        values = (lane, limit - count, token, lease)
        text, flagged, last, run_at = db.execute(queries["peek_heads"].sql, values).fetchone()
        rows = from_json(text)
        if flagged or (last and count + len(rows) > free):
            return None
        found.append((lane, run_at, rows))
        count += len(rows)
        if count >= limit:
            break
    jobs: list[Claimed] = []
    for lane, run_at, rows in found:
        db.execute(queries["start_heads"].sql, (token, lease, held[1], lane, run_at, rows[-1][0]))
        db.execute(queries["drop_heads"].sql, (lane, run_at, rows[-1][0]))
        jobs += map(Claimed._make, rows)
    return Claim(jobs, at=held[1])


def settle(
    db: sqlite3.Connection, queries: dict[str, Query], lease: int, settlements: Sequence[Settlement]
) -> list[Settlement]:
    """Completed, and nothing hangs on them; the lost ones."""
    held = db.execute(queries["hold_lease"].sql, (document([{"lease": lease}]),)).fetchone()
    by_topic: dict[str, list[Settlement]] = {}
    for one in settlements:
        by_topic.setdefault(one.job.topic, []).append(one)
    lost: list[Settlement] = []
    done: list[int] = []
    for topic, group in by_topic.items():
        lost += _settle_topic(db, queries, lease, topic, group, held[1] if held else None, done)
    if done:
        db.execute(queries["add_events"].sql, (document([completed_row(done, held[1])]),))
    return lost


def _settle_topic(
    db: sqlite3.Connection,
    queries: dict[str, Query],
    lease: int,
    topic: str,
    group: list[Settlement],
    now: int | None,
    done: list[int],
) -> list[Settlement]:
    """The lost ones; the numbers of those that are completed now are added to `done`."""
    lost: list[Settlement] = []
    text = document([(one.job.n, one.job.token, one.ran_ms, one.transition.result) for one in group])
    settled = 0 if now is None else db.execute(queries["settle_completed"].sql, (text, topic, now, lease)).rowcount
    if settled != len(group):
        rows = document([{"n": one.job.n, "token": one.job.token} for one in group])
        settled_by_me = {row[0] for row in db.execute(queries["settled_by"].sql, (rows,))}
        lost = [one for one in group if one.job.n not in settled_by_me]
        # What was settled before, by a call whose answer got lost, is no longer running and not counted again.
        running = {row[0] for row in db.execute(queries["find_running"].sql, (rows,))}
        group = [one for one in group if one.job.n in settled_by_me and one.job.n in running]
        text = document([(one.job.n,) for one in group])
    if group and now is not None:
        done += [one.job.n for one in group]
        db.execute(queries["drop_running"].sql, (text,))
        tally = {
            "minute": now // 60_000,
            "writer": lease,
            "topic": topic,
            "status": "completed",
            "count": len(group),
            "run_ms": sum(one.ran_ms or 0 for one in group),
        }
        db.execute(queries["add_tally"].sql, (document([tally]),))
    return lost
