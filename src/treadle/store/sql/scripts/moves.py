"""Jobs that someone other than their owner takes out of their place, with the transition that `decide` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.model.status import Status
from treadle.policy.consequences import Move
from treadle.policy.lifecycle import Outcome, RowState, decide
from treadle.store.sql.scripts.applier import apply_moves
from treadle.store.sql.scripts.common import JobFacts, LeaseOwner, MovingJob, Script, TakenAttempt, as_facts, numbers
from treadle.store.values import Moved


def attempts(query: str, rows: Sequence[Mapping[str, Any]]) -> Script[list[TakenAttempt]]:
    """Take attempts out of `running`, on behalf of someone other than their owner.

    Their tokens are not stored: an outcome with its token tells an owner that it reported this itself.
    """
    return list(map(TakenAttempt._make, (yield query, rows))) if rows else []


def end_attempts(taken: Sequence[TakenAttempt], outcome: Callable[[TakenAttempt], Outcome]) -> Script[list[Moved]]:
    """Let `decide` choose the transition of attempts that were taken out of `running`."""
    if not taken:
        return []
    now: int = (yield "clock", [])[0][0]
    facts = {f.n: f for f in as_facts((yield "job_facts", numbers(a.n for a in taken)))}
    leases = sorted({a.lease for a in taken if a.lease is not None})
    owners = {row[0]: LeaseOwner(*row[1:]) for row in (yield "lease_workers", [{"lease": lease} for lease in leases])}
    jobs = []
    for attempt in taken:
        state = RowState(attempt.status, attempt.attempt, facts[attempt.n].max_attempts)
        owner = owners.get(attempt.lease or 0, LeaseOwner(None, None))
        move = Move(attempt.status, decide(state, outcome(attempt)), attempt, owner.name)
        jobs.append(MovingJob(facts[attempt.n], move, worker=owner.id))
    yield from apply_moves(jobs, now)
    return [moved(job) for job in jobs]


def moved(job: MovingJob) -> Moved:
    transition = job.move.transition
    return Moved(job.facts.id, job.facts.topic, transition.to, transition.event or "")


def pending_job(facts: JobFacts, attempt: int, ready: bool, outcome: Outcome) -> MovingJob:
    transition = decide(RowState(Status.PENDING, attempt, facts.max_attempts), outcome)
    return MovingJob(facts, Move(Status.PENDING, transition, was_ready=ready))
