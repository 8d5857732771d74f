"""SQLite's hot paths, on the writer's connection inside its transaction: few statements and few rows to step through.

Stepping through a row releases Python's global lock, and a busy event loop takes up to 5 ms to hand it back. So many
rows travel as one JSON text, in both directions.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from treadle.model.errors import LeaseLost
from treadle.model.fields import PLAIN, Given
from treadle.model.status import Status
from treadle.store.lanes import MERGED, LaneKey, LaneTurns, lane_keys, quota, turns
from treadle.store.sql.queries import Query
from treadle.store.sql.scripts.applier import COMPLETED_TOGETHER
from treadle.store.sql.scripts.common import event_row
from treadle.store.sql.scripts.times import times_of
from treadle.store.values import Claim, Claimed, NewJob, Settlement, Wants


def document(rows: object) -> str:
    return to_json(rows).decode()


Lanes = dict[LaneKey, int]


def insert(db: sqlite3.Connection, queries: dict[str, Query], runs: Sequence[Sequence[NewJob]], lanes: Lanes) -> int:
    """Insert runs of alike plain jobs: the rows, then their places by number. Returns the time."""
    now, last = db.execute(queries["clock_and_last_number"].sql).fetchone()
    later = [run for run in runs if run[0].due(now) > now]
    due = [run for run in runs if run[0].due(now) <= now] if later else runs
    if due:
        _insert_runs(db, queries, due, lanes, now)
        db.execute(queries["place_alike_ready"].sql, (last,))
    if later:
        last = db.execute(queries["clock_and_last_number"].sql).fetchone()[1]
        _insert_runs(db, queries, later, lanes, now)
        db.execute(queries["place_alike_later"].sql, (last,))
    return int(now)


def _insert_runs(
    db: sqlite3.Connection, queries: dict[str, Query], runs: Sequence[Sequence[NewJob]], lanes: Lanes, now: int
) -> None:
    insert = queries["insert_alike"].sql
    for run in runs:
        job = run[0]
        names, given = _named(job.given[:PLAIN])
        lane = lanes[job.topic, job.capability]
        common = (lane, job.topic, job.due(now), now, job.max_attempts, job.priority, *given)
        if any(one.trace for one in run):
            rows = [(one.id, one.payload, *common, one.trace) for one in run]
            db.executemany(_naming(insert, (*names, "trace")), rows)
        else:
            db.executemany(_naming(insert, names), [(one.id, one.payload, *common) for one in run])


@lru_cache
def _named(given: tuple[Any, ...]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """What a plain job was given: the names and the values."""
    found = {name: value for name, value in zip(Given._fields, given, strict=False) if value is not None}
    return tuple(found), tuple(found.values())


@cache
def _naming(insert: str, names: tuple[str, ...]) -> str:
    """The statement with these columns after its own."""
    columns, values = "".join(f", {name}" for name in names), ", ?" * len(names)
    return insert.replace("/*names*/", columns).replace("/*values*/", values)


def nothing_to_claim(db: sqlite3.Connection, queries: dict[str, Query], lease: int, wants: Wants) -> bool:
    """Check without a transaction. If there is nothing to claim and the lease is live, no lock is taken."""
    if db.execute(queries["lane_heads"].sql, (document(lane_keys(wants)),)).fetchone():
        return False
    return db.execute(queries["hold_lease"].sql, (document([{"lease": lease}]),)).fetchone() is not None


class Sizes:
    """The payload sizes of the last claim. Small ones need not be measured again before the next."""

    def __init__(self) -> None:
        self.bytes_per_job: float | None = None

    def may_exceed(self, jobs: int, max_bytes: int) -> bool:
        return self.bytes_per_job is None or 4 * self.bytes_per_job * jobs > max_bytes


def claim(db: sqlite3.Connection, queries: dict[str, Query], lease: int, wants: Wants, sizes: Sizes) -> Claim | None:
    """Claim whole runs of lanes from their heads. None: a limit, rate, deadline or last attempt needs the script."""
    topics = document([{"topic": topic} for topic in wants.topics])
    if db.execute(queries["rated_topics"].sql, (topics,)).fetchone():
        return None
    held = db.execute(queries["hold_lease"].sql, (document([{"lease": lease}]),)).fetchone()
    if held is None:
        raise LeaseLost("the lease has run out")
    lanes = [row[0] for row in db.execute(queries["lane_heads"].sql, (document(lane_keys(wants)),)).fetchall()]
    if not lanes or wants.limit <= 0:
        return Claim([])
    found, cut = _turns(db, queries, lanes, wants.limit)
    if sizes.may_exceed(len(found), wants.max_bytes):
        found, cut = _fitting(db, queries, found, wants.max_bytes, cut)
    token: int = db.execute(queries["next_token"].sql).fetchone()[0]
    heads = _peek(db, queries, Counter(found), (token, lease), wants.free, sizes)
    if heads is None:
        return None
    for lane, jobs in heads.items():
        last = db.execute(queries["place_of"].sql, (jobs[-1].n,)).fetchone()
        db.execute(queries["start_heads"].sql, (token, lease, held[1], lane, *last))
        db.execute(queries["drop_heads"].sql, (lane, *last))
    return Claim(_in_turn(found, heads), 0 if cut else None, held[1])


def _turns(db: sqlite3.Connection, queries: dict[str, Query], lanes: Sequence[int], limit: int) -> LaneTurns:
    """The lane of each job; a single lane needs no look at the places."""
    if len(lanes) == 1:
        return LaneTurns([lanes[0]] * limit, False)
    if len(lanes) <= MERGED:
        return LaneTurns(from_json(db.execute(_merge(len(lanes)), (*lanes, limit)).fetchone()[0]), False)
    top = quota(limit, len(lanes))
    peek = queries["peek_places"].sql
    texts = {lane: db.execute(peek, (lane, top)).fetchone()[0] for lane in lanes}
    return turns({lane: list(map(tuple, from_json(text))) for lane, text in texts.items()}, limit, top)


@cache
def _merge(lanes: int) -> str:
    """SQLite merges sorted index scans row by row and stops at the limit, if the statement names each of them."""
    return _MERGE.replace("{branches}", " UNION ALL ".join([_BRANCH] * lanes))


_MERGE = "SELECT json_group_array(lane) FROM ({branches} ORDER BY rank, run_at, n LIMIT ?)"
_BRANCH = "SELECT lane, rank, run_at, n FROM treadle_ready WHERE lane = ?"


def _fitting(
    db: sqlite3.Connection, queries: dict[str, Query], lanes: Sequence[int], max_bytes: int, cut: bool
) -> LaneTurns:
    """As many as fit by payload size, and at least one."""
    peek = queries["peek_sizes"].sql
    sizes = {lane: db.execute(peek, (lane, top)) for lane, top in Counter(lanes).items()}
    try:
        total = 0
        fitting: list[int] = []
        for lane in lanes:
            total += next(sizes[lane], (0,))[0]
            if total > max_bytes and fitting:
                return LaneTurns(fitting, True)
            fitting.append(lane)
        return LaneTurns(fitting, cut)
    finally:
        for cursor in sizes.values():
            cursor.close()


def _peek(
    db: sqlite3.Connection,
    queries: dict[str, Query],
    lanes: Mapping[int, int],
    claim: tuple[int, int],
    free: int,
    sizes: Sizes,
) -> dict[int, list[Claimed]] | None:
    """The first jobs of each lane; None if the script has to look at one of them."""
    heads: dict[int, list[Claimed]] = {}
    count = length = last_attempts = 0
    for lane, top in lanes.items():
        text, limited, expires, last = db.execute(queries["peek_heads"].sql, (lane, top, *claim)).fetchone()
        if limited or expires:
            return None
        heads[lane] = list(map(Claimed._make, from_json(text)))
        count, length, last_attempts = count + len(heads[lane]), length + len(text), last_attempts + last
    sizes.bytes_per_job = length / max(count, 1)
    return None if last_attempts and count > free else heads


def _in_turn(lanes: Sequence[int], heads: Mapping[int, list[Claimed]]) -> list[Claimed]:
    if len(heads) == 1:
        return next(iter(heads.values()))
    next_of = {lane: iter(jobs) for lane, jobs in heads.items()}
    return [next(next_of[lane]) for lane in lanes]


def settle(
    db: sqlite3.Connection, queries: dict[str, Query], lease: int, settlements: Sequence[Settlement]
) -> list[Settlement]:
    """Complete plain jobs; returns the lost ones."""
    held = db.execute(queries["keep_lease"].sql, (document([{"lease": lease}]),)).fetchone()
    by_topic: dict[str, list[Settlement]] = {}
    for one in settlements:
        by_topic.setdefault(one.job.topic, []).append(one)
    lost: list[Settlement] = []
    done: list[int] = []
    for topic, group in by_topic.items():
        lost += _settle_topic(db, queries, lease, topic, group, held, done)
    if done:
        lost_ones = {one.job.n for one in lost}
        mine = [one for one in settlements if one.job.n not in lost_ones] if lost else settlements
        if times := times_of(mine, held[1], lease):
            db.execute(queries["add_times"].sql, (document(times),))
        db.execute(queries["add_events"].sql, (document([event_row(*COMPLETED_TOGETHER, done, held[1])]),))
    return lost


def _settle_topic(
    db: sqlite3.Connection,
    queries: dict[str, Query],
    lease: int,
    topic: str,
    group: list[Settlement],
    held: tuple[int, int, int | None, str] | None,
    done: list[int],
) -> list[Settlement]:
    """Returns the lost ones; adds the numbers of the completed ones to `done`."""
    lost: list[Settlement] = []
    _, now, worker, _ = held or (0, None, None, "")
    text = document([(one.job.n, one.job.token, one.ran_ms, one.transition.result) for one in group])
    settled = (
        0 if now is None else db.execute(queries["settle_completed"].sql, (text, topic, now, lease, worker)).rowcount
    )
    if settled != len(group):
        rows = document([{"n": one.job.n, "token": one.job.token} for one in group])
        ended = db.execute(queries["settled_by"].sql, (rows,))
        settled_by_me = {n for n, status in ended if status == Status.COMPLETED}
        lost = [one for one in group if one.job.n not in settled_by_me]
        # A job settled by an earlier call, if its answer was lost, is no longer running and is not counted again.
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
