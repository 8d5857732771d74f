"""Maintenance: reaping, pruning, templates and the tally."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.policy.consequences import uncounted
from treadle.policy.lifecycle import GraceOver, LeaseExpired, Outcome
from treadle.store.sql.scripts.common import Rows, Script, tally_row
from treadle.store.sql.scripts.ended import erase
from treadle.store.sql.scripts.limits import recount
from treadle.store.sql.scripts.moves import attempts, end_attempts
from treadle.store.sql.scripts.times import join_old_times
from treadle.store.values import Graces, Reaped


def reap(graces: Graces, limit: int) -> Script[Reaped]:
    """End attempts under expired leases, then attempts that took too long to stop after a cancel request."""
    leases, more = yield from _expired_leases(limit)
    rows = [{"lease": lease} for lease in sorted(leases)]
    ended = yield from attempts("take_orphans", rows)
    outcomes: dict[int, Outcome] = {one.n: LeaseExpired(leases[one.lease or 0]) for one in ended}
    late = [
        {"n": n, "token": token, "lease": lease}
        for n, token, lease, topic, waited in (yield "cancelling", [])
        if waited >= graces.of(topic)
    ]
    room = max(limit - len(ended), 1)
    stopped = yield from attempts("take_running", late[:room])
    outcomes |= {one.n: GraceOver() for one in stopped}
    moved = yield from end_attempts([*ended, *stopped], lambda one: outcomes[one.n])
    if rows:
        yield "see_workers", rows
        yield "drop_leases", rows
    return Reaped(moved, more or len(late) > room)


def _expired_leases(limit: int) -> Script[tuple[dict[int, str], bool]]:
    """The worker of each lease to take back, about `limit` jobs in all, locked; and whether there are more."""
    found = [(row[0], row[1]) for row in (yield "expired_leases", [{"top": limit}])]
    if not found:
        return {}, False
    counts = dict((yield "jobs_under", [{"lease": lease} for lease, _ in found]))
    chosen: dict[int, str] = {}
    jobs = 0
    for lease, worker in found:
        count = counts.get(lease, 0)
        if chosen and jobs + count > limit:
            break
        chosen[lease] = worker
        jobs += count
    return chosen, len(chosen) < len(found) or len(found) == limit


def prune(age_ms: int, limit: int, ns: Sequence[int] | None = None) -> Script[int]:
    """Returns how many jobs it found, or how many of `ns` it deleted; one that was requeued since is left alone."""
    if ns is not None:
        return (yield from _delete(ns, age_ms))
    old = [row[0] for row in (yield "old_outcomes", [{"age": age_ms, "top": limit}])]
    yield from _delete(old, age_ms)
    if len(old) < limit:
        yield from forget(age_ms)
    return len(old)


def _delete(old: Sequence[int], age_ms: int) -> Script[int]:
    """Returns how many were still that old."""
    taken: Rows = []
    if old:
        # The outcome first, with its age checked again: a job that was requeued and has ended since is not old.
        taken = yield "take_old_outcomes", [{"n": n, "age": age_ms} for n in sorted(old)]
        if taken:
            yield (
                "add_tally",
                [
                    tally_row(uncounted(ended_at, status, started_at), topic)
                    for _, status, ended_at, started_at, topic in taken
                ],
            )
            yield from erase([row[0] for row in taken])
    return len(taken)


def forget(age_ms: int) -> Script[None]:
    """Drop what is kept as long as jobs are: times, failed attempts, names of workers."""
    yield "drop_old_histograms", [{"age": age_ms}]
    yield "drop_old_retries", [{"age": age_ms}]
    yield "drop_old_workers", [{"age": age_ms}]


def tidy() -> Script[None]:
    folded = [
        {"minute": minute, "writer": 0, "topic": topic, "status": status, "count": count, "run_ms": run_ms}
        for minute, topic, status, count, run_ms in (yield "take_old_tally", [])
    ]
    if folded:
        yield "add_tally", folded
    yield "drop_empty_tally", []
    yield from join_old_times()
    yield from recount()
    yield "drop_old_starts", []
    yield "drop_old_news", []
    yield "drop_old_tests", []
