"""New jobs: look up key owners and live jobs under their limits, ask `admission`, apply its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from treadle.model.errors import Refused
from treadle.policy.admission import Admit, Decision, Existing, Refuse
from treadle.store.lanes import lane_of
from treadle.store.requests import request_of
from treadle.store.sql.rows import EXPIRES, LIMITED, PARENT, traits_of
from treadle.store.sql.scripts.admitting import apply, ask, replace
from treadle.store.sql.scripts.common import Script, as_facts, numbers
from treadle.store.sql.scripts.lanes import register_lanes
from treadle.store.sql.scripts.steer import cancel, cancel_idle
from treadle.store.sql.scripts.steps import add_declared
from treadle.store.values import Inserted, NewJob


def insert(jobs: Sequence[NewJob], atomic: bool, joined: bool = False) -> Script[list[Inserted | Refused]]:
    """Insert any jobs, with keys, limits and deadlines. Refusals are raised if `atomic`, else returned in place.

    `joined`: in a user's transaction, which may stay open for long. Then no row is locked that a worker waits for.
    """
    now: int = (yield "clock", [])[0][0]
    lanes = yield from register_lanes(jobs)
    reserved = [row[0] for row in (yield "reserve_numbers", [{"count": len(jobs)}])]
    stop = partial(_stop_after_commit, writer=-reserved[0]) if joined and jobs else cancel
    requests = [request_of(job) for job in jobs]
    asked = yield from ask(requests, reserved)
    if atomic:
        _raise_first_refusal(asked.decisions)
    yield from apply(asked, stop)
    made = [i for i, decision in enumerate(asked.decisions) if isinstance(decision, Admit)]
    if made:
        rows = [_job_row(jobs[i], reserved[i], lanes[lane_of(jobs[i])], now) for i in made]
        yield "insert_jobs", rows
        yield from add_declared([jobs[i] for i in made], [reserved[i] for i in made])
        yield from _place_new(rows)
    yield from replace(asked, stop, within_batch=True)
    return [_answer(decision, now) for decision in asked.decisions]


def _stop_after_commit(reasons: Mapping[str, str], writer: int) -> Script[None]:
    """Cancel pending jobs; running ones are asked to stop by the next `advance` after the commit.

    `writer`: used by no other transaction, so that none waits for this one's row of the tally.
    """
    jobs = as_facts((yield "find_jobs", [{"id": id_} for id_ in reasons]))
    running = {row[0] for row in (yield "find_running", numbers(job.n for job in jobs))} if jobs else set()
    later = [job.id for job in jobs if job.n in running or job.flags & PARENT]  # a parent's rows are not locked here
    if idle := {job.id: reasons[job.id] for job in jobs if job.id not in later}:
        later += yield from cancel_idle(idle, writer)  # with the ones that a worker has just claimed
    if later:
        yield "add_replaced", [{"job": id_, "reason": reasons[id_]} for id_ in later]


def _raise_first_refusal(decisions: Iterable[Decision]) -> None:
    for decision in decisions:
        if isinstance(decision, Refuse):
            raise decision.error


def _answer(decision: Decision, now: int) -> Inserted | Refused:
    match decision:
        case Admit():
            return Inserted(now)
        case Existing(id_):
            return Inserted(now, id_)
        case Refuse(error):
            assert isinstance(error, Refused)
            return error


# -- rows ------------------------------------------------------------------------------------------


def _job_row(job: NewJob, n: int, lane: int, now: int) -> dict[str, Any]:
    expires_at = job.expires_at if job.expires_in_ms is None else now + job.expires_in_ms
    return {
        "n": n,
        "id": job.id,
        "lane": lane,
        "topic": job.topic,
        "priority": job.priority,
        "run_at": job.due(now),
        "created_at": now,
        "max_attempts": job.max_attempts,
        "flags": traits_of(job),
        "expires_at": expires_at,
        "dedupe_key": job.dedupe_key,
        "limit_key": job.limit.key if job.limit else None,
        "limit_policy": job.limit.policy if job.limit else None,
        "limit_most": job.limit.most if job.limit else None,
        "payload": job.payload,
        "trace": job.trace,
        "attempt": 0,
        **job.given._asdict(),
    }


def _place_new(rows: list[dict[str, Any]]) -> Script[None]:
    if due := [row for row in rows if row["run_at"] <= row["created_at"]]:
        yield "place_ready", _positions(due)
    if later := [row for row in rows if row["run_at"] > row["created_at"]]:
        yield "place_later", _positions(later)
    if expiring := [row for row in rows if row["flags"] & EXPIRES]:
        yield "add_deadlines", [{"n": row["n"], "expires_at": row["expires_at"]} for row in expiring]
    if limited := [row for row in rows if row["flags"] & LIMITED]:
        yield "add_members", [{"key": row["limit_key"], "n": row["n"]} for row in limited]


def _positions(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, int]]:
    return [{"n": row["n"], "attempt": row["attempt"]} for row in rows]
