"""Everything that is due: delayed jobs, ends of waits, deadlines, and what a user's transaction left for after its end.

It waits for no lock. Rows locked by a user's transaction stay where they are until a later look.
"""

from __future__ import annotations

from treadle.policy.lifecycle import DeadlinePassed, WaitOver
from treadle.store.sql.scripts.applier import apply_moves
from treadle.store.sql.scripts.common import MovingJob, Script, as_facts, numbers
from treadle.store.sql.scripts.limits import take_wakes
from treadle.store.sql.scripts.moves import moved, pending_job
from treadle.store.sql.scripts.steer import cancel
from treadle.store.sql.scripts.steps import woken
from treadle.store.values import Advanced, Moved

# When to look again at locked rows.
LOCKED_MS = 20


def advance(limit: int) -> Script[Advanced]:
    due = yield "take_due", [{"top": limit}]
    if due:
        yield "place_ready", [{"n": n, "attempt": attempt} for n, attempt in due]
    waited = yield "take_overdue", [{"top": limit}]
    yield from woken(waited, WaitOver())
    ended = yield from _expire(limit)
    stuck = yield from take_wakes()
    more = limit in (len(due), len(waited), len(ended))
    wait = (yield "next_due", [])[0][0]
    return Advanced(len(due) + len(waited), ended, 0 if more else _next(wait, stuck))


def stop_replaced() -> Script[int]:
    """Cancel what other transactions have asked for: jobs that a user's transaction replaced, and children of cancelled
    parents. Returns how many, because these may have children too."""
    reasons = dict((yield "take_replaced", []))
    if reasons:
        yield from cancel(reasons)
    return len(reasons)


def _next(wait: int | None, stuck: bool) -> int | None:
    # A due row that is still here is locked; looking again immediately would only spin.
    waits = [] if wait is None else [wait if wait > 0 else LOCKED_MS]
    return min([*waits, LOCKED_MS] if stuck else waits, default=None)


def _expire(limit: int) -> Script[list[Moved]]:
    due = [row[0] for row in (yield "due_deadlines", [{"top": limit}])]
    if not due:
        return []
    now: int = (yield "clock", [])[0][0]
    facts = {job.n: job for job in as_facts((yield "job_facts", numbers(due)))}
    jobs: list[MovingJob] = []
    for query in ("expire_ready", "expire_later", "expire_held"):
        taken = yield query, numbers(facts)
        jobs += [pending_job(facts[n], attempt, query == "expire_ready", DeadlinePassed()) for n, attempt in taken]
    yield from apply_moves(jobs, now)
    return [moved(job) for job in jobs]
